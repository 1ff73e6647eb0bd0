"""Kafka's partitioners: which partition gets a record that doesn't say so itself.

A partitioner is `partition(topic, key, size, partitions) -> number`: key and size as they are sent, in bytes, and
the topic's partitions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar.model.partitioner import partition_of

Draw = Callable[[int], int]
"""A random number below its argument."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """Of a topic: how many there are, and which of them have a leader."""

    count: int
    led: Sequence[int]

    @property
    def usable(self) -> Sequence[int]:
        """Partitions with a leader; if none has one, all."""
        return self.led or range(self.count)


Partitioner = Callable[[str, bytes | None, int, Partitions], int]


class StickyPartitioner:
    """Java's default: the key's murmur2 hash; without a key, one partition until it got a batch's worth of bytes, then
    another that chance draws. So batches get full."""

    def __init__(self, batch_bytes: int, draw: Draw) -> None:
        self._batch_bytes = batch_bytes
        self._draw = draw
        self._current: dict[str, tuple[int, int]] = {}  # partition, bytes so far

    def __call__(self, topic: str, key: bytes | None, size: int, partitions: Partitions) -> int:
        """The partition."""
        if key is not None:
            return partition_of(key, partitions.count)
        usable = partitions.usable
        partition, sent = self._current.get(topic, (-1, 0))
        if partition not in usable or sent >= self._batch_bytes:
            partition, sent = usable[self._draw(len(usable))], 0
        self._current[topic] = partition, sent + size
        return partition


class RoundRobinPartitioner:
    """Each record to the next partition, whatever its key."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()

    def __call__(self, topic: str, _key: bytes | None, _size: int, partitions: Partitions) -> int:
        """The partition."""
        turn = self._turns[topic]
        self._turns[topic] += 1
        return partitions.usable[turn % len(partitions.usable)]


class UniformPartitioner:
    """Chance alone."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def __call__(self, _topic: str, _key: bytes | None, _size: int, partitions: Partitions) -> int:
        """The partition."""
        return partitions.usable[self._draw(len(partitions.usable))]
