"""Movements of partitions while an assignment is balanced: of one topic, partitions that would cross each other on the
way are exchanged for each other, so that as few as possible change hands."""

from collections import defaultdict
from typing import NamedTuple

from broker.clients.assignors.assignor import partition_hash
from broker.clients.assignors.java_hash import HashSet
from purgatory.log_offsets import TopicPartition


class ConsumerPair(NamedTuple):
    """The member that had a partition at first, and the one that has it now."""

    source: str
    target: str


class PartitionMovements:
    """All movements so far."""

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, ConsumerPair] = {}
        self._partitions: dict[tuple[str, ConsumerPair], HashSet[TopicPartition]] = defaultdict(
            lambda: HashSet(partition_hash)
        )

    def move(self, partition: TopicPartition, old: str, new: str) -> None:
        """Move a partition from `old` to `new`. The member that had it at first is still known, until it is back."""
        earlier = self._pairs.pop(partition, None)
        if earlier is not None:
            moved = self._partitions[partition.topic, earlier]
            moved.remove(partition)
            if not moved:
                del self._partitions[partition.topic, earlier]
        pair = ConsumerPair(earlier.source if earlier else old, new)
        if pair.source != new:
            self._pairs[partition] = pair
            self._partitions[partition.topic, pair].add(partition)

    def partition_to_move(self, partition: TopicPartition, old: str, new: str) -> TopicPartition:
        """Of this topic, a partition that came the opposite way, if there is one; else this one."""
        source = self._pairs[partition].source if partition in self._pairs else old
        opposite = self._partitions.get((partition.topic, ConsumerPair(new, source)))
        return opposite.first() if opposite else partition
