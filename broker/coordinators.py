"""A broker's coordinators: of groups, and who leads what they are written in."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.cluster_metadata import ClusterMetadata, PartitionRegistration
from broker.coordinator_log import Ownership, ReplicatedCoordinatorLog
from broker.group_coordinator import GroupCoordinator
from broker.group_rebalance import GroupRebalance
from broker.group_store import GroupStore
from broker.group_types import GroupSettings
from broker.offset_coordinator import OffsetCoordinator
from broker.settings import BrokerSettings
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager import ReplicaManager
from purgatory.system_timer import SystemTimer


class Host(Protocol):
    """The broker that has the coordinators. `new_id` makes ids as text."""

    broker_id: int
    metadata: ClusterMetadata
    settings: BrokerSettings
    clock: Callable[[], float]
    loop: AbstractEventLoop
    replicas: ReplicaManager
    new_id: Callable[[], str]


class Coordinators:
    """What answers for groups. One event loop drives all of it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        log = ReplicatedCoordinatorLog(host.replicas, host.loop.call_soon)
        self.group_store = GroupStore(_group_settings(host.settings), log, host.clock, host.loop.call_soon)
        self._rebalance = GroupRebalance(self.group_store, SystemTimer)
        self.groups = GroupCoordinator(self.group_store, self._rebalance, host.new_id)
        self.offsets = OffsetCoordinator(self.group_store, self._rebalance)

    @property
    def purgatories(self) -> Sequence[DelayedOperationPurgatory[Any]]:
        """What a driver has to bring forward."""
        return self._rebalance.purgatories

    def leadership_changed(self, key: TopicPartition, partition: PartitionRegistration | None) -> None:
        """A partition has another leader, or epoch, or is gone."""
        if key.topic == self.group_store.ownership.topic:
            self._count_partitions(self.group_store.ownership)
            if self._leads(partition):
                assert partition is not None
                self.group_store.on_election(key.partition, partition.leader_epoch, self.groups.on_loaded)
            else:
                self.group_store.on_resignation(key.partition, self._rebalance.unload)

    def stop(self) -> None:
        """Answer no more."""
        self.group_store.ownership.is_active = False

    def _leads(self, partition: PartitionRegistration | None) -> bool:
        return partition is not None and partition.leader == self._host.broker_id

    def _count_partitions(self, ownership: Ownership) -> None:
        """Where a name is kept depends on how many partitions there are, whatever the settings were then."""
        topic = self._host.metadata.topics.get(ownership.topic)
        if topic is not None:
            ownership.count = len(topic.partitions)


def _group_settings(settings: BrokerSettings) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        max_size=settings.group_max_size,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_ms,
        offsets_partitions=settings.offsets_topic_num_partitions,
    )
