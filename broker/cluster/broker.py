"""One broker of a cluster: its logs, its replicas, and what it does when the controller has decided something.

Handlers get it as their first argument. It belongs to the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from broker.cluster.cluster_metadata import NO_LEADER, ClusterMetadata, PartitionRegistration, Topic
from broker.cluster.controller import Controller
from broker.cluster.coordinators import Coordinators
from broker.cluster.replica_fetcher import ReplicaFetcher
from broker.cluster.replication_quota import RATES, ReplicationQuota
from broker.cluster.settings import BrokerSettings
from broker.cluster.topic_config import FOLLOWER_THROTTLED, LEADER_THROTTLED, log_config, throttled_partitions, value_of
from broker.log.log import Log
from broker.log.manager import LogManager
from broker.protocol.fetch_session import FetchSessionCache
from purgatory import (
    ApiError,
    Errors,
    Partition,
    PartitionSettings,
    ReplicaManager,
    Surroundings,
    SystemTimer,
    TimerDriver,
    TopicPartition,
)
from purgatory.partition.isr import AlterPartition
from purgatory.replica_manager.partition_reader import ReadingSettings
from purgatory.replica_manager.replica_selector import select_rack_aware
from purgatory.timer.clock import hi_res_clock_ms

Answer = TypeVar("Answer")
LeadershipListener = Callable[[TopicPartition, PartitionRegistration | None], None]
"""Told of every change of a partition, after the replica has taken it in; None: its topic was deleted."""

TURN_S: Final = 0.02
"""What work on thousands of partitions may take of the event loop at once."""

_log = logging.getLogger(__name__)


class Broker:
    """`clock` gives wall-clock time in ms, `directory` is where its logs are, `peers` are the living brokers by id."""

    def __init__(
        self,
        broker_id: int,
        controller: Controller,
        settings: BrokerSettings,
        directory: Path,
        clock: Callable[[], float],
        peers: Mapping[int, "Broker"],
    ) -> None:
        self.broker_id = broker_id
        self.controller = controller
        self.metadata: ClusterMetadata = controller.metadata
        self.settings = settings
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.driver = TimerDriver(self.loop.call_later)
        self.logs = LogManager(directory, clock)
        self.leader_quota, self.follower_quota = (
            ReplicationQuota(hi_res_clock_ms, partial(self._rate, name)) for name in RATES
        )
        self.replicas = ReplicaManager(
            broker_id,
            Surroundings(hi_res_clock_ms, SystemTimer, self.metadata, self._alter_partition, self._reading_settings()),
        )
        epoch = partial(self.metadata.broker_epoch, broker_id)
        self.fetcher = ReplicaFetcher(self.replicas, self.logs, settings, peers.get, epoch, self.follower_quota)
        self.fetch_sessions = FetchSessionCache(settings.max_fetch_sessions, controller.draw)
        self.peers = peers
        self.coordinators = Coordinators(self)
        self.leadership_listeners: list[LeadershipListener] = [self.coordinators.leadership_changed]
        self._periodic: list[asyncio.TimerHandle] = []
        for driven in (*self.replicas.purgatories, *self.coordinators.driven):
            self.driver.drive(driven)

    def start(self) -> None:
        """Look after logs and replicas from now on."""
        self._repeat(self.settings.log_retention_check_interval_ms, lambda: self._go_through(self.logs.looking_after()))
        self._repeat(self.settings.log_flush_interval_ms, lambda: self._go_through(self.logs.flushing()))
        self._repeat(self.settings.replica_lag_time_max_ms // 2, self.replicas.maybe_shrink_isr)
        self._repeat(self.settings.offsets_retention_check_interval_ms, self.coordinators.group_store.expire_offsets)
        transactions = self.coordinators.transactions
        self._repeat(self.settings.transaction_abort_timed_out_interval_ms, transactions.abort_timed_out)
        self._repeat(self.settings.transaction_remove_expired_interval_ms, transactions.expire_ids)

    def stop(self) -> None:
        """Write everything down. Twice is harmless."""
        self.halt()
        self.logs.close()

    def halt(self) -> None:
        """Do nothing any more, without a word to anybody."""
        self.coordinators.stop()
        self.fetcher.stop()
        self.driver.stop()
        for handle in self._periodic:
            handle.cancel()
        self._periodic.clear()

    async def answer_of(self, start: Callable[[Callable[[Answer], None]], None]) -> Answer:
        """Wait for a delayed operation: `start` is given the function to be called with its answer.

            results = await broker.answer_of(partial(broker.replicas.append_records, timeout_ms, acks, entries))

        Whoever waits may be gone when the answer comes (its connection was closed): then nobody gets it.
        """
        future: asyncio.Future[Answer] = self.loop.create_future()
        start(partial(_settle, future))
        self.replicas.try_complete_actions()
        return await future

    async def share(self, began_s: float) -> float:
        """Let others have their turn if this one began more than TURN_S ago. When the turn that goes on now began, by
        the event loop's clock."""
        if self.loop.time() - began_s < TURN_S:
            return began_s
        await asyncio.sleep(0)
        return self.loop.time()

    # What the controller says

    def partition_changed(self, key: TopicPartition, partition: PartitionRegistration) -> None:
        """Host it, lead it, follow, or let it go."""
        if self.broker_id in partition.replicas:
            try:
                if key not in self.replicas.partitions:
                    self._host(key)
                self.replicas.become(key, partition.assignment)
                self._follow(key, partition.leader)
            except (ApiError, OSError):
                _log.exception("%s-%d can't be opened", key.topic, key.partition)
                self.replicas.mark_offline(key)
        elif key in self.replicas.partitions:
            self._let_go([key])
        for listener in self.leadership_listeners:
            listener(key, partition)

    def _follow(self, key: TopicPartition, leader: int) -> None:
        if leader in (NO_LEADER, self.broker_id):
            self.fetcher.unfollow(key)
        else:
            self.fetcher.follow(key, leader)

    def topic_deleted(self, topic: Topic) -> None:
        """Remove its logs, and answer whoever waits for them."""
        for quota in (self.leader_quota, self.follower_quota):
            quota.throttle(topic.name, frozenset())
        keys = [TopicPartition(topic.name, number) for number in range(len(topic.partitions))]
        self._let_go([key for key in keys if key in self.replicas.partitions])
        for key in keys:
            for listener in self.leadership_listeners:
                listener(key, None)

    def config_changed(self, topic: Topic) -> None:
        """Let its logs and replicas follow its new settings."""
        config = self._config_of(topic)
        self._throttle(topic.name, config)
        for number in range(len(topic.partitions)):
            key = TopicPartition(topic.name, number)
            hosted = self.logs.logs.get(key)
            if hosted is not None:
                hosted.log.config = log_config(config, self.controller.draw)
                self.replicas.partitions[key].settings = self._partition_settings(topic)

    def log_of(self, key: TopicPartition) -> Log:
        """A log that is hosted here. KeyError otherwise."""
        return self.logs.logs[key].log

    def _host(self, key: TopicPartition) -> None:
        topic = self.metadata.topics[key.topic]
        config = self._config_of(topic)
        self._throttle(topic.name, config)
        hosted = self.logs.open(key, log_config(config, self.controller.draw))
        settings = self._partition_settings(topic)
        self.replicas.host(Partition(key, self.broker_id, hosted.replica, self.metadata, settings, topic.topic_id))

    def _let_go(self, keys: Sequence[TopicPartition]) -> None:
        for key in keys:
            self.fetcher.unfollow(key)
            self.replicas.stop_replica(key)
        self.logs.delete(keys)

    def _throttle(self, topic: str, config: Mapping[str, str]) -> None:
        self.leader_quota.throttle(topic, throttled_partitions(config, LEADER_THROTTLED, self.broker_id))
        self.follower_quota.throttle(topic, throttled_partitions(config, FOLLOWER_THROTTLED, self.broker_id))

    def _rate(self, name: str) -> int | None:
        value = self.metadata.broker_setting(self.broker_id, name)
        return None if value is None else int(value)

    def _config_of(self, topic: Topic) -> dict[str, str]:
        return {**self.settings.topic_defaults, **topic.config}

    def _partition_settings(self, topic: Topic) -> PartitionSettings:
        minimum = int(value_of(self._config_of(topic), "min.insync.replicas"))
        return PartitionSettings(minimum, self.settings.replica_lag_time_max_ms)

    def _reading_settings(self) -> ReadingSettings:
        selector = select_rack_aware if self.settings.replica_selector_class else None
        return ReadingSettings(selector, self.metadata.rack_of, self.leader_quota)

    def _alter_partition(self, key: TopicPartition, proposal: AlterPartition) -> None:
        self.loop.call_soon(self._propose, key, proposal)

    def _propose(self, key: TopicPartition, proposal: AlterPartition) -> None:
        reply = self.controller.alter_partition(key, proposal)
        if key in self.replicas.partitions:
            self.replicas.alter_partition_answered(key, proposal, reply)
        if reply.error is Errors.NONE:
            self.controller.complete_reassignment(key)

    def _go_through(self, steps: Iterator[None]) -> None:
        """Do one step after the other, and let others have their turn meanwhile. A broker that was stopped has none."""
        until_s = self.loop.time() + TURN_S
        for _ in steps:
            if self.loop.time() > until_s:
                self.loop.call_soon(self._go_through, steps)
                return

    def _repeat(self, interval_ms: int, work: Callable[[], object]) -> None:
        place = len(self._periodic)

        def turn() -> None:
            self._periodic[place] = self.loop.call_later(interval_ms / 1000, turn)
            work()

        self._periodic.append(self.loop.call_later(interval_ms / 1000, turn))


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
