"""Kafka's clients: their settings, and the engine's ports over confluent-kafka.

Settings that users may override come first in a mapping, those that a guarantee rests on come last. Figures behind
the buffers: see benchmarks/README.md.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from sidecar.commit import decode_metadata
from sidecar.ports import GroupEvents, Start
from sidecar.record import LaneId

log = logging.getLogger(__name__)
client_log = logging.getLogger("librdkafka")

ANSWER_TIMEOUT_S: Final = 10.0
OnProblem = Callable[[str], None]

_CONSUMER_DEFAULTS: Final = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "2000",
    "queued.min.messages": "100000",
    "queued.max.messages.kbytes": "131072",
    "fetch.queue.backoff.ms": "10",
    "fetch.wait.max.ms": "10",
    "reconnect.backoff.max.ms": "1000",
}
_CONSUMER_FIXED: Final = {
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",  # where a lane starts is recovery's decision, never the client's
    "isolation.level": "read_committed",
    "allow.auto.create.topics": "false",
}
_PRODUCER_DEFAULTS: Final = {
    "linger.ms": "5",
    "batch.size": "1000000",
    "message.max.bytes": "1048588",  # what a broker takes by default: the client's own default is less
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": "1048576",
    "compression.type": "lz4",
    "topic.metadata.propagation.max.ms": "5000",
    "reconnect.backoff.max.ms": "1000",
}
_PRODUCER_FIXED: Final = {
    "enable.idempotence": "true",
    "acks": "all",
    "message.timeout.ms": "0",  # brokers that are away are waited for; the wheel's limits do the rest
    "partitioner": "murmur2_random",  # as Java's
    "allow.auto.create.topics": "false",
}


def consumer_settings(client: Mapping[str, str], group: str, instance_id: str) -> dict[str, Any]:
    """Settings of the consumer of the source topics."""
    own = {"group.id": group, **({"group.instance.id": instance_id} if instance_id else {})}
    return {**_CONSUMER_DEFAULTS, **client, **_CONSUMER_FIXED, **own}


def producer_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the producer of emissions and ledger blocks."""
    return {**_PRODUCER_DEFAULTS, **client, **_PRODUCER_FIXED}


def lone_producer_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the producer that sends every record in a batch of its own: see `emission.py`, refused."""
    return {**producer_settings(client), "batch.num.messages": "1", "linger.ms": "0"}


class KafkaOutput:
    """A producer as the engine's port. Its bound methods are the client's own: nothing stands in the hot path."""

    refused: type[Exception] = KafkaException

    def __init__(self, settings: Mapping[str, Any], on_problem: OnProblem) -> None:
        self._producer = Producer({**settings, "error_cb": error_callback(on_problem), "logger": client_log})
        self.produce: Any = self._producer.produce  # its stub knows nothing of the order of arguments
        self.poll = self._producer.poll

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 when there is none or we may not see it. Blocks: not for the engine."""
        try:
            known = self._producer.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            log.warning("no answer about a topic", extra={"topic": topic, "error": str(error.args[0])})
            return 0
        return 0 if known.error is not None else len(known.partitions)

    def flush(self, seconds: float) -> int:
        """Wait for what is queued; returns how many records are left."""
        return self._producer.flush(seconds)


class LoneOutput:
    """`KafkaOutput` for records sent one by one, made when the first is sent: most processes never need it."""

    refused: type[Exception] = KafkaException

    def __init__(self, settings: Mapping[str, Any], on_problem: OnProblem) -> None:
        self._settings = settings
        self._on_problem = on_problem
        self._output: KafkaOutput | None = None

    def produce(self, *record: Any) -> None:
        """As `Output.produce`."""
        if self._output is None:
            self._output = KafkaOutput(self._settings, self._on_problem)
        self._output.produce(*record)

    def poll(self, seconds: float) -> int:
        """As `Output.poll`."""
        return 0 if self._output is None else self._output.poll(seconds)


class KafkaIntake:
    """The group's consumer as the engine's port.

    With `start_latest`, a source without a commit begins at its end instead of its beginning.
    """

    def __init__(
        self, settings: Mapping[str, Any], client: Mapping[str, str], start_latest: bool, on_problem: OnProblem
    ) -> None:
        self.events: GroupEvents
        self._start_latest = start_latest
        self._failure: KafkaException | None = None
        self._admin = AdminClient(dict(client))
        self._consumer = Consumer({**settings, "error_cb": error_callback(on_problem), "on_commit": self._on_commit})

    def subscribe(self, topics: Sequence[str]) -> None:
        """Consume these topics; callable again when the sources change."""
        if not topics:
            self._consumer.unsubscribe()
            return
        self._consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def take(self, count: int) -> list[Message]:
        """At most `count` records, without waiting. Group events come from within."""
        messages = self._consumer.consume(count, 0)
        if self._failure is not None:
            raise self._failure
        if any(message.error() is not None for message in messages):
            messages = [message for message in messages if not self._is_error(message)]
        return messages

    def pause(self, lanes: Sequence[LaneId]) -> None:
        """Fetch nothing more of these for now."""
        self._consumer.pause(_partitions(lanes))

    def resume(self, lanes: Sequence[LaneId]) -> None:
        """Fetch on."""
        self._consumer.resume(_partitions(lanes))

    def commit(self, offsets: Mapping[LaneId, tuple[int, str]], wait: bool) -> None:
        """Commit with metadata. Without `wait` a failure is logged and the next commit makes up for it."""
        wanted = [
            TopicPartition(lane.topic, lane.partition, offset, metadata) for lane, (offset, metadata) in offsets.items()
        ]
        try:
            if wait:
                self._consumer.commit(offsets=wanted, asynchronous=False)
            else:
                self._consumer.commit(offsets=wanted, asynchronous=True)
        except KafkaException as error:
            log.warning("commit failed; the ledger makes up for it", extra={"error": str(error.args[0])})

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    # --- rebalances, on the engine's thread, within `take` --------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """New partitions: found where they start, assigned, and paused until their lanes are recovered.

        An exception can't leave a callback of the client: it is kept and raised by `take`.
        """
        try:
            starts = self._starts(consumer, partitions) if partitions else {}
            consumer.incremental_assign(
                [TopicPartition(lane.topic, lane.partition, start.offset) for lane, start in starts.items()]
            )
            consumer.pause(_partitions(list(starts)))
        except KafkaException as error:
            self._failure = error
            return
        self.events.assigned(starts)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.events.revoked([LaneId(part.topic, part.partition) for part in partitions])
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.events.lost([LaneId(part.topic, part.partition) for part in partitions])
        consumer.incremental_unassign(partitions)

    def _starts(self, consumer: Consumer, partitions: list[TopicPartition]) -> dict[LaneId, Start]:
        starts: dict[LaneId, Start] = {}
        topic_ids = self._topic_ids({partition.topic for partition in partitions})
        for committed in consumer.committed(partitions, timeout=ANSWER_TIMEOUT_S):
            if committed.error is not None:
                raise KafkaException(committed.error)
            lane = LaneId(committed.topic, committed.partition)
            first, end = consumer.get_watermark_offsets(committed, timeout=ANSWER_TIMEOUT_S, cached=False)
            topic_id = topic_ids.get(lane.topic, "")
            if committed.offset == OFFSET_INVALID:
                starts[lane] = Start(end if self._start_latest else first, "", topic_id)
            elif _is_former(committed, topic_id, end):
                log.error(
                    "this topic was deleted and created again, or lost records: its old commit is not used",
                    extra={"topic": lane.topic, "partition": lane.partition, "committed": committed.offset},
                )
                starts[lane] = Start(first, "", topic_id)
            else:
                offset = max(committed.offset, first)
                starts[lane] = Start(offset, committed.metadata or "", topic_id, lost=offset - committed.offset)
        return starts

    def _topic_ids(self, topics: set[str]) -> dict[str, str]:
        """Kafka's ids of topics; a broker that has none to give (before 2.8, or the mock) gives an empty answer."""
        answers = self._admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=ANSWER_TIMEOUT_S)
        ids: dict[str, str] = {}
        for topic, answer in answers.items():
            try:
                ids[topic] = str(answer.result(ANSWER_TIMEOUT_S).topic_id)
            except KafkaException as error:
                log.warning("no answer about a topic", extra={"topic": topic, "error": str(error.args[0])})
        return ids

    # --- errors ---------------------------------------------------------------------------------------------------

    def _is_error(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._to_log_start(message, error)
            return True
        if error.fatal():
            raise KafkaException(error)
        log.warning("consumer", extra={"error": str(error)})
        return True

    def _to_log_start(self, message: Message, error: KafkaError) -> None:
        """The source's retention overtook us while we were reading: go on at its start, and say so."""
        topic, partition = message.topic() or "", message.partition() or 0
        log.error(
            "records were deleted by the source's retention before they were read; reading on at its start",
            extra={"topic": topic, "partition": partition, "error": str(error)},
        )
        self._consumer.seek(TopicPartition(topic, partition, OFFSET_BEGINNING))

    @staticmethod
    def _on_commit(error: KafkaError | None, _: list[TopicPartition]) -> None:
        if error is not None:
            log.warning("commit failed; the ledger makes up for it", extra={"error": str(error)})


def error_callback(on_problem: OnProblem) -> Callable[[KafkaError], None]:
    """Clients report here what they recover from by themselves: it shows in /readyz and in the log."""

    def report(error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            on_problem("all brokers are down")
        log.warning("kafka client", extra={"error": str(error)})

    return report


def _is_former(committed: TopicPartition, topic_id: str, end: int) -> bool:
    """Whether a commit belongs to an earlier topic of the same name, or to records that the topic no longer has."""
    state = decode_metadata(committed.offset, committed.metadata or "")
    known = state.topic_id if state is not None else ""
    return committed.offset > end or bool(known and topic_id and known != topic_id)


def _partitions(lanes: Sequence[LaneId]) -> list[TopicPartition]:
    return [TopicPartition(lane.topic, lane.partition) for lane in lanes]
