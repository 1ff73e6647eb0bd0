"""Records that Kafka has and nobody has read, as a test says them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sidecar.model.record import TopicPartition


@dataclass
class FakeBacklog:
    """By partition: its end, and offsets of records, the others being marks. Without an end it has no leader."""

    end: dict[TopicPartition, int] = field(default_factory=dict)
    records: dict[TopicPartition, list[int]] = field(default_factory=dict)

    def ends(self, lanes: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {lane: self.end[lane] for lane in lanes if lane in self.end}

    def unread(self, read: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]:
        return {lane for lane, (start, _) in read.items() if any(start <= one for one in self.records.get(lane, ()))}
