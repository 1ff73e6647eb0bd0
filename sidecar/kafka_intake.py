"""The group's consumer as the engine's port, and what its errors mean."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from sidecar.kafka import ANSWER_TIMEOUT_S, OnProblem, error_callback, is_fatal
from sidecar.ports import GroupEvents
from sidecar.record import LaneId

log = logging.getLogger(__name__)

UNREAD: Final = 0  # where a partition is assigned, paused: a number, because for any other word the brokers are asked


class SourceChangedError(Exception):
    """A source lost records that were read already, or was deleted and created again, while this process ran."""

    def __init__(self, topic: str, partition: int, wanted: int, end: int) -> None:
        self.topic, self.partition, self.wanted, self.end = topic, partition, wanted, end
        super().__init__(
            f"{topic}/{partition} ends at {end}, but was read up to {wanted}: the topic was created again or lost "
            "records. The process starts over with what the topic has now."
        )


class KafkaIntake:
    """The group's consumer as the engine's port."""

    def __init__(self, settings: Mapping[str, Any], on_problem: OnProblem) -> None:
        self.events: GroupEvents
        self._paused: set[LaneId] = set()
        self._unread: set[LaneId] = set()  # assigned, and where they begin isn't known yet
        self._consumer = Consumer({**settings, "error_cb": error_callback(on_problem), "on_commit": self._on_commit})

    def subscribe(self, topics: Sequence[str]) -> None:
        """Consume these topics; callable again when the sources change."""
        if not topics:
            self._consumer.unsubscribe()
            self.events.assigned([])  # nothing to wait for: all there is to consume is consumed
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
        self._paused.update(lanes)
        self._consumer.pause(_partitions(lanes))

    def resume(self, lanes: Sequence[LaneId]) -> None:
        """Fetch on."""
        self._paused.difference_update(lanes)
        self._consumer.resume(_partitions(lanes))

    def begin(self, offsets: Mapping[LaneId, int]) -> None:
        """From where each of these is read, now that it is known. They stay paused."""
        for lane, offset in offsets.items():
            self._unread.discard(lane)
            self._read_from(lane, offset)

    def _read_from(self, lane: LaneId, offset: int) -> None:
        """Seek. A partition whose offset was out of range the client has given up: assigned anew, it starts again."""
        place = TopicPartition(lane.topic, lane.partition, offset)
        try:
            self._consumer.seek(place)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            self._consumer.incremental_unassign(_partitions([lane]))
            self._consumer.incremental_assign([place])
            if lane in self._paused:
                self._consumer.pause(_partitions([lane]))

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

    def member(self) -> Any:
        """The consumer's group metadata."""
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    # --- rebalances, on the engine's thread, within `take` --------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """New partitions, paused until their lanes are recovered and `begin` says where they are read from.

        What is raised in a callback comes out of `consume` or `close`: it ends the engine.
        """
        lanes = [LaneId(part.topic, part.partition) for part in partitions]
        self._unread.update(lanes)
        consumer.incremental_assign([TopicPartition(lane.topic, lane.partition, UNREAD) for lane in lanes])
        self.pause(lanes)
        self.events.assigned(lanes)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        lanes = [LaneId(part.topic, part.partition) for part in partitions]
        self.events.revoked(lanes)
        self._forget(lanes)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        lanes = [LaneId(part.topic, part.partition) for part in partitions]
        self.events.lost(lanes)
        self._forget(lanes)
        consumer.incremental_unassign(partitions)

    def _forget(self, lanes: Sequence[LaneId]) -> None:
        self._paused.difference_update(lanes)
        self._unread.difference_update(lanes)

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
        if LaneId(topic, partition) in self._unread:
            return  # fetched before it was paused: `begin` says from where it is read
        place = TopicPartition(topic, partition, OFFSET_BEGINNING)
        first, end = self._consumer.get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S, cached=False)
        if first < wanted:
            raise SourceChangedError(topic, partition, wanted, end)
        log.error(
            "records were deleted by the source's retention before they were read; reading on at its start",
            extra={"topic": topic, "partition": partition, "error": str(error)},
        )
        self._read_from(LaneId(topic, partition), first)

    @staticmethod
    def _on_commit(error: KafkaError | None, places: list[TopicPartition]) -> None:
        failed = {str(place.error) for place in places if place.error is not None}
        if error is not None or failed:
            log.warning("commit failed; the ledger makes up for it", extra={"error": str(error or sorted(failed))})


def _partitions(lanes: Sequence[LaneId]) -> list[TopicPartition]:
    return [TopicPartition(lane.topic, lane.partition) for lane in lanes]
