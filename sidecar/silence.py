"""Partitions that don't acknowledge, in `at_least_once`: found, and given nothing more until they do.

Kafka's client goes on trying for ever, and says only that some reports of a generation are missing, not whose.

    a generation is silent ----> its topics are watched: reports are counted by partition, and no record is sent
         for SILENCE_S           without its partition being known here
    a watched one is silent ---> partitions with reports missing are suspended: what is for them waits
    they answer ---------------> it goes on, in order

Without this, every generation with one record for such a partition would wait with all of its records.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.generation import Generation, Refusals
from sidecar.suspensions import ANY_PARTITION, Place

SILENCE_S: Final = 5.0
WATCH_S: Final = 2 * SILENCE_S  # from the first silence on: what was sent meanwhile has had its time, too


class Watched(Generation):
    """Counts its reports by partition, which costs a good deal more than counting."""

    __slots__ = ("answered",)

    def __init__(self, output: Any, lone_output: Any = None) -> None:
        super().__init__(output, lone_output)
        self.answered: Counter[Place] = Counter()

    def report(self, error: Any, message: Any) -> None:
        """See `Generation`."""
        self.answered[Place(message.topic(), message.partition())] += 1
        super().report(error, message)

    def report_alone(self, error: Any, message: Any) -> None:
        """See `Generation`."""
        self.answered[Place(message.topic(), message.partition())] += 1
        super().report_alone(error, message)


@dataclass(slots=True)
class _Closed:
    generation: Generation
    closed_s: float
    expected: Mapping[Place, int]  # of watched topics
    judged: bool = False
    suspended: set[Place] = field(default_factory=set)

    def missing(self, place: Place) -> bool:
        """Some reports are. One of a topic that is gone names no partition: that answers for all of them. Nor is any
        missing when all are there: where the topic has grown unnoticed, records went to other partitions than expected.
        """
        if self.generation.complete:
            return False
        answered = self.generation.answered if isinstance(self.generation, Watched) else Counter()
        return answered[place] < self.expected[place] and not answered[Place(place.topic, ANY_PARTITION)]


class InFlight:
    """Closed generations whose reports aren't all in, oldest first. Time is an argument: seconds that never go back."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._closed: list[_Closed] = []
        self._watched: set[str] = set()
        self._watched_until_s = 0.0

    def __len__(self) -> int:
        return len(self._closed)

    def __iter__(self) -> Iterator[Generation]:
        return (closed.generation for closed in self._closed)

    def close(self, generation: Generation, now_s: float) -> None:
        """All of it is handed over."""
        watched = self._refusals.watched(generation) if isinstance(generation, Watched) else {}
        self._closed.append(_Closed(generation, now_s, watched))

    def open(self, outputs: tuple[Any, Any]) -> Generation:
        """The next one."""
        return Watched(*outputs) if self._watched else Generation(*outputs)

    def completed(self, now_s: float) -> list[Generation]:
        """Take out those of which every record has its report; see to those that take too long."""
        complete = [closed.generation for closed in self._closed if closed.generation.complete]
        for closed in self._closed:
            if closed.suspended:
                self._release(closed)
            elif not (closed.judged or closed.generation.complete) and now_s - closed.closed_s > SILENCE_S:
                self._judge(closed, now_s)
        if complete:
            self._closed = [closed for closed in self._closed if not closed.generation.complete]
        if self._watched and now_s > self._watched_until_s:
            self._watched = set()
            self._refusals.watch(self._watched)
        return complete

    def _judge(self, closed: _Closed, now_s: float) -> None:
        closed.judged = True
        closed.suspended = {place for place in closed.expected if closed.missing(place)}
        if closed.suspended:
            self._refusals.silent(closed.suspended)
        known = {place.topic for place in closed.expected}
        if unknown := closed.generation.topics - known:
            self._watched |= unknown
            self._watched_until_s = now_s + WATCH_S
            self._refusals.watch(self._watched)

    def _release(self, closed: _Closed) -> None:
        if answering := {place for place in closed.suspended if not closed.missing(place)}:
            closed.suspended -= answering
            self._refusals.answering(answering)
