"""Parts of the broker that a replica manager needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from purgatory.log_offsets import TopicPartition
from purgatory.partition.isr import AlterPartition, ClusterMetadata
from purgatory.replica_manager.partition_reader import ReadingSettings
from purgatory.timer.timer import DrivenTimer
from purgatory.versions import LATEST, KafkaVersion


class BrokerMetadata(ClusterMetadata, Protocol):
    """Facts that a broker knows about the cluster."""

    def knows(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition exists, wherever it is."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Clock in ms, a new timer for each purgatory, the cluster, where proposals go, how consumers and followers read.

    `alter_partition` only sends; the answer comes back through `ReplicaManager.alter_partition_answered`, later.
    """

    clock: Callable[[], float]
    make_timer: Callable[[], DrivenTimer]
    metadata: BrokerMetadata
    alter_partition: Callable[[TopicPartition, AlterPartition], None]
    reading: ReadingSettings
    version: KafkaVersion = LATEST
