"""The controller: the only one who changes the cluster's metadata. It tells every broker what has changed, and writes
it down.

There is one in the process, whichever broker is called controller: the id moves to the next living broker when that one
goes, its decisions don't.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from broker.cluster.cluster_metadata import (
    NO_LEADER,
    BrokerRegistration,
    ClusterMetadata,
    MetadataChanges,
    MetadataListener,
    PartitionRegistration,
    Topic,
)
from broker.cluster.election import (
    elect_preferred,
    elect_unclean,
    reassigned,
    reassignment_cancelled,
    reassignment_completed,
    with_leader,
)
from broker.cluster.replica_assignment import assign_replicas_to_brokers, check_assignment, checked_count
from broker.cluster.topic_config import check_config, is_true
from broker.log.config import LONG_MAX
from broker.log.manager import TOPIC_NAME
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.partition.isr import AlterPartition, AlterPartitionReply

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created: so many partitions and replicas, or exactly these replicas of partitions 0, 1 ..."""

    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, str | None] | None = None
    assignment: Sequence[tuple[int, ...]] | None = None


class Controller:
    """`new_id` makes ids of topics, `draw(n)` a number below n, `save` writes down what has changed, and
    `sync` makes that survive a loss of power."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        new_id: Callable[[], str],
        draw: Callable[[int], int],
        save: Callable[[MetadataChanges], None],
        sync: Callable[[], None],
    ) -> None:
        self.metadata = metadata
        self.new_id = new_id
        self.draw = draw
        self._write = save
        self.sync = sync
        self._changes = MetadataChanges()
        self._listeners: dict[int, MetadataListener] = {}

    # Brokers

    def register(self, *brokers: tuple[BrokerRegistration, MetadataListener]) -> None:
        """Brokers are there: they learn of all partitions, and lead those that nobody leads."""
        for broker, listener in brokers:
            known = self.metadata.brokers.get(broker.broker_id)
            epoch = 0 if known is None else known.epoch + 1
            self.metadata.brokers[broker.broker_id] = replace(broker, epoch=epoch, is_fenced=False)
            self._listeners[broker.broker_id] = listener
            if not self.metadata.is_alive(self.metadata.controller_id):
                self.metadata.controller_id = broker.broker_id
        for key, partition in self._all_partitions():
            elected = self._with_leader(key, self._without_dead(partition))
            if elected is not partition:
                self._change(key, elected)
                continue
            for _, listener in brokers:
                listener.partition_changed(key, partition)
        self._save()

    def shut_down(self, broker_id: int) -> None:
        """A broker is about to go. While it can still answer, it learns that others lead what it led."""
        known = self.metadata.brokers.get(broker_id)
        if known is None or known.is_fenced:
            return
        self.metadata.brokers[broker_id] = replace(known, is_shutting_down=True)
        self._settle()

    def fence(self, broker_id: int) -> None:
        """A broker is gone: others lead what it led, and it leaves every ISR that has others."""
        known = self.metadata.brokers.get(broker_id)
        if known is None or known.is_fenced:
            return
        self.metadata.brokers[broker_id] = replace(known, is_fenced=True)
        self._listeners.pop(broker_id, None)
        if self.metadata.controller_id == broker_id:
            alive = self.metadata.alive
            self.metadata.controller_id = alive[0].broker_id if alive else NO_LEADER
        self._settle()

    def allocate_producer_ids(self, count: int) -> int:
        """The first of so many ids that no producer has had. Durable when this returns."""
        first = self.metadata.next_producer_id
        self.metadata.next_producer_id += count
        self._save()
        return first

    # Topics

    def create_topic(self, new: NewTopic, *, validate_only: bool = False, is_synced: bool = True) -> Topic:
        """ApiError with Kafka's code if it can't be. Not synced: whoever asks for several calls `sync` once."""
        if not TOPIC_NAME.fullmatch(new.name):
            raise ApiError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {new.name[:300]!r}")
        if new.name in self.metadata.topics:
            raise ApiError(Errors.TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
        folded = new.name.replace(".", "_")
        if any(folded == name.replace(".", "_") for name in self.metadata.topics):
            raise ApiError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic '{new.name}' collides with another: '.' is '_'")
        config = check_config(new.config or {})
        if new.assignment is not None:
            assignment = self._checked(new.assignment, len(new.assignment[0]))
        else:
            assignment = self._assigned(range(checked_count(new.partitions)), new.replication_factor)
        topic = Topic(new.name, self.new_id(), config, [self._new_partition(row) for row in assignment])
        if validate_only:
            return topic
        self.metadata.add(topic)
        self._changes.topics.add(topic.name)
        self._save(is_synced=is_synced)
        self._tell(topic, range(len(topic.partitions)))
        return topic

    def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[tuple[int, ...]] | None = None,
        *,
        validate_only: bool = False,
        is_synced: bool = True,
    ) -> None:
        """Let a topic have `count` partitions, which must be more than it has."""
        topic = self.topic(name)
        known = len(topic.partitions)
        if count <= known:
            raise ApiError(
                Errors.INVALID_PARTITIONS,
                f"The topic {name} currently has {known} partition(s); {count} would not be an increase.",
            )
        added = range(known, checked_count(count))
        replication_factor = len(topic.partitions[0].replicas)
        if assignment is None:
            rows: Sequence[tuple[int, ...]] = self._assigned(added, replication_factor)
        elif len(assignment) != len(added):
            raise ApiError(
                Errors.INVALID_REPLICA_ASSIGNMENT,
                f"{len(assignment)} assignments for {len(added)} new partitions.",
            )
        else:
            rows = self._checked(assignment, replication_factor)
        if validate_only:
            return
        topic.partitions += [self._new_partition(row) for row in rows]
        self._changes.topics.add(name)
        self._save(is_synced=is_synced)
        self._tell(topic, added)

    def delete_topic(self, name: str, *, is_synced: bool = True) -> None:
        """UNKNOWN_TOPIC_OR_PARTITION if it isn't there."""
        topic = self.topic(name)
        self.metadata.remove(name)
        self._changes.topics.add(name)
        self._save(is_synced=is_synced)
        for listener in list(self._listeners.values()):
            listener.topic_deleted(topic)

    def change_config(self, name: str, config: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Let these be the topic's settings, all of them."""
        topic = self.topic(name)
        checked = check_config(config)
        if validate_only:
            return
        topic.config = checked
        self._changes.topics.add(name)
        self._save()
        for listener in list(self._listeners.values()):
            listener.config_changed(topic)

    def change_broker_config(
        self, place: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set rates of replication, or (None) take them back, for the broker of this id, or (empty) for all.

        ApiError: INVALID_CONFIG for what is no number of bytes, INVALID_REQUEST for an unknown broker.
        """
        if place and place not in map(str, self.metadata.brokers):
            raise ApiError(Errors.INVALID_REQUEST, f"There is no broker {place[:300]!r}.")
        for name, value in changes.items():
            if value is not None and not (value.isascii() and value.isdecimal() and int(value) <= LONG_MAX):
                raise ApiError(Errors.INVALID_CONFIG, f"Invalid value {value[:300]} for configuration {name}")
        if validate_only:
            return
        config = {**self.metadata.broker_configs.get(place, {}), **changes}
        self.metadata.broker_configs[place] = {name: value for name, value in config.items() if value is not None}
        self._save()

    def topic(self, name: str) -> Topic:
        """UNKNOWN_TOPIC_OR_PARTITION if it isn't there."""
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise ApiError(Errors.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return topic

    # Partitions

    def alter_partition(self, key: TopicPartition, proposal: AlterPartition) -> AlterPartitionReply:
        """A leader proposes its ISR."""
        partition = self.metadata.partition(key)
        if partition is None:
            return AlterPartitionReply(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        if proposal.leader_epoch < partition.leader_epoch or proposal.leader_id != partition.leader:
            return AlterPartitionReply(Errors.FENCED_LEADER_EPOCH)
        if proposal.partition_epoch != partition.partition_epoch:
            return AlterPartitionReply(Errors.INVALID_UPDATE_VERSION)
        for broker_id, epoch in proposal.isr:
            if not self.metadata.is_eligible(broker_id) or epoch not in (-1, self.metadata.broker_epoch(broker_id)):
                return AlterPartitionReply(Errors.INELIGIBLE_REPLICA)
        isr = {broker_id for broker_id, _ in proposal.isr}
        ordered = tuple(broker_id for broker_id in partition.replicas if broker_id in isr)
        changed = replace(partition, isr=ordered, partition_epoch=partition.partition_epoch + 1)
        self._put(key, changed)
        self._save()
        return AlterPartitionReply(Errors.NONE, changed.leader_epoch, changed.partition_epoch, frozenset(isr))

    def elect_leader(self, key: TopicPartition, *, is_unclean: bool) -> None:
        """Let the first replica lead, or (unclean) any. ApiError with Kafka's code."""
        partition = self._partition(key)
        elect = elect_unclean if is_unclean else elect_preferred
        self._change(key, elect(partition, self.metadata.is_eligible))
        self._save()

    def reassign(self, key: TopicPartition, replicas: Sequence[int] | None) -> None:
        """Move a partition to these brokers, or (None) back while it is on its way. ApiError with Kafka's code."""
        partition = self._partition(key)
        if replicas is None:
            changed = reassignment_cancelled(partition)
        else:
            check_assignment([tuple(replicas)], self.metadata.brokers, len(replicas))
            changed = reassigned(partition, replicas)
        self._change(key, self._with_leader(key, changed))
        self.complete_reassignment(key)
        self._save()

    def complete_reassignment(self, key: TopicPartition) -> None:
        """If all new replicas are in sync, let the old ones go. To be called after an ISR has grown."""
        partition = self._partition(key)
        completed = reassignment_completed(partition)
        if completed is partition:
            return
        if completed.leader not in completed.replicas:
            completed = self._with_leader(key, replace(completed, leader=NO_LEADER))
        self._change(key, completed)
        self._save()

    def _settle(self) -> None:
        """Brokers have gone, or are about to."""
        for key, partition in self._all_partitions():
            settled = self._with_leader(key, self._without_dead(partition))
            if settled is not partition:
                self._change(key, settled)
        self._save()

    def _without_dead(self, partition: PartitionRegistration) -> PartitionRegistration:
        """The last of an ISR stays in it: nobody else has what it has."""
        isr = tuple(broker_id for broker_id in partition.isr if self.metadata.is_eligible(broker_id))
        return partition if not isr or isr == partition.isr else replace(partition, isr=isr)

    def _with_leader(self, key: TopicPartition, partition: PartitionRegistration) -> PartitionRegistration:
        allows_unclean = is_true(self.metadata.topics[key.topic].config, "unclean.leader.election.enable")
        elected = with_leader(partition, self.metadata.is_eligible, allows_unclean=allows_unclean)
        if elected.leader not in (NO_LEADER, *partition.isr):
            _log.warning("%s-%d: unclean election of broker %d", key.topic, key.partition, elected.leader)
        return elected

    def _partition(self, key: TopicPartition) -> PartitionRegistration:
        partition = self.metadata.partition(key)
        if partition is None:
            raise ApiError(Errors.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return partition

    def _change(self, key: TopicPartition, partition: PartitionRegistration) -> None:
        """Let it be so, and tell."""
        self._put(key, replace(partition, partition_epoch=partition.partition_epoch + 1))
        self._tell(self.metadata.topics[key.topic], [key.partition])

    def _put(self, key: TopicPartition, partition: PartitionRegistration) -> None:
        self.metadata.topics[key.topic].partitions[key.partition] = partition
        self._changes.partitions.add(key)

    def _save(self, *, is_synced: bool = True) -> None:
        changes, self._changes = self._changes, MetadataChanges()
        self._write(changes)
        if is_synced:
            self.sync()

    def _tell(self, topic: Topic, partitions: Iterable[int]) -> None:
        for number in partitions:
            for listener in list(self._listeners.values()):
                listener.partition_changed(TopicPartition(topic.name, number), topic.partitions[number])

    def _all_partitions(self) -> list[tuple[TopicPartition, PartitionRegistration]]:
        return [
            (TopicPartition(topic.name, number), partition)
            for topic in self.metadata.topics.values()
            for number, partition in enumerate(topic.partitions)
        ]

    # New partitions

    def _assigned(self, partitions: range, replication_factor: int) -> list[tuple[int, ...]]:
        count = max(1, len(self.metadata.brokers))
        start, shift = self.draw(count), self.draw(count)
        return assign_replicas_to_brokers(self.metadata.alive, partitions, replication_factor, start, shift)

    def _checked(self, assignment: Sequence[tuple[int, ...]], replication_factor: int) -> Sequence[tuple[int, ...]]:
        check_assignment(assignment, self.metadata.brokers, replication_factor)
        return assignment

    def _new_partition(self, replicas: tuple[int, ...]) -> PartitionRegistration:
        isr = tuple(broker_id for broker_id in replicas if self.metadata.is_eligible(broker_id))
        if not isr:
            raise ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, "All brokers in the assignment are fenced.")
        return PartitionRegistration(replicas, isr, isr[0])
