"""Records of a partition beyond those that were read. Marks of transactions have offsets, too, and are no records."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec

from policies.kafka_clients import AdminClient, Consumer
from sidecar.kafka.client_settings import backlog_settings
from sidecar.model.record import TopicPartition

ANSWER_S: Final = 10.0
READ_S: Final = 5.0  # for the first record, or the end


class BacklogUnavailable(Exception):
    """The brokers don't answer."""


class Backlog:
    """Asks the brokers, each time with clients of its own: it is seldom asked. Both raise BacklogUnavailable."""

    def __init__(self, client: Mapping[str, Any], group: str) -> None:
        self._client = dict(client)
        self._group = group

    def ends(self, lanes: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """One after the last offset of each partition, what open transactions have written included.

        A partition without a leader is left out.
        """
        if not lanes:
            return {}
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        admin = AdminClient(self._client)  # it has to live until all have answered
        answers = admin.list_offsets(
            {ClientPartition(*lane): latest for lane in lanes},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=ANSWER_S,
        )
        found = {}
        for place, answer in answers.items():
            try:
                found[TopicPartition(place.topic, place.partition)] = int(answer.result(ANSWER_S + 1).offset)
            except KafkaException:
                continue
            except TimeoutError:
                raise BacklogUnavailable(f"no answer about the end of {place.topic}/{place.partition}") from None
        return found

    def unread(self, read: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        """Partitions with a record between their offsets (the next one to be read, and an end of `ends`), or that may
        get one when a transaction ends.
        """
        behind = {lane: bounds for lane, bounds in read.items() if bounds[0] < bounds[1]}
        if not behind:
            return set()
        consumer = Consumer(backlog_settings(self._client, self._group))
        try:
            return {lane for lane, bounds in behind.items() if _has_record(consumer, lane, *bounds)}
        except KafkaException as error:
            raise BacklogUnavailable(error.args[0].str()) from None
        finally:
            consumer.close()


def _has_record(consumer: Consumer, lane: TopicPartition, start: int, end: int) -> bool:
    consumer.assign([ClientPartition(*lane, start)])
    messages: Sequence[Any] = consumer.consume(1, READ_S)
    consumer.unassign()
    return not any(_is_behind(message, end) for message in messages)


def _is_behind(message: Any, end: int) -> bool:
    """A record, or the end of what can be read, at this offset or later. What is open ends earlier."""
    error = message.error()
    return message.offset() >= end if error is None or error.code() == KafkaError._PARTITION_EOF else False
