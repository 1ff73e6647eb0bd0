"""The controller: the only one who changes the cluster's metadata. It tells every broker what has changed, and writes
it down.

There is one in the process, whichever broker is called controller: the id moves to the next living broker when that one
goes, its decisions don't.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from broker.cluster_metadata import (
    NO_LEADER,
    BrokerRegistration,
    ClusterMetadata,
    PartitionRegistration,
    Topic,
)
from broker.log_manager import TOPIC_NAME
from broker.replica_assignment import assign_replicas_to_brokers
from broker.topic_config import check_config, is_true
from purgatory.errors import ApiError, Errors
from purgatory.isr import AlterPartition, AlterPartitionReply
from purgatory.log_offsets import TopicPartition

PARTITIONS_MAX: Final = 10_000  # of one request: each is a directory with open files

_log = logging.getLogger(__name__)


class MetadataListener(Protocol):
    """A broker, as the controller sees it."""

    def partition_changed(self, key: TopicPartition, partition: PartitionRegistration) -> None:
        """Host it, lead it, follow, or let it go."""

    def topic_deleted(self, topic: Topic) -> None:
        """It is no longer in the metadata."""

    def config_changed(self, topic: Topic) -> None:
        """Its settings are others now."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created: so many partitions and replicas, or exactly these replicas of partitions 0, 1 ..."""

    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, str | None] | None = None
    assignment: Sequence[tuple[int, ...]] | None = None


class Controller:
    """`new_id` makes ids of topics, `draw(n)` a number below n, `save` writes the metadata down."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        new_id: Callable[[], str],
        draw: Callable[[int], int],
        save: Callable[[], None],
    ) -> None:
        self.metadata = metadata
        self._new_id = new_id
        self._draw = draw
        self._save = save
        self._listeners: dict[int, MetadataListener] = {}

    # Brokers

    def register(self, broker: BrokerRegistration, listener: MetadataListener) -> None:
        """A broker is there: it learns of all partitions, and leads those that nobody leads."""
        known = self.metadata.brokers.get(broker.broker_id)
        epoch = 0 if known is None else known.epoch + 1
        self.metadata.brokers[broker.broker_id] = replace(broker, epoch=epoch, is_fenced=False, is_shutting_down=False)
        self._listeners[broker.broker_id] = listener
        if not self.metadata.is_alive(self.metadata.controller_id):
            self.metadata.controller_id = broker.broker_id
        for topic in self.metadata.topics.values():
            for number, partition in enumerate(topic.partitions):
                if not self._elect_if_leaderless(TopicPartition(topic.name, number)):
                    listener.partition_changed(TopicPartition(topic.name, number), partition)
        self._save()

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
        for key, partition in self._all_partitions():
            if broker_id == partition.leader or broker_id in partition.isr:
                isr = tuple(one for one in partition.isr if one != broker_id) or partition.isr
                self._change(key, self._with_leader(key, replace(partition, isr=isr)))
        self._save()

    # Topics

    def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        """ApiError with Kafka's code if it can't be."""
        if not TOPIC_NAME.fullmatch(new.name):
            raise ApiError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {new.name[:300]!r}")
        if new.name in self.metadata.topics:
            raise ApiError(Errors.TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
        folded = new.name.replace(".", "_")
        if any(folded == name.replace(".", "_") for name in self.metadata.topics):
            raise ApiError(Errors.INVALID_TOPIC_EXCEPTION, f"Topic '{new.name}' collides with another: '.' is '_'")
        config = check_config(new.config or {})
        if new.assignment is not None:
            assignment = self._checked(new.assignment)
        else:
            assignment = self._assigned(range(_checked_count(new.partitions)), new.replication_factor)
        topic = Topic(new.name, self._new_id(), config, [self._new_partition(row) for row in assignment])
        if validate_only:
            return topic
        self.metadata.topics[topic.name] = topic
        self.metadata.topic_names[topic.topic_id] = topic.name
        self._save()
        self._tell(topic, range(len(topic.partitions)))
        return topic

    def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[tuple[int, ...]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Let a topic have `count` partitions, which must be more than it has."""
        topic = self.topic(name)
        known = len(topic.partitions)
        if count <= known:
            raise ApiError(
                Errors.INVALID_PARTITIONS,
                f"The topic {name} currently has {known} partition(s); {count} would not be an increase.",
            )
        added = range(known, _checked_count(count))
        if assignment is None:
            rows: Sequence[tuple[int, ...]] = self._assigned(added, len(topic.partitions[0].replicas))
        elif len(assignment) != len(added):
            raise ApiError(
                Errors.INVALID_REPLICA_ASSIGNMENT,
                f"{len(assignment)} assignments for {len(added)} new partitions.",
            )
        else:
            rows = self._checked(assignment)
        if validate_only:
            return
        topic.partitions += [self._new_partition(row) for row in rows]
        self._save()
        self._tell(topic, added)

    def delete_topic(self, name: str) -> None:
        """UNKNOWN_TOPIC_OR_PARTITION if it isn't there."""
        topic = self.topic(name)
        del self.metadata.topics[name]
        del self.metadata.topic_names[topic.topic_id]
        self._save()
        for listener in list(self._listeners.values()):
            listener.topic_deleted(topic)

    def change_config(self, name: str, config: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Let these be the topic's settings, all of them."""
        topic = self.topic(name)
        checked = check_config(config)
        if validate_only:
            return
        topic.config = checked
        self._save()
        for listener in list(self._listeners.values()):
            listener.config_changed(topic)

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

    def _elect_if_leaderless(self, key: TopicPartition) -> bool:
        partition = self.metadata.partition(key)
        if partition is None or partition.leader != NO_LEADER:
            return False
        elected = self._with_leader(key, partition)
        if elected.leader == NO_LEADER:
            return False
        self._change(key, elected)
        return True

    def _with_leader(self, key: TopicPartition, partition: PartitionRegistration) -> PartitionRegistration:
        """The first living replica of the ISR leads; without one, any living one if the topic allows unclean ones."""
        if self.metadata.is_eligible(partition.leader):
            return partition
        alive = [broker_id for broker_id in partition.replicas if self.metadata.is_eligible(broker_id)]
        clean = [broker_id for broker_id in alive if broker_id in partition.isr]
        if clean:
            return replace(partition, leader=clean[0], leader_epoch=partition.leader_epoch + 1)
        topic = self.metadata.topics[key.topic]
        if alive and is_true(topic.config, "unclean.leader.election.enable"):
            _log.warning("%s-%d: unclean election of broker %d", key.topic, key.partition, alive[0])
            return replace(partition, leader=alive[0], isr=(alive[0],), leader_epoch=partition.leader_epoch + 1)
        if partition.leader == NO_LEADER:
            return partition
        return replace(partition, leader=NO_LEADER, leader_epoch=partition.leader_epoch + 1)

    def _change(self, key: TopicPartition, partition: PartitionRegistration) -> None:
        """Let it be so, and tell."""
        self._put(key, replace(partition, partition_epoch=partition.partition_epoch + 1))
        self._tell(self.metadata.topics[key.topic], [key.partition])

    def _put(self, key: TopicPartition, partition: PartitionRegistration) -> None:
        self.metadata.topics[key.topic].partitions[key.partition] = partition

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
        start, shift = self._draw(count), self._draw(count)
        return assign_replicas_to_brokers(self.metadata.alive, partitions, replication_factor, start, shift)

    def _checked(self, assignment: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
        sizes = {len(row) for row in assignment}
        for row in assignment:
            unknown = [broker_id for broker_id in row if broker_id not in self.metadata.brokers]
            if not row or len(set(row)) != len(row) or unknown or len(sizes) != 1:
                raise ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {row} is no good.")
        return assignment

    def _new_partition(self, replicas: tuple[int, ...]) -> PartitionRegistration:
        isr = tuple(broker_id for broker_id in replicas if self.metadata.is_eligible(broker_id))
        if not isr:
            raise ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, "All brokers in the assignment are fenced.")
        return PartitionRegistration(replicas, isr, isr[0])


def _checked_count(partitions: int) -> int:
    if partitions < 1:
        raise ApiError(Errors.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if partitions > PARTITIONS_MAX:
        raise ApiError(Errors.INVALID_PARTITIONS, f"At most {PARTITIONS_MAX} partitions.")
    return partitions
