"""Offsets with their place in the log, and how far a reader may see."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

UNKNOWN = -1
NO_EPOCH = -1


class TopicPartition(NamedTuple):
    """One partition of a topic: also the key under which its events are waited for."""

    topic: str
    partition: int


class Isolation(Enum):
    """How far a reader may see."""

    LOG_END = "log_end"  # followers
    HIGH_WATERMARK = "high_watermark"  # consumers
    TXN_COMMITTED = "txn_committed"  # consumers with read_committed


@dataclass(frozen=True, slots=True)
class LogOffsetMetadata:
    """An offset, the base offset of its segment, and its position there in bytes. The last two may be unknown."""

    offset: int
    segment_base_offset: int = UNKNOWN
    position: int = UNKNOWN

    @property
    def message_offset_only(self) -> bool:
        """Whether only the offset is known."""
        return self.segment_base_offset == UNKNOWN and self.position == UNKNOWN

    def on_older_segment(self, other: "LogOffsetMetadata") -> bool:
        """Whether this is known to be in an earlier segment than `other`."""
        if self.message_offset_only or other.message_offset_only:
            return False
        return self.segment_base_offset < other.segment_base_offset

    def on_same_segment(self, other: "LogOffsetMetadata") -> bool:
        """Whether this is known to be in the segment of `other`."""
        if self.message_offset_only or other.message_offset_only:
            return False
        return self.segment_base_offset == other.segment_base_offset

    def position_diff(self, other: "LogOffsetMetadata") -> int:
        """Bytes from `other` to this, in the same segment; otherwise ValueError."""
        if not self.on_same_segment(other):
            raise ValueError(f"{self} and {other} are not known to be in one segment")
        return self.position - other.position


UNKNOWN_OFFSET = LogOffsetMetadata(UNKNOWN)


@dataclass(frozen=True, slots=True)
class LogOffsetSnapshot:
    """The ends of a log at one moment."""

    log_start_offset: int
    log_end: LogOffsetMetadata
    high_watermark: LogOffsetMetadata
    last_stable: LogOffsetMetadata

    def end_for(self, isolation: Isolation) -> LogOffsetMetadata:
        """Where a reader of this isolation has to stop."""
        match isolation:
            case Isolation.LOG_END:
                return self.log_end
            case Isolation.HIGH_WATERMARK:
                return self.high_watermark
            case Isolation.TXN_COMMITTED:
                return self.last_stable


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """Where an epoch ends: the epoch found (-1 if undefined) and the offset after its last record (-1)."""

    epoch: int = NO_EPOCH
    end_offset: int = UNKNOWN

    @property
    def is_undefined(self) -> bool:
        """Whether nothing is known about the epoch asked for."""
        return self.epoch == NO_EPOCH or self.end_offset == UNKNOWN

    def diverges_from(self, last_fetched_epoch: int, fetch_offset: int) -> bool:
        """Whether a replica that has `last_fetched_epoch` right below `fetch_offset` has another history."""
        return self.epoch < last_fetched_epoch or self.end_offset < fetch_offset
