"""How fast partitions that are being moved may be copied: bytes per second, as Kafka's replication quotas.

A topic names the replicas that are throttled (`leader.replication.throttled.replicas`, at the broker that sends, and
`follower.replication.throttled.replicas`, at the one that fetches), a broker has the rates. A follower that is in sync
counts and is never held back: acks=-1 waits for it.

The rate is that of the last WINDOWS windows, from the oldest on that had anything, and never over less than one.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from purgatory.log_offsets import TopicPartition

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
WINDOWS: Final = 11
WINDOW_MS: Final = 1_000


class ReplicationQuota:
    """The limit at one broker, on what it sends or on what it fetches. `clock` gives ms, `limit` bytes per second, or
    None while there is none. What `purgatory.replica_manager.partition_reader.ReplicaQuota` asks for."""

    def __init__(self, clock: Callable[[], float], limit: Callable[[], int | None]) -> None:
        self._clock = clock
        self._limit = limit
        self._topics: dict[str, frozenset[int] | None] = {}
        self._windows: deque[tuple[float, int]] = deque()

    def throttle(self, topic: str, partitions: frozenset[int] | None) -> None:
        """Throttle these partitions of a topic from now on; None: all."""
        if partitions is None or partitions:
            self._topics[topic] = partitions
        else:
            self._topics.pop(topic, None)

    def is_throttled(self, key: TopicPartition) -> bool:
        """Whether the limit is about this partition."""
        if key.topic not in self._topics:
            return False
        partitions = self._topics[key.topic]
        return partitions is None or key.partition in partitions

    def is_quota_exceeded(self) -> bool:
        """Whether more came lately than may come."""
        limit = self._limit()
        return limit is not None and self.rate() > limit

    def record(self, key: TopicPartition, size: int) -> None:
        """Count bytes of a throttled partition that were sent or fetched, by a follower in sync or not."""
        now_ms = self._clock()
        self._forget(now_ms)
        if self._windows and now_ms - self._windows[-1][0] < WINDOW_MS:
            start_ms, total = self._windows.pop()
            self._windows.append((start_ms, total + size))
        else:
            self._windows.append((now_ms, size))

    def rate(self) -> float:
        """Bytes per second."""
        now_ms = self._clock()
        self._forget(now_ms)
        if not self._windows:
            return 0.0
        elapsed_ms = max(now_ms - self._windows[0][0], WINDOW_MS)
        return sum(total for _, total in self._windows) * 1_000 / elapsed_ms

    def _forget(self, now_ms: float) -> None:
        while self._windows and now_ms - self._windows[0][0] >= WINDOWS * WINDOW_MS:
            self._windows.popleft()
