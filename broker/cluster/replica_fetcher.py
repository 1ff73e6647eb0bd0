"""A follower's side of replication: it fetches from leaders as consumers do, and keeps what it gets.

Partitions of one leader are asked for by one task, in one fetch for so many: a fetch looks at all it names whenever one
of them has something, and nobody else has a turn meanwhile. Thousands of partitions are several tasks. A fetch
tells the leader how far this replica is, and the leader's answer how far everything is committed. Where the histories
part, the leader says so and this replica cuts its own.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from broker.cluster.settings import BrokerSettings
from broker.log.loading import start_over_at
from broker.log.manager import LogManager
from purgatory import ReplicaManager, TopicPartition
from purgatory.delayed.delayed_fetch import FetchParams, FetchPartition
from purgatory.errors import ApiError, Errors, UnexpectedAppendOffset
from purgatory.log_offsets import EpochEndOffset, Isolation
from purgatory.replica_manager.fetch_reading import LogReadResult, ReadResults
from purgatory.replica_manager.partition_reader import ReplicaQuota

BACKOFF_S: Final = 0.1
NO_EPOCH: Final = -1
GROUP_PARTITIONS_MAX: Final = 64

_log = logging.getLogger(__name__)


class Leader(Protocol):
    """A broker that is followed."""

    replicas: ReplicaManager

    async def answer_of(self, start: Callable[[Callable[[ReadResults], None]], None]) -> ReadResults:
        """Wait for a delayed operation."""


@dataclass(slots=True, eq=False)
class _Group:
    """Partitions of one leader that are fetched together, in the order in which they came."""

    leader_id: int
    keys: dict[TopicPartition, None] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    committed: dict[TopicPartition, int] = field(default_factory=dict)  # the leader's high watermarks, as told last


class ReplicaFetcher:
    """Follows leaders for one broker. `find` gives a living broker by id, `epoch` is that of our registration, `quota`
    limits what is fetched of throttled partitions until they are in sync."""

    def __init__(
        self,
        replicas: ReplicaManager,
        logs: LogManager,
        settings: BrokerSettings,
        find: Callable[[int], Leader | None],
        epoch: Callable[[], int | None],
        quota: ReplicaQuota,
    ) -> None:
        self._replicas = replicas
        self._logs = logs
        self._settings = settings
        self._find = find
        self._epoch = epoch
        self._quota = quota
        self._groups: dict[int, list[_Group]] = {}
        self._group_of: dict[TopicPartition, _Group] = {}
        self._is_paused = False

    def follow(self, key: TopicPartition, leader_id: int) -> None:
        """Fetch this partition from that broker from now on."""
        group = self._group_of.get(key)
        if group is None or group.leader_id != leader_id:
            self.unfollow(key)
            group = self._group_of[key] = self._group_with_room(leader_id)
            group.keys[key] = None
        group.committed.pop(key, None)
        self._begin_again(group)

    def unfollow(self, key: TopicPartition) -> None:
        """Fetch a partition no longer: this broker leads it, nobody does, or it isn't hosted here any more."""
        group = self._group_of.pop(key, None)
        if group is None:
            return
        del group.keys[key]
        group.committed.pop(key, None)
        if not group.keys:
            self._groups[group.leader_id].remove(group)
        self._begin_again(group)

    def pause(self) -> None:
        """Fetch nothing, as a follower that hangs."""
        self._is_paused = True
        self._begin_all_again()

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._begin_all_again()

    def stop(self) -> None:
        """End all. Twice is harmless."""
        for key in list(self._group_of):
            self.unfollow(key)

    def _group_with_room(self, leader_id: int) -> "_Group":
        groups = self._groups.setdefault(leader_id, [])
        if not groups or len(groups[-1].keys) >= GROUP_PARTITIONS_MAX:
            groups.append(_Group(leader_id))
        return groups[-1]

    def _begin_all_again(self) -> None:
        for groups in self._groups.values():
            for group in groups:
                self._begin_again(group)

    def _begin_again(self, group: "_Group") -> None:
        """A fetch under way may wait for half a second, and doesn't know what has changed: it is given up."""
        task, group.task = group.task, None
        if task is not None:
            task.cancel()
        if group.keys and not self._is_paused:
            group.task = asyncio.get_running_loop().create_task(self._fetch(group))

    async def _fetch(self, group: "_Group") -> None:
        while True:
            leader = self._find(group.leader_id)
            keys = [
                key for key in group.keys if key in self._replicas.partitions and not self._is_held_back(group, key)
            ]
            wanted = [(key, self._wanted(key)) for key in keys]
            if leader is None or not wanted:
                await asyncio.sleep(BACKOFF_S)
                continue
            fetch = partial(leader.replicas.fetch_messages, self._params(), wanted)
            results = await leader.answer_of(fetch)
            group.committed.update((key, result.high_watermark) for key, result in results)
            is_well = self._take_all(leader, results, dict(wanted))
            # What is answered at once gives nobody else a turn: all brokers share this loop.
            await asyncio.sleep(0 if is_well else BACKOFF_S)

    def _is_held_back(self, group: "_Group", key: TopicPartition) -> bool:
        """Whether the limit holds a partition back: never one that has all that is committed, as far as it knows."""
        if not (self._quota.is_throttled(key) and self._quota.is_quota_exceeded()):
            return False
        return not 0 <= group.committed.get(key, -1) <= self._replicas.partitions[key].log.log_end_offset

    def _params(self) -> FetchParams:
        epoch = self._epoch()
        return FetchParams(
            replica_id=self._replicas.broker_id,
            max_wait_ms=self._settings.replica_fetch_wait_max_ms,
            max_bytes=self._settings.replica_fetch_response_max_bytes,
            isolation=Isolation.LOG_END,
            replica_epoch=-1 if epoch is None else epoch,
        )

    def _wanted(self, key: TopicPartition) -> FetchPartition:
        partition = self._replicas.partitions[key]
        latest = partition.log.epochs.latest_epoch
        return FetchPartition(
            partition.log.log_end_offset,
            self._settings.replica_fetch_max_bytes,
            partition.log.log_start_offset,
            partition.leader_epoch,
            None if latest == NO_EPOCH else latest,
            partition.topic_id,
        )

    def _take_all(self, leader: Leader, results: ReadResults, asked: Mapping[TopicPartition, FetchPartition]) -> bool:
        """Whether all went well."""
        is_well = True
        for key, result in results:
            partition = self._replicas.partitions.get(key)
            if partition is None or partition.is_leader or partition.log.log_end_offset != asked[key].fetch_offset:
                continue
            try:
                self._take(leader, key, result)
                # Who asks the same again gets the same error again.
                is_well = is_well and (_is_answered(result) or self._wanted(key) != asked[key])
            except (ApiError, OSError, UnexpectedAppendOffset):
                _log.exception("%s-%d could not be replicated", key.topic, key.partition)
                is_well = False
        return is_well

    def _take(self, leader: Leader, key: TopicPartition, result: LogReadResult) -> None:
        if result.diverging_epoch is not None:
            self._cut(key, result.diverging_epoch)
        elif result.error is Errors.NONE:
            records: Any = result.data.records
            data = records.read() if result.size else b""
            if self._quota.is_throttled(key):
                self._quota.record(key, len(data))
            self._replicas.append_as_follower(key, data, result.high_watermark, result.log_start_offset)
        elif result.error is Errors.OFFSET_OUT_OF_RANGE:
            self._follow_range(leader, key)

    def _cut(self, key: TopicPartition, diverging: EpochEndOffset) -> None:
        """Up to where both have the same history."""
        log = self._replicas.partitions[key].log
        own = log.epochs.end_offset_for(diverging.epoch, log.log_end_offset)
        end = diverging.end_offset if own.is_undefined else min(own.end_offset, diverging.end_offset)
        _log.info("%s-%d is cut from %d to %d", key.topic, key.partition, log.log_end_offset, end)
        self._replicas.truncate_to(key, end)

    def _follow_range(self, leader: Leader, key: TopicPartition) -> None:
        """The leader's log ends before this one, or begins after it."""
        theirs, own = leader.replicas.partition(key).log, self._replicas.partitions[key].log
        if own.log_end_offset > theirs.log_end_offset:
            self._replicas.truncate_to(key, theirs.log_end_offset)
        elif own.log_end_offset < theirs.log_start_offset:
            start_over_at(self._logs.logs[key].log, own, theirs.log_start_offset)


def _is_answered(result: LogReadResult) -> bool:
    """Whether the leader gave what there was, with no error and no other history."""
    return result.error is Errors.NONE and result.diverging_epoch is None
