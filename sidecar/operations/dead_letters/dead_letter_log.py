"""Reading dead-letter topics by a consumer of one's own, that joins no group and commits nothing."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from confluent_kafka import KafkaException, TopicPartition

from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import reader_settings
from sidecar.kafka.topic_follower import ANSWER_S, LogUnavailable, bounds, read
from sidecar.operations.dead_letters.dead_letter import DeadLetter, letter_of
from sidecar.operations.dead_letters.redrive_plan import Plan


class LettersUnavailable(LogUnavailable):
    """Kafka doesn't answer about dead letters."""


class LettersGone(Exception):
    """Letters that a plan has pinned aren't there; the text says why. `for_good`: and never will be again."""

    def __init__(self, problem: str, for_good: bool = True) -> None:
        super().__init__(problem)
        self.for_good = for_good


class LetterLog(Protocol):
    """Dead-letter topics as one reader sees them. All but `close` raise LettersUnavailable."""

    def topics(self) -> dict[str, int]:
        """All topics of the cluster with their partition counts."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset, and one after the last that is committed."""

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """The first offset with this timestamp or a later one; None when there is none."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[DeadLetter]]:
        """Batches from `start` to before `end`; empty batches are signs of life."""

    def close(self) -> None: ...


class KafkaLetterLog:
    """`LetterLog` of real topics; for one thread at a time."""

    def __init__(self, client: Mapping[str, Any], group: str) -> None:
        self._consumer = Consumer(reader_settings(client, f"{group}.letters"))

    def topics(self) -> dict[str, int]:
        try:
            topics = self._consumer.list_topics(timeout=ANSWER_S).topics
        except KafkaException as error:
            raise LettersUnavailable(error.args[0].str()) from None
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.partitions}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        try:
            return bounds(self._consumer, topic, partition)
        except LogUnavailable as error:
            raise LettersUnavailable(str(error)) from None

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        try:
            [found] = self._consumer.offsets_for_times([TopicPartition(topic, partition, time_ms)], timeout=ANSWER_S)
        except KafkaException as error:
            raise LettersUnavailable(error.args[0].str()) from None
        return found.offset if found.offset >= 0 else None

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[DeadLetter]]:
        try:
            for messages in read(self._consumer, (topic, partition), start, end):
                yield [letter_of(message) for message in messages]
        except LogUnavailable as error:
            raise LettersUnavailable(str(error)) from None

    def close(self) -> None:
        self._consumer.close()


TopicId = Callable[[str], str]
"""Kafka's id of a topic; "" where the cluster has none. Raises LogUnavailable."""


def check_topic(plan: Plan, topic_id: TopicId) -> None:
    """Whether the plan's topic is the one that it was made for. Raises LettersGone, and LogUnavailable while nobody
    knows: no answer doesn't mean that it is the same.
    """
    if not plan.topic_id:
        return
    now = topic_id(plan.topic)
    if not now:
        raise LettersUnavailable(f"no answer about the id of the topic {plan.topic}")
    if now != plan.topic_id:
        raise LettersGone(f"{plan.topic} was deleted and created again since this plan: plan anew")


def check_letters(log: LetterLog, plan: Plan, topic_id: TopicId) -> None:
    """Whether the topic is there, the same, and has all that the plan has pinned, but for what its retention took.

    Raises as `check_topic`.
    """
    partitions = log.topics().get(plan.topic, 0)
    if not partitions:
        raise LettersGone(f"the topic {plan.topic} is gone", for_good=False)
    check_topic(plan, topic_id)
    for span in plan.spans:
        if span.partition >= partitions or log.bounds(plan.topic, span.partition)[1] < span.end:
            raise shorter(plan, span.partition)


def shorter(plan: Plan, partition: int) -> LettersGone:
    """A log doesn't become shorter."""
    place = f"{plan.topic}/{partition}"
    return LettersGone(f"{place} is shorter than it was: it was deleted and created again, or lost records; plan anew")
