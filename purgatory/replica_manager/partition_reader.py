"""Reading one partition for a fetch: checks in Kafka's order, then the log, then what the fetch says of a follower."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from purgatory.delayed.delayed_fetch import FetchParams, FetchPartition, FetchSnapshot
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import EpochEndOffset, LogOffsetSnapshot, TopicPartition
from purgatory.partition.partition import Moved, Partition
from purgatory.partition.partition_reading import (
    check_epoch,
    check_follower,
    diverging_epoch,
    fetch_offset_snapshot,
    last_offset_for_leader_epoch,
)
from purgatory.partition.replica import FollowerFetch
from purgatory.partition.replica_log import FetchDataInfo
from purgatory.replica_manager.fetch_reading import LogReadResult
from purgatory.replica_manager.replica_selector import ReplicaSelector, replica_views

_log = logging.getLogger(__name__)


class ReplicaQuota(Protocol):
    """A limit on the bytes for followers that are behind."""

    def is_throttled(self, key: TopicPartition) -> bool:
        """Whether the limit is about this partition."""

    def is_quota_exceeded(self) -> bool:
        """Whether the limit is reached."""

    def record(self, key: TopicPartition, size: int) -> None:
        """Count `size` bytes of a throttled partition that went to a follower, in sync or not."""


class NoQuota:
    """No limit."""

    def is_throttled(self, key: TopicPartition) -> bool:
        """No partition is."""
        return False

    def is_quota_exceeded(self) -> bool:
        """Never."""
        return False

    def record(self, key: TopicPartition, size: int) -> None:
        """Nothing counts."""


@dataclass(frozen=True, slots=True)
class ReadingSettings:
    """Settings of reads: which replica consumers are sent to (None: they stay), the racks of brokers, the limit on
    followers."""

    select_replica: ReplicaSelector | None = None
    rack_of: Callable[[int], str] = field(default=lambda broker_id: "")
    quota: ReplicaQuota = field(default_factory=NoQuota)


class PartitionReader:
    """Reads partitions that `find` finds. `moved` is told what a follower's fetch has moved."""

    def __init__(
        self,
        find: Callable[[TopicPartition], Partition],
        clock: Callable[[], float],
        settings: ReadingSettings,
        moved: Callable[[TopicPartition, Moved], None],
    ) -> None:
        self._find = find
        self._clock = clock
        self._settings = settings
        self._moved = moved

    def read(
        self,
        params: FetchParams,
        key: TopicPartition,
        wanted: FetchPartition,
        max_bytes: int,
        min_one_message: bool,
    ) -> LogReadResult:
        """The first read: a follower's tells where it is, a consumer may be sent elsewhere."""
        return self._read(params, key, wanted, (max_bytes, min_one_message), is_first=True)

    def read_again(
        self,
        params: FetchParams,
        key: TopicPartition,
        wanted: FetchPartition,
        max_bytes: int,
        min_one_message: bool,
    ) -> LogReadResult:
        """The read after a wait: it says nothing new about the follower."""
        return self._read(params, key, wanted, (max_bytes, min_one_message), is_first=False)

    def look(self, params: FetchParams, key: TopicPartition, wanted: FetchPartition) -> FetchSnapshot:
        """The partition as a waiting fetch sees it."""
        epoch_end: EpochEndOffset | Errors | None = None
        try:
            partition = self._find(key)
            ends = fetch_offset_snapshot(partition, wanted.current_leader_epoch, leader_only=params.fetch_only_leader)
        except ApiError as error:
            return FetchSnapshot(error.error)
        if wanted.last_fetched_epoch is not None:
            try:
                epoch_end = last_offset_for_leader_epoch(
                    partition, wanted.current_leader_epoch, wanted.last_fetched_epoch, leader_only=False
                )
            except ApiError as error:
                epoch_end = error.error
        return FetchSnapshot(Errors.NONE, ends, epoch_end, self._is_throttled(params, key, partition))

    def _read(
        self,
        params: FetchParams,
        key: TopicPartition,
        wanted: FetchPartition,
        limits: tuple[int, bool],
        *,
        is_first: bool,
    ) -> LogReadResult:
        try:
            partition = self._find(key)
            self._check(params, partition, wanted)
            before = partition.log.snapshot()
            preferred = self._preferred(params, partition, wanted.fetch_offset) if is_first else None
            if preferred is not None:
                return replace(_of(before, FetchDataInfo(before.log_end)), preferred_read_replica=preferred)
            diverging = diverging_epoch(
                partition, wanted.current_leader_epoch, wanted.last_fetched_epoch, wanted.fetch_offset
            )
            if diverging is not None:
                return replace(_of(before, FetchDataInfo(before.log_end)), diverging_epoch=diverging)
            data, aborted = partition.log.read(
                wanted.fetch_offset, limits[0], params.isolation, min_one_message=limits[1]
            )
            result = replace(_of(before, data), aborted_transactions=tuple(aborted))
            if params.is_from_follower and is_first:
                self._follower_fetched(params, key, partition, wanted, before.log_end.offset)
        except ApiError as error:
            return LogReadResult(error.error)
        except Exception:  # noqa: BLE001 - answered, and the other partitions are not to blame
            _log.exception("a read failed")
            return LogReadResult(Errors.UNKNOWN_SERVER_ERROR)
        return self._limited(params, key, partition, result)

    def _check(self, params: FetchParams, partition: Partition, wanted: FetchPartition) -> None:
        if wanted.topic_id is not None and partition.topic_id not in (None, wanted.topic_id):
            raise ApiError(Errors.INCONSISTENT_TOPIC_ID)
        check_epoch(partition, wanted.current_leader_epoch, leader_only=params.fetch_only_leader)
        if params.is_from_follower:
            check_follower(partition, params.replica_id, wanted.current_leader_epoch)

    def _follower_fetched(
        self, params: FetchParams, key: TopicPartition, partition: Partition, wanted: FetchPartition, log_end: int
    ) -> None:
        place = partition.log.storage.locate(wanted.fetch_offset)
        fetch = FollowerFetch(params.replica_id, place, wanted.log_start_offset, params.replica_epoch)
        self._moved(key, partition.update_follower_fetch_state(fetch, log_end, self._clock()))

    def _limited(
        self, params: FetchParams, key: TopicPartition, partition: Partition, result: LogReadResult
    ) -> LogReadResult:
        if self._is_throttled(params, key, partition):
            return replace(result, data=FetchDataInfo(result.data.start))
        if result.data.first_entry_incomplete and not params.hard_max_bytes_limit:
            return replace(result, data=FetchDataInfo(result.data.start))
        if params.is_from_follower and self._settings.quota.is_throttled(key):
            self._settings.quota.record(key, result.size)
        return result

    def _is_throttled(self, params: FetchParams, key: TopicPartition, partition: Partition) -> bool:
        """Whether a follower gets nothing for now. One that is in sync is never held back: acks=-1 waits for it."""
        quota = self._settings.quota
        return (
            params.is_from_follower
            and params.replica_id not in partition.state.isr
            and quota.is_throttled(key)
            and quota.is_quota_exceeded()
        )

    def _preferred(self, params: FetchParams, partition: Partition, fetch_offset: int) -> int | None:
        select = self._settings.select_replica
        if select is None or params.is_from_follower or params.client_metadata is None or not partition.is_leader:
            return None
        chosen = select(params.client_metadata, replica_views(partition, fetch_offset, self._settings.rack_of))
        return None if chosen is None or chosen.is_leader else chosen.broker_id


def _of(ends: LogOffsetSnapshot, data: FetchDataInfo) -> LogReadResult:
    return LogReadResult(Errors.NONE, data, ends.high_watermark.offset, ends.last_stable.offset, ends.log_start_offset)
