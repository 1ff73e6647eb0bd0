"""How many requests have timed out while they waited."""

from collections import Counter

from purgatory.log_offsets import TopicPartition


class Expirations:
    """Counts for whoever watches a broker: partitions of produce and delete requests, and fetches by who asked."""

    def __init__(self) -> None:
        self.produce = 0
        self.produce_by_partition: Counter[TopicPartition] = Counter()
        self.consumer_fetch = 0
        self.follower_fetch = 0
        self.delete_records = 0

    def produce_expired(self, key: TopicPartition) -> None:
        """A partition was not replicated in time."""
        self.produce += 1
        self.produce_by_partition[key] += 1

    def fetch_expired(self, *, is_from_follower: bool) -> None:
        """There were not enough bytes in time."""
        if is_from_follower:
            self.follower_fetch += 1
        else:
            self.consumer_fetch += 1

    def delete_records_expired(self, key: TopicPartition) -> None:
        """A replica of a partition has not followed in time."""
        self.delete_records += 1

    def remove_partition(self, key: TopicPartition) -> None:
        """The partition has gone: its own count goes, the sum stays. Harmless if it has none."""
        self.produce_by_partition.pop(key, None)
