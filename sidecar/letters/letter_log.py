"""Reading dead-letter topics by a consumer of one's own, that joins no group and commits nothing."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sidecar.jobs.reader import ANSWER_S, READER, LogUnavailable, read
from sidecar.letters.letter import Letter, letter_of


class LettersUnavailable(LogUnavailable):
    """Kafka doesn't answer about dead letters."""


class LetterLog(Protocol):
    """Dead-letter topics as one reader sees them. All but `close` raise LettersUnavailable."""

    def topics(self) -> dict[str, int]:
        """All topics of the cluster with their partition counts."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset, and one after the last that is committed."""

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """The first offset with this timestamp or a later one; None when there is none."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[Letter]]:
        """Batches from `start` to before `end`; empty batches are signs of life."""

    def close(self) -> None: ...


class KafkaLetterLog:
    """`LetterLog` of real topics; for one thread at a time."""

    def __init__(self, client: Mapping[str, Any], group: str) -> None:
        # The client wants a group's name even to read without one.
        self._consumer = Consumer({**client, **READER, "group.id": f"{group}.letters"})

    def topics(self) -> dict[str, int]:
        try:
            topics = self._consumer.list_topics(timeout=ANSWER_S).topics
        except KafkaException as error:
            raise LettersUnavailable(error.args[0].str()) from None
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.partitions}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        try:
            return self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
        except KafkaException as error:
            raise LettersUnavailable(error.args[0].str()) from None

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        try:
            [found] = self._consumer.offsets_for_times([TopicPartition(topic, partition, time_ms)], timeout=ANSWER_S)
        except KafkaException as error:
            raise LettersUnavailable(error.args[0].str()) from None
        return found.offset if found.offset >= 0 else None

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[Letter]]:
        try:
            for messages in read(self._consumer, (topic, partition), start, end):
                yield [letter_of(message) for message in messages]
        except LogUnavailable as error:
            raise LettersUnavailable(str(error)) from None

    def close(self) -> None:
        self._consumer.close()
