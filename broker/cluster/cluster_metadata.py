"""Cluster metadata, which all brokers know: brokers, topics, where partitions are. Only the controller writes it.

Brokers of one process share it, so what the controller has decided is known everywhere at once.
"""

from dataclasses import dataclass, field
from typing import Final, Protocol

from broker.cluster.quorum import Quorum
from purgatory.log_offsets import TopicPartition
from purgatory.partition.isr import PartitionAssignment

NO_LEADER: Final = -1
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker as it has registered. Fenced: it is not there, or not yet."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    epoch: int = 0
    is_fenced: bool = False
    is_shutting_down: bool = False


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    """Where a partition is. `replicas` are in order of preference; adding and removing ones are among them."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def assignment(self) -> PartitionAssignment:
        """As a replica is told it."""
        return PartitionAssignment(
            self.leader, self.leader_epoch, self.partition_epoch, self.replicas, frozenset(self.isr)
        )


@dataclass(slots=True)
class Topic:
    """A topic: its id, the settings it was given, its partitions by number."""

    name: str
    topic_id: str
    config: dict[str, str] = field(default_factory=dict)
    partitions: list[PartitionRegistration] = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        """Whether only brokers write to it."""
        return self.name in INTERNAL_TOPICS


@dataclass(slots=True)
class MetadataChanges:
    """Changes to be written down: topics that came, went or changed as a whole, and single partitions of others."""

    topics: set[str] = field(default_factory=set)
    partitions: set[TopicPartition] = field(default_factory=set)


class MetadataListener(Protocol):
    """A broker, as the controller sees it."""

    def partition_changed(self, key: TopicPartition, partition: PartitionRegistration) -> None:
        """Host it, lead it, follow, or let it go."""

    def topic_deleted(self, topic: Topic) -> None:
        """Hear that a topic is no longer in the metadata."""

    def config_changed(self, topic: Topic) -> None:
        """Hear that a topic has other settings now."""


class ClusterMetadata:
    """Brokers by id, topics by name. Also what `purgatory.replica_manager.replica_manager.BrokerMetadata` asks for."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.controller_id = NO_LEADER
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, Topic] = {}
        self.topic_names: dict[str, str] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}  # by broker id as text; "" is for all
        self.next_producer_id = 0
        self.quorum = Quorum()

    def add(self, topic: Topic) -> None:
        """Add a topic."""
        self.topics[topic.name] = topic
        self.topic_names[topic.topic_id] = topic.name

    def remove(self, name: str) -> None:
        """Remove a topic, if it is there."""
        topic = self.topics.pop(name, None)
        if topic is not None:
            del self.topic_names[topic.topic_id]

    def knows(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition exists, wherever it is."""
        return self.partition(topic_partition) is not None

    def partition(self, key: TopicPartition) -> PartitionRegistration | None:
        """Where it is, None if there is no such partition."""
        topic = self.topics.get(key.topic)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            return None
        return topic.partitions[key.partition]

    def topic_name(self, topic_id: str | None) -> str | None:
        """The topic of this id."""
        return None if topic_id is None else self.topic_names.get(topic_id)

    @property
    def alive(self) -> list[BrokerRegistration]:
        """Brokers that are there, by id."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers) if self.is_alive(broker_id)]

    def is_eligible(self, broker_id: int) -> bool:
        """May be in an ISR."""
        return self.is_alive(broker_id) and not self.brokers[broker_id].is_shutting_down

    def is_alive(self, broker_id: int) -> bool:
        """Registered and not fenced."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced

    def rack_of(self, broker_id: int) -> str:
        """Where it stands, empty if it doesn't say."""
        broker = self.brokers.get(broker_id)
        return "" if broker is None else broker.rack or ""

    def broker_setting(self, broker_id: int, name: str) -> str | None:
        """Value that was set while brokers run, for this one or for all; None: none was."""
        for place in (str(broker_id), ""):
            if name in self.broker_configs.get(place, ()):
                return self.broker_configs[place][name]
        return None

    def broker_epoch(self, broker_id: int) -> int | None:
        """The epoch of its registration."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.epoch
