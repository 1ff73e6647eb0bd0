"""The group's consumer as the engine's port: where partitions start, and what its errors mean."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from sidecar.commit import decode_metadata
from sidecar.kafka import ANSWER_TIMEOUT_S, OnProblem, error_callback, is_fatal
from sidecar.ports import GroupEvents, Start
from sidecar.record import LaneId

log = logging.getLogger(__name__)


class SourceChangedError(Exception):
    """A source lost records that were read already, or was deleted and created again, while this process ran."""

    def __init__(self, topic: str, partition: int, wanted: int, end: int) -> None:
        self.topic, self.partition, self.wanted, self.end = topic, partition, wanted, end
        super().__init__(
            f"{topic}/{partition} ends at {end}, but was read up to {wanted}: the topic was created again or lost "
            "records. The process starts over with what the topic has now."
        )


class KafkaIntake:
    """The group's consumer as the engine's port.

    With `start_latest`, a source without a commit begins at its end instead of its beginning.
    """

    def __init__(
        self, settings: Mapping[str, Any], client: Mapping[str, str], start_latest: bool, on_problem: OnProblem
    ) -> None:
        self.events: GroupEvents
        self._start_latest = start_latest
        self._admin = AdminClient(dict(client))
        self._consumer = Consumer({**settings, "error_cb": error_callback(on_problem), "on_commit": self._on_commit})

    def subscribe(self, topics: Sequence[str]) -> None:
        """Consume these topics; callable again when the sources change."""
        if not topics:
            self._consumer.unsubscribe()
            self.events.assigned({})  # nothing to wait for: all there is to consume is consumed
            return
        self._consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def take(self, count: int) -> list[Message]:
        """At most `count` records, without waiting. Group events come from within."""
        messages = self._consumer.consume(count, 0)
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
                self._on_commit(None, self._consumer.commit(offsets=wanted, asynchronous=False) or [])
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

        What is raised in a callback comes out of `consume` or `close`: it ends the engine.
        """
        starts = self._starts(consumer, partitions) if partitions else {}
        consumer.incremental_assign(
            [TopicPartition(lane.topic, lane.partition, start.offset) for lane, start in starts.items()]
        )
        consumer.pause(_partitions(list(starts)))
        self.events.assigned(starts)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.events.revoked([LaneId(part.topic, part.partition) for part in partitions])
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.events.lost([LaneId(part.topic, part.partition) for part in partitions])
        consumer.incremental_unassign(partitions)

    def _starts(self, consumer: Consumer, partitions: list[TopicPartition]) -> dict[LaneId, Start]:
        topic_ids = self._topic_ids({partition.topic for partition in partitions})
        starts: dict[LaneId, Start] = {}
        for committed in consumer.committed(partitions, timeout=ANSWER_TIMEOUT_S):
            if committed.error is not None:
                raise KafkaException(committed.error)
            lane = LaneId(committed.topic, committed.partition)
            starts[lane] = self._start(consumer, committed, topic_ids.get(lane.topic, ""))
        return starts

    def _start(self, consumer: Consumer, committed: TopicPartition, topic_id: str) -> Start:
        state = decode_metadata(committed.offset, committed.metadata or "")
        known_id = state.topic_id if state is not None else ""
        try:
            first, end = consumer.get_watermark_offsets(committed, timeout=ANSWER_TIMEOUT_S, cached=False)
        except KafkaException as error:
            if committed.offset == OFFSET_INVALID:
                raise
            # No leader: one partition that can't be read yet doesn't keep this process from the others.
            log.warning(
                "no answer about a partition's log; reading begins at its commit once it has a leader",
                extra={"topic": committed.topic, "partition": committed.partition, "error": str(error.args[0])},
            )
            return Start(committed.offset, committed.metadata or "", topic_id or known_id)
        if committed.offset == OFFSET_INVALID:
            return Start(end if self._start_latest else first, "", topic_id)
        if committed.offset > end or (known_id and topic_id and known_id != topic_id):
            log.error(
                "this topic was deleted and created again, or lost records: its old commit is not used",
                extra={"topic": committed.topic, "partition": committed.partition, "committed": committed.offset},
            )
            return Start(first, "", topic_id)
        offset = max(committed.offset, first)
        return Start(offset, committed.metadata or "", topic_id or known_id, lost=offset - committed.offset)

    def _topic_ids(self, topics: set[str]) -> dict[str, str]:
        """Kafka's ids of topics; a broker that has none to give (before 2.8, or the mock) gives an empty answer."""
        cluster = self._admin.list_topics(next(iter(topics)), timeout=ANSWER_TIMEOUT_S)
        if cluster.controller_id not in cluster.brokers:
            return {}  # the mock: it has no controller, and the client would wait for one until the time is up
        answers = self._admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=ANSWER_TIMEOUT_S)
        ids: dict[str, str] = {}
        for topic, answer in answers.items():
            try:
                ids[topic] = str(answer.result(ANSWER_TIMEOUT_S + 1).topic_id)  # the request's own limit comes first
            except (KafkaException, TimeoutError) as error:
                log.warning("no answer about a topic", extra={"topic": topic, "error": str(error)})
        return ids

    # --- errors ---------------------------------------------------------------------------------------------------

    def _is_error(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._to_log_start(message, error)
            return True
        if is_fatal(error):  # such as fenced by another process with the same instance id
            raise KafkaException(error)
        log.warning("consumer", extra={"error": str(error)})
        return True

    def _to_log_start(self, message: Message, error: KafkaError) -> None:
        """The source's retention overtook us while we were reading: go on at its start, and say so.

        A log that ends before what was read already is another one: what is known of the old one must not be taken
        for the new one's. Recovery sorts that out, so the process ends and starts over.
        """
        topic, partition, wanted = message.topic() or "", message.partition() or 0, message.offset() or 0
        place = TopicPartition(topic, partition, OFFSET_BEGINNING)
        first, end = self._consumer.get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S, cached=False)
        if first < wanted:
            raise SourceChangedError(topic, partition, wanted, end)
        log.error(
            "records were deleted by the source's retention before they were read; reading on at its start",
            extra={"topic": topic, "partition": partition, "error": str(error)},
        )
        self._consumer.seek(place)

    @staticmethod
    def _on_commit(error: KafkaError | None, places: list[TopicPartition]) -> None:
        failed = {str(place.error) for place in places if place.error is not None}
        if error is not None or failed:
            log.warning("commit failed; the ledger makes up for it", extra={"error": str(error or sorted(failed))})


def _partitions(lanes: Sequence[LaneId]) -> list[TopicPartition]:
    return [TopicPartition(lane.topic, lane.partition) for lane in lanes]
