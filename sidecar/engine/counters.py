"""The engine's counters: plain numbers that its own thread counts up and `Stats` publishes."""

import sys
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from sidecar.ledger.block import Settled
from sidecar.model.record import Outcome
from sidecar.model.stats import LATENESS_BOUNDS_MS, Lateness, TopicCounts, lateness_bucket

COUNTED: Final = tuple(outcome for outcome in Outcome if outcome is not Outcome.MOVED)
LATENESS_FINE_MS: Final = 1_024  # lateness is counted by the millisecond below this, beyond it by bucket
_FINE_EDGES_MS: Final = (0, *(bound + 1 for bound in LATENESS_BOUNDS_MS), sys.maxsize)  # bucket: edge <= ms < the next


@dataclass(slots=True)
class EngineCounters:
    """Counts since the process started, by source topic."""

    accepted: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, int]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    not_found: Counter[str] = field(default_factory=Counter)  # control records that hit nothing
    late: list[int] = field(default_factory=lambda: [0] * LATENESS_FINE_MS)
    very_late: Counter[int] = field(default_factory=Counter)  # by bucket of LATENESS_BOUNDS_MS
    late_sum_ms: int = 0
    late_max_ms: int = 0
    early: int = 0
    rebuilds: int = 0
    rebuilt: Counter[str] = field(default_factory=Counter)  # records written to Redis once more
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)  # (topic, whose retention took them)

    def settled(self, topic: str, settled: Settled) -> None:
        """Count one block's settled records."""
        counts, reasons = Counter(settled.outcomes), settled.reasons
        for outcome, count in counts.items():
            # A record that was moved goes on: it stands for the control record whose offset it has now.
            self.outcomes[topic, Outcome.APPLIED if outcome == Outcome.MOVED else outcome] += count
        if reasons or counts[Outcome.APPLIED]:
            for offset, outcome in zip(settled.offsets, settled.outcomes, strict=True):
                if offset in reasons:
                    self.reasons[topic, outcome, reasons[offset]] += 1
                if outcome == Outcome.APPLIED and offset not in settled.related:
                    self.not_found[topic] += 1

    def handed_over(self, now_ms: int, dues_ms: Sequence[int]) -> None:
        """Records with these due times go to the producer now."""
        late, latest_ms = self.late, now_ms - min(dues_ms)
        self.late_sum_ms += now_ms * len(dues_ms) - sum(dues_ms)
        self.late_max_ms = max(self.late_max_ms, latest_ms)
        for due_ms, count in Counter(dues_ms).items():
            late_ms = now_ms - due_ms
            if 0 <= late_ms < LATENESS_FINE_MS:
                late[late_ms] += count
            elif late_ms > 0:
                self.very_late[lateness_bucket(late_ms)] += count
            else:
                self.early += count
                late[0] += count
                self.late_sum_ms -= late_ms * count

    def lateness(self) -> Lateness:
        """The histogram in the bounds that are published."""
        late = self.late
        counts = [sum(late[first:stop]) for first, stop in pairwise(_FINE_EDGES_MS)]
        for bucket, count in self.very_late.items():
            counts[bucket] += count
        fine_max_ms = max(bytes(map(bool, late)).rfind(1), 0)
        return Lateness(tuple(counts), float(self.late_sum_ms), float(max(self.late_max_ms, fine_max_ms)))

    def topic_counts(self, topic: str, wheel: int, overflow: int, parked: int) -> TopicCounts:
        """The published counts of one topic."""
        outcomes = {outcome.name.lower(): self.outcomes[topic, outcome] for outcome in COUNTED}
        held = {"wheel": wheel, "overflow": overflow, "parked": parked}
        return TopicCounts(accepted=self.accepted[topic], not_found=self.not_found[topic], **held, **outcomes)

    def forget(self, topics: Container[str]) -> None:
        """Remove the counts of these: there are no such topics any more."""
        for counts in (self.accepted, self.not_found, self.rebuilt):
            for topic in [topic for topic in counts if topic in topics]:
                del counts[topic]
        by_topic: Iterable[Counter[Any]] = (self.outcomes, self.reasons, self.lost)
        for of_many in by_topic:
            for key in [key for key in of_many if key[0] in topics]:
                del of_many[key]

    def by_reason(self, outcome: Outcome) -> dict[tuple[str, str], int]:
        """(topic, reason) -> count of one outcome."""
        return {(topic, reason): n for (topic, kind, reason), n in self.reasons.items() if kind == outcome}
