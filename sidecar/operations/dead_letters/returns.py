"""Letters that come back to the dead-letter topic after they were sent again: known by lineage, else by origin.

A consumer forwards headers, so the plan and its leg are still on a letter that failed again. One that doesn't forward
what it doesn't know may still have kept `tickover-origin`; the latest origins sent by this process are remembered.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import TopicPartition

from policies.headers import ORIGIN, REDRIVE_PLAN
from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import reader_settings
from sidecar.kafka.topic_follower import position_after
from sidecar.operations.dead_letters.dead_letter import DeadLetter, letter_of
from sidecar.operations.dead_letters.redrive_plan import Plan, Progress
from sidecar.operations.dead_letters.redrive_routing import RoutedLetter

READ_MAX: Final = 500
ORIGINS_MAX: Final = 100_000


class Found(NamedTuple):
    """Letters that failed again: of the plan, and of this leg."""

    all: int
    of_leg: int


class Returns:
    """Reads the dead-letter topic behind the plan's letters."""

    def __init__(self, client: Mapping[str, Any], group: str, plan: Plan, progress: Progress) -> None:
        self._plan = plan.id
        self._origins: dict[str, None] = {}
        self.positions = {span.partition: max(progress.watched.get(span.partition, 0), span.end) for span in plan.spans}
        self._consumer = Consumer(reader_settings(client, f"{group}.redrive"))
        self._consumer.assign([TopicPartition(plan.topic, p, at) for p, at in self.positions.items()])

    def expect(self, parcels: Sequence[RoutedLetter]) -> None:
        """Remember the origins of letters that were sent."""
        for parcel in parcels:
            if origin := parcel.letter.text(ORIGIN):
                self._origins[origin] = None
        while len(self._origins) > ORIGINS_MAX:
            del self._origins[next(iter(self._origins))]

    def look(self, leg: int) -> Found:
        """Count letters that have come back since the last look; doesn't wait. Raises KafkaException."""
        everything = of_leg = 0
        for message in self._consumer.consume(READ_MAX, 0):
            position = position_after(message)
            if position is not None and message.error() is None:
                self.positions[message.partition() or 0] = position
                found = self._leg_of(letter_of(message), leg)
                everything += found is not None
                of_leg += found == leg
        return Found(everything, of_leg)

    def close(self) -> None:
        self._consumer.close()

    def _leg_of(self, letter: DeadLetter, leg: int) -> int | None:
        """The leg that sent it; None: not this plan."""
        lineage = letter.text(REDRIVE_PLAN)
        if not lineage:
            return leg if self._origins.pop(letter.text(ORIGIN), self) is None else None
        plan, _, number = lineage.partition("/")
        return int(number) if plan == self._plan and number.isascii() and number.isdigit() else None
