"""Kafka's SubscriptionState: what a consumer wants, what it has, and where it is in each partition."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker.clients.consumer.consumer_records import OffsetAndMetadata, OffsetReset, RebalanceListener
from purgatory.log_offsets import TopicPartition


@dataclass(slots=True)
class PartitionState:
    """Of one partition that is assigned. Without position it waits for one: by `reset`, or what is committed."""

    position: int | None = None
    reset: OffsetReset | None = None
    is_paused: bool = False
    retry_at_s: float = 0.0

    def seek(self, offset: int) -> None:
        """Go on there."""
        self.position, self.reset, self.retry_at_s = offset, None, 0.0

    def begin_reset(self, reset: OffsetReset) -> None:
        """Go on where ListOffsets says."""
        self.position, self.reset = None, reset


class SubscriptionState:
    """Either topics are subscribed and a group assigns partitions, or the user does."""

    def __init__(self) -> None:
        self.topics: frozenset[str] | None = None
        self.listener: RebalanceListener | None = None
        self.partitions: dict[TopicPartition, PartitionState] = {}

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None) -> None:
        """ValueError if partitions were assigned by the user."""
        if self.topics is None and self.partitions:
            raise ValueError("partitions are assigned by hand: unsubscribe first")
        self.topics, self.listener = frozenset(topics), listener

    def assign_by_user(self, partitions: Iterable[TopicPartition]) -> None:
        """ValueError if topics are subscribed."""
        if self.topics is not None:
            raise ValueError("topics are subscribed: unsubscribe first")
        self.assign(partitions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign these partitions and no others. Those that stay keep their place."""
        self.partitions = {one: self.partitions.get(one) or PartitionState() for one in partitions}

    def unsubscribe(self) -> None:
        """Nothing is wanted any more."""
        self.topics, self.listener, self.partitions = None, None, {}

    def state(self, partition: TopicPartition) -> PartitionState:
        """ValueError if it isn't assigned."""
        if partition not in self.partitions:
            raise ValueError(f"{partition} is not assigned")
        return self.partitions[partition]

    def wanted_topics(self) -> set[str]:
        """Of which leaders must be known."""
        return {one.topic for one in self.partitions} | (self.topics or set())

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Offsets to be committed: all positions."""
        return {
            partition: OffsetAndMetadata(state.position)
            for partition, state in self.partitions.items()
            if state.position is not None
        }

    def matching(self, condition: Callable[[PartitionState], bool]) -> list[TopicPartition]:
        """Partitions whose state meets the condition."""
        return [partition for partition, state in self.partitions.items() if condition(state)]
