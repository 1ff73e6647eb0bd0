"""A follower's side of replication: it fetches from leaders as consumers do, and keeps what it gets.

Each leader that has something to be followed is asked by one task, in one fetch for all its partitions. That fetch
tells the leader how far this replica is, and the leader's answer how far everything is committed. Where the histories
part, the leader says so and this replica cuts its own.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from broker.log_loading import start_over_at
from broker.log_manager import LogManager
from broker.settings import BrokerSettings
from purgatory import ReplicaManager, TopicPartition
from purgatory.delayed_fetch import FetchParams, FetchPartition
from purgatory.errors import ApiError, Errors, UnexpectedAppendOffset
from purgatory.fetch_reading import LogReadResult, ReadResults
from purgatory.log_offsets import EpochEndOffset, Isolation

BACKOFF_S: Final = 0.1
NO_EPOCH: Final = -1

_log = logging.getLogger(__name__)


class Leader(Protocol):
    """A broker that is followed."""

    replicas: ReplicaManager

    async def answer_of(self, start: Callable[[Callable[[ReadResults], None]], None]) -> ReadResults:
        """Wait for a delayed operation."""


class ReplicaFetcher:
    """Follows leaders for one broker. `find` gives a living broker by id, `epoch` is that of our registration."""

    def __init__(
        self,
        replicas: ReplicaManager,
        logs: LogManager,
        settings: BrokerSettings,
        find: Callable[[int], Leader | None],
        epoch: Callable[[], int | None],
    ) -> None:
        self._replicas = replicas
        self._logs = logs
        self._settings = settings
        self._find = find
        self._epoch = epoch
        self._leaders: dict[TopicPartition, int] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_paused = False

    def follow(self, key: TopicPartition, leader_id: int) -> None:
        """Fetch this partition from that broker from now on."""
        former = self._leaders.get(key, leader_id)
        self._leaders[key] = leader_id
        self._begin_again({former, leader_id})

    def unfollow(self, key: TopicPartition) -> None:
        """This broker leads it, nobody does, or it is hosted no longer."""
        former = self._leaders.pop(key, None)
        if former is not None:
            self._begin_again({former})

    def pause(self) -> None:
        """Fetch nothing, as a follower that hangs."""
        self._is_paused = True
        self._begin_again(set(self._tasks))

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._begin_again(set(self._leaders.values()))

    def stop(self) -> None:
        """End all. Twice is harmless."""
        self._leaders.clear()
        self._begin_again(set(self._tasks))

    def _begin_again(self, leader_ids: set[int]) -> None:
        """A fetch under way may wait for half a second, and doesn't know what has changed: it is given up."""
        for leader_id in leader_ids:
            task = self._tasks.pop(leader_id, None)
            if task is not None:
                task.cancel()
            if leader_id in self._leaders.values() and not self._is_paused:
                self._tasks[leader_id] = asyncio.get_running_loop().create_task(self._fetch_from(leader_id))

    async def _fetch_from(self, leader_id: int) -> None:
        while True:
            leader = self._find(leader_id)
            keys = [key for key, followed in self._leaders.items() if followed == leader_id]
            wanted = [(key, self._wanted(key)) for key in keys if key in self._replicas.partitions]
            if leader is None or not wanted:
                await asyncio.sleep(BACKOFF_S)
                continue
            fetch = partial(leader.replicas.fetch_messages, self._params(), wanted)
            results = await leader.answer_of(fetch)
            is_well = self._take_all(leader, results, dict(wanted))
            # What is answered at once gives nobody else a turn: all brokers share this loop.
            await asyncio.sleep(0 if is_well else BACKOFF_S)

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
