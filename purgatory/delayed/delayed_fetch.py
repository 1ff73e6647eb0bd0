"""A fetch that waits for enough bytes, or for anything that makes waiting pointless.

It answers by reading everything again, whatever woke it, so the decision need not be exact: it only must not be missed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from purgatory.errors import Errors
from purgatory.log_offsets import (
    UNKNOWN_OFFSET,
    EpochEndOffset,
    Isolation,
    LogOffsetMetadata,
    LogOffsetSnapshot,
    TopicPartition,
)
from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.versions import LATEST, KafkaVersion

CONSUMER = -1
READ_COMMITTED = 1


def isolation_of(replica_id: int, isolation_level: int) -> Isolation:
    """How far a reader may see: followers to the end, whatever they ask for; consumers by what they do."""
    if replica_id != CONSUMER:
        return Isolation.LOG_END
    return Isolation.TXN_COMMITTED if isolation_level == READ_COMMITTED else Isolation.HIGH_WATERMARK


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """Rack and client id that a consumer tells of itself, from fetch version 11 on."""

    rack_id: str = ""
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class FetchParams:
    """Parameters for all partitions of a fetch. `replica_id` is -1 for a consumer; times in ms, sizes in bytes.

    `min_bytes` is at most `max_bytes`: more than it may send would never be there.
    """

    replica_id: int = CONSUMER
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    isolation: Isolation = Isolation.HIGH_WATERMARK
    client_metadata: ClientMetadata | None = field(default_factory=ClientMetadata)
    replica_epoch: int = -1
    hard_max_bytes_limit: bool = False  # fetch up to version 2: a first batch may be cut

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_bytes", min(self.min_bytes, self.max_bytes))

    @property
    def is_from_follower(self) -> bool:
        """Whether another broker asks."""
        return self.replica_id >= 0

    @property
    def fetch_only_leader(self) -> bool:
        """Whether only the leader may answer: followers ask leaders, and so do consumers before version 11."""
        return self.is_from_follower or self.client_metadata is None


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """Parameters of a fetch for one partition. Epochs are None if not given."""

    fetch_offset: int
    max_bytes: int = 1024 * 1024
    log_start_offset: int = -1
    current_leader_epoch: int | None = None
    last_fetched_epoch: int | None = None
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchPartitionStatus:
    """A partition of a waiting fetch. `start` is where it begins, UNKNOWN_OFFSET if the first read didn't say."""

    partition: FetchPartition
    start: LogOffsetMetadata = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """A partition as a waiting fetch sees it. `epoch_end` answers `last_fetched_epoch`: where that epoch ends, or an
    error. `is_throttled` is asked for followers only."""

    error: Errors = Errors.NONE
    ends: LogOffsetSnapshot | None = None
    epoch_end: EpochEndOffset | Errors | None = None
    is_throttled: bool = False


class FetchDecision(Enum):
    """Why a fetch completes, by Kafka's letters for the cases."""

    WAIT = "-"
    NOT_LEADER_OR_FOLLOWER = "A/B"
    UNKNOWN_TOPIC_OR_PARTITION = "C"
    STORAGE_ERROR = "D"
    FENCED_LEADER_EPOCH = "E"
    TRUNCATED = "F1"
    OLDER_SEGMENT = "F2"
    ENOUGH_BYTES = "G"
    DIVERGED = "H"


ERRORS = {
    Errors.NOT_LEADER_OR_FOLLOWER: FetchDecision.NOT_LEADER_OR_FOLLOWER,
    Errors.UNKNOWN_TOPIC_OR_PARTITION: FetchDecision.UNKNOWN_TOPIC_OR_PARTITION,
    Errors.KAFKA_STORAGE_ERROR: FetchDecision.STORAGE_ERROR,
    Errors.FENCED_LEADER_EPOCH: FetchDecision.FENCED_LEADER_EPOCH,
}


def decide_fetch(
    params: FetchParams, partitions: Iterable[tuple[FetchPartitionStatus, FetchSnapshot]]
) -> FetchDecision:
    """Partitions in the order of the request; the first one that ends the wait decides."""
    accumulated = 0
    for status, snapshot in partitions:
        if status.start == UNKNOWN_OFFSET:
            continue
        if snapshot.error is not Errors.NONE or snapshot.ends is None:
            # An unknown (newer) leader epoch is not in Kafka's list either: it waits.
            return ERRORS.get(snapshot.error, FetchDecision.WAIT)
        end = snapshot.ends.end_for(params.isolation)
        fetch_offset = status.partition.fetch_offset
        is_held_back = params.is_from_follower and snapshot.is_throttled
        if fetch_offset > end.offset:
            return FetchDecision.TRUNCATED
        if fetch_offset < end.offset:
            if status.start.on_older_segment(end) and not is_held_back:
                return FetchDecision.OLDER_SEGMENT
            if status.start.on_same_segment(end) and not is_held_back:
                accumulated += min(end.position_diff(status.start), status.partition.max_bytes)
        if _has_diverged(status.partition, snapshot.epoch_end):
            return FetchDecision.DIVERGED
    return FetchDecision.ENOUGH_BYTES if accumulated >= params.min_bytes else FetchDecision.WAIT


def _has_diverged(partition: FetchPartition, epoch_end: EpochEndOffset | Errors | None) -> bool:
    if partition.last_fetched_epoch is None or epoch_end is None:
        return False
    if isinstance(epoch_end, Errors) or epoch_end.is_undefined:
        return True
    return epoch_end.diverges_from(partition.last_fetched_epoch, partition.fetch_offset)


class DelayedFetch(DelayedOperation):
    """`look` gives the snapshot of a partition; `read` reads everything again and answers; `expired` is told of the
    timeout, which is an answer like any other: fewer bytes than wanted."""

    def __init__(
        self,
        params: FetchParams,
        partitions: Sequence[tuple[TopicPartition, FetchPartitionStatus]],
        look: Callable[[TopicPartition, FetchPartition], FetchSnapshot],
        read: Callable[[], None],
        *,
        expired: Callable[[], None] | None = None,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(params.max_wait_ms, version=version)
        self.params = params
        self.partitions = partitions
        self.decision = FetchDecision.WAIT
        self._look = look
        self._read = read
        self._expired = expired

    def try_complete(self) -> bool:
        """Decide; snapshots are taken one by one, and none after the one that decides."""
        snapshots = ((status, self._look(key, status.partition)) for key, status in self.partitions)
        self.decision = decide_fetch(self.params, snapshots)
        return self.decision is not FetchDecision.WAIT and self.force_complete()

    def on_complete(self) -> None:
        """Read and answer."""
        self._read()

    def on_expiration(self) -> None:
        """Tell that its time is over."""
        if self._expired is not None:
            self._expired()
