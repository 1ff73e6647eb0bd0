"""Types that a consumer's user meets: errors, records, offsets, the listener of rebalances, settings."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol

from broker.clients.assignors.assignors import ASSIGNORS
from broker.records.records import Headers
from purgatory.log_offsets import TopicPartition


class RetriableError(OSError):
    """A call can't be done yet. Whoever made it makes it again after `retry_backoff_ms`."""


class NoOffsetForPartition(Exception):
    """`auto_offset_reset` is NONE, and nothing is committed for these partitions."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        super().__init__(f"no offset is committed for {sorted(partitions)}, and auto.offset.reset is none")
        self.partitions = frozenset(partitions)


class OffsetOutOfRange(Exception):
    """`auto_offset_reset` is NONE, and this offset isn't there: deleted, or not yet written."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(f"{partition} has no offset {offset}, and auto.offset.reset is none")
        self.partition = partition
        self.offset = offset


class IsolationLevel(IntEnum):
    """Choice of records to read: all, or none of transactions that are open or aborted."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class OffsetReset(Enum):
    """Where to begin if there is no position; as a timestamp of ListOffsets."""

    EARLIEST = -2
    LATEST = -1
    NONE = None


class ConsumerRecord(NamedTuple):
    """A record as it was read; the timestamp is in ms, the leader's epoch that of its batch."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    leader_epoch: int = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next one to read, and words of one's own."""

    offset: int
    metadata: str = ""


class RebalanceListener(Protocol):
    """Called within `poll` (and `close`), in whose loop it may use the consumer: commit, seek, pause.

    A cooperative rebalance names only what changes; an eager one everything, each time.
    """

    async def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Hear that partitions are given back. The consumer is still a member: it may commit."""

    async def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Hear that partitions are added."""

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Hear that partitions may be somebody else's already: the consumer is no member any more, and can't commit."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """As in Java's ConsumerConfig, with its defaults. ValueError: settings that can't be."""

    group_id: str | None = None
    group_instance_id: str | None = None
    partition_assignment_strategy: tuple[str, ...] = ("range", "cooperative-sticky")
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    auto_offset_reset: OffsetReset = OffsetReset.LATEST
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 1 << 20
    check_crcs: bool = True
    client_rack: str = ""
    metadata_max_age_ms: int = 300_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100

    def __post_init__(self) -> None:
        unknown = [name for name in self.partition_assignment_strategy if name not in ASSIGNORS]
        if unknown or not self.partition_assignment_strategy:
            raise ValueError(f"assignors are {', '.join(ASSIGNORS)}, not {', '.join(unknown) or 'none'}")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat.interval.ms must be lower than session.timeout.ms")
        if self.group_instance_id == "":
            raise ValueError("group.instance.id must not be empty")

    @property
    def retry_backoff_s(self) -> float:
        """How long to wait before something is asked again."""
        return self.retry_backoff_ms / 1000
