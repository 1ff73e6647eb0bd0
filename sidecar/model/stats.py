"""Figures that the engine publishes about itself: one frozen value, replaced whole, read by any thread."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sidecar.model.condition import Condition, Pausable

LATENESS_BOUNDS_MS = (1, 2, 4, 8, 15, 25, 40, 60, 100, 250, 500, 1_000, 2_500, 5_000, 15_000, 60_000, 300_000)


@dataclass(frozen=True, slots=True)
class TopicCounts:
    """Counts of one source topic since this process started, and what it holds now."""

    accepted: int = 0
    emitted: int = 0
    dead: int = 0
    quarantined: int = 0
    cancelled: int = 0
    replaced: int = 0
    applied: int = 0
    not_found: int = 0  # of the applied ones: there was no such record
    wheel: int = 0
    overflow: int = 0
    parked: int = 0  # of the held ones: behind another of the same key


@dataclass(frozen=True, slots=True)
class Lateness:
    """Histogram of hand-over to the producer minus due, milliseconds; `counts` has one place more than the bounds."""

    counts: tuple[int, ...] = (0,) * (len(LATENESS_BOUNDS_MS) + 1)
    sum_ms: float = 0.0
    max_ms: float = 0.0

    def percentile(self, share: float) -> float:
        """Upper bound in milliseconds of the bucket where `share` (0..1) of all records is reached; 0 when empty."""
        wanted = share * sum(self.counts)
        if wanted <= 0:
            return 0.0
        reached = 0
        for bound, count in zip(LATENESS_BOUNDS_MS, self.counts, strict=False):
            reached += count
            if reached >= wanted:
                return min(float(bound), self.max_ms)
        return self.max_ms


def lateness_bucket(late_ms: float) -> int:
    """Index into `Lateness.counts` for one lateness."""
    return bisect_left(LATENESS_BOUNDS_MS, late_ms)


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """A partition whose overflow Redis has lost, and how much of it is there again."""

    topic: str
    partition: int
    done: int  # written back, or found there
    held: int  # what the overflow should have
    problem: str = ""  # why it waits
    read_share: float = -1.0  # of the ledger that has to be read, 0 to 1; -1: other partitions come first

    def __str__(self) -> str:
        how_far = "waits for its turn" if self.read_share < 0 else f"{self.read_share:.0%} of the ledger read"
        return f"{self.done} of {self.held} records, {how_far}" + (f"; {self.problem}" if self.problem else "")


@dataclass(frozen=True, slots=True)
class TargetFlow:
    """State of flow control for one target."""

    waiting: int = 0  # records that are due and wait
    rate: float = 0.0  # this process's share of the target's rate, records a second; 0: no such limit
    breaker: str = ""  # closed, half_open or open; "": there is none


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use that this process makes of a policy's quota; `share` of it in the fullest partition, 1: all."""

    records: int = 0
    bytes: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Left:
    """Records that the group still has of a topic that isn't a source any more: those held in the overflow, and those
    from the committed offset on.
    """

    held: int
    unsettled: int

    @property
    def records(self) -> int:
        return self.held + self.unsettled


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of the engine. Times are epoch milliseconds unless the name says otherwise."""

    replica: str = ""
    turned_monotonic_s: float = 0.0  # time.monotonic() of the last turn: /livez compares
    topics: Mapping[str, TopicCounts] = field(default_factory=lambda: MappingProxyType({}))
    dead_reasons: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))
    quarantine_reasons: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))
    targets: Mapping[str, TargetFlow] = field(default_factory=lambda: MappingProxyType({}))  # of limited ones
    suspended: tuple[str, ...] = ()  # targets that don't acknowledge
    suspended_since_ms: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # those, as first seen
    paused: Mapping[Pausable, int] = field(default_factory=lambda: MappingProxyType({}))  # records that wait for each
    quotas: Mapping[str, QuotaUse] = field(default_factory=lambda: MappingProxyType({}))  # by policy
    lateness: Lateness = Lateness()
    early: int = 0
    oldest_overdue_ms: int = 0  # how long the oldest due record has waited, or may have where Redis is away
    next_due_ms: int = -1  # epoch ms at which the next held record is due, as housekeeping saw it; -1 when none is
    partitions_assigned: int = 0
    partitions_recovering: int = 0
    partitions_paused: int = 0
    rebalances: int = 0
    recovery_s: float = 0.0  # duration of the last recovery
    rebuilding: tuple[RebuildProgress, ...] = ()
    rebuilds: int = 0  # rebuilds of a partition's overflow that were finished
    rebuilt: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # records written back, by topic
    lost: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))  # by (topic, retention)
    ledger_imbalance: int = 0
    clock_skew_ms: int = 0  # how far this clock is ahead of the broker's
    kafka_problem: str = ""  # "" when all is well, else what is wrong, for /readyz
    overflow_problem: str = ""
    warnings: tuple[str, ...] = ()  # what is wrong though this process does its work, for /readyz
    joined: bool = False  # the group has given this process its share
    not_taken_in: str = ""  # why the group refuses this process, for /readyz
    at_ms: int = 0  # when the snapshot was made, by the clock that says what is due
    conditions: tuple[Condition, ...] = ()  # what keeps records waiting, and which partitions are here

    @property
    def problems(self) -> tuple[str, ...]:
        """Why this process isn't ready; empty when it is."""
        refused = f"the consumer group refuses this process: {self.not_taken_in}" if self.not_taken_in else ""
        waiting = () if self.joined else (refused or "waiting for the consumer group",)
        recovering = (f"{self.partitions_recovering} partitions recovering",) if self.partitions_recovering else ()
        lost = tuple(f"the overflow of {one.topic}/{one.partition} is being rebuilt: {one}" for one in self.rebuilding)
        return (*waiting, *recovering, *lost, *(text for text in (self.kafka_problem, self.overflow_problem) if text))

    @property
    def problem_kinds(self) -> tuple[str, ...]:
        """As `problems`, without words of Kafka and Redis: they name hosts, topics and addresses."""
        kinds = {
            "waiting for the consumer group": not self.joined,
            "partitions are recovering": self.partitions_recovering,
            "the overflow is being rebuilt": self.rebuilding,
            "a problem with Kafka": self.kafka_problem,
            "a problem with Redis": self.overflow_problem,
        }
        return tuple(kind for kind, is_there in kinds.items() if is_there)
