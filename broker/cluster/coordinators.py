"""A broker's coordinators: of groups and of transactions, and who leads what they are written in.

a transaction's marker -> the broker that leads the partition: into its log; of offsets also to its groups
offsets within a transaction -> the transaction's coordinator: whether it has the group's partition
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from broker.cluster.cluster_metadata import ClusterMetadata, PartitionRegistration
from broker.cluster.controller import Controller
from broker.cluster.settings import BrokerSettings
from broker.groups.coordinator import GroupCoordinator
from broker.groups.coordinator_log import Appended, Ownership, ReplicatedCoordinatorLog
from broker.groups.offset_coordinator import OffsetCoordinator
from broker.groups.rebalance import GroupRebalance
from broker.groups.store import GroupStore
from broker.groups.types import GroupSettings, OffsetCommitRequest
from broker.records.control_records import EndMarker, build_end_marker
from broker.transactions.coordinator import ProducerClaim, TransactionCoordinator, TransactionSettings
from broker.transactions.markers import Marker, TransactionMarkers
from broker.transactions.producer_ids import ProducerIds
from broker.transactions.store import TransactionStore
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager.replica_manager import ReplicaManager
from purgatory.timer.system_timer import SystemTimer
from purgatory.timer.timer import Driven


class Peer(Protocol):
    """Another broker of the cluster."""

    @property
    def coordinators(self) -> "Coordinators": ...


class Host(Protocol):
    """The broker that has the coordinators."""

    broker_id: int
    controller: Controller
    metadata: ClusterMetadata
    settings: BrokerSettings
    clock: Callable[[], float]
    loop: AbstractEventLoop
    replicas: ReplicaManager

    @property
    def peers(self) -> Mapping[int, Peer]: ...


class Coordinators:
    """Coordinators of groups and transactions. One event loop drives all of it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        settings, clock, post = host.settings, host.clock, host.loop.call_soon
        self._log = ReplicatedCoordinatorLog(host.replicas, post)
        self.group_store = GroupStore(_group_settings(settings), self._log, clock, post)
        self._rebalance = GroupRebalance(self.group_store, SystemTimer)
        self.groups = GroupCoordinator(self.group_store, self._rebalance, host.controller.new_id)
        self.offsets = OffsetCoordinator(self.group_store, self._rebalance, self._verify_offsets)
        self.transaction_store = TransactionStore(settings.transaction_state_log_num_partitions, self._log, clock, post)
        self._retries = SystemTimer()
        self.transactions = TransactionCoordinator(
            TransactionSettings(settings.transaction_max_timeout_ms, settings.transactional_id_expiration_ms),
            self.transaction_store,
            TransactionMarkers(self.transaction_store, self._send_marker, self._retries),
            ProducerIds(host.controller.allocate_producer_ids),
        )

    @property
    def driven(self) -> Sequence[Driven]:
        """Parts that a driver has to bring forward."""
        return (*self._rebalance.purgatories, self._retries)

    def leadership_changed(self, key: TopicPartition, partition: PartitionRegistration | None) -> None:
        """A partition has another leader, or epoch, or is gone."""
        groups, transactions = self.group_store, self.transaction_store
        leads = partition is not None and partition.leader == self._host.broker_id
        epoch = 0 if partition is None else partition.leader_epoch
        if key.topic == groups.ownership.topic:
            self._count_partitions(groups.ownership)
            if leads:
                groups.on_election(key.partition, epoch, self.groups.on_loaded)
            else:
                groups.on_resignation(key.partition, self._rebalance.unload)
        elif key.topic == transactions.ownership.topic:
            self._count_partitions(transactions.ownership)
            if leads:
                transactions.on_election(key.partition, epoch, self.transactions.on_loaded)
            else:
                transactions.on_resignation(key.partition)

    def stop(self) -> None:
        """Answer no more."""
        self.group_store.ownership.is_active = False
        self.transaction_store.ownership.is_active = False
        self._log.stop()

    # Between coordinators

    def write_marker(self, key: TopicPartition, marker: Marker, then: Callable[[Errors], None]) -> None:
        """End a producer's transaction in a partition that this broker leads. Of offsets, its groups are told."""

        def appended(result: Appended) -> None:
            if result.error is Errors.NONE and key.topic == self.group_store.ownership.topic:
                self.group_store.complete_transaction(marker.producer_id, [key.partition], is_commit=marker.is_commit)
            then(result.error)

        end = EndMarker(not marker.is_commit, marker.coordinator_epoch)
        batch = build_end_marker(marker.producer_id, marker.producer_epoch, end, int(self._host.clock()))
        self._log.append(key, batch, appended)

    def verify(self, claim: ProducerClaim, key: TopicPartition) -> Errors:
        """Whether a transaction has a partition, by whichever broker knows."""
        coordinator = self._leader_of(self.transaction_store.ownership.partition_for(claim.transactional_id))
        if coordinator is None:
            return Errors.COORDINATOR_NOT_AVAILABLE
        return coordinator.transactions.verify(claim, key)

    def add_partition(self, claim: ProducerClaim, key: TopicPartition, then: Callable[[Errors], None]) -> None:
        """Let a transaction have a partition too, by whichever broker is its coordinator."""
        coordinator = self._leader_of(self.transaction_store.ownership.partition_for(claim.transactional_id))
        if coordinator is None:
            then(Errors.COORDINATOR_NOT_AVAILABLE)
        else:
            coordinator.transactions.add_partitions(claim, [key], then)

    def _send_marker(self, key: TopicPartition, marker: Marker, then: Callable[[Errors], None]) -> None:
        leader = self._leader_of(key)
        if leader is not None:
            leader.write_marker(key, marker, then)
            return
        is_known = self._host.metadata.knows(key)
        error = Errors.NOT_LEADER_OR_FOLLOWER if is_known else Errors.UNKNOWN_TOPIC_OR_PARTITION
        self._host.loop.call_soon(then, error)

    def _verify_offsets(
        self, request: OffsetCommitRequest, key: TopicPartition, then: Callable[[Errors], None]
    ) -> None:
        claim = ProducerClaim(request.transactional_id or "", request.producer_id, request.producer_epoch)
        then(self.verify(claim, key))

    def _leader_of(self, key: TopicPartition) -> "Coordinators | None":
        partition = self._host.metadata.partition(key)
        peer = None if partition is None else self._host.peers.get(partition.leader)
        return None if peer is None else peer.coordinators

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
