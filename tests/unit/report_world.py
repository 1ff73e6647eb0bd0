"""Reports of replicas, and what one look at a group sees: whole ones, of which a test says what matters."""

from collections.abc import Sequence
from typing import Any

from sidecar.lookup.report import MINUTE_MS, DueMinute, Flow, Minute, Overview, Replica, Report, Target, Wait
from sidecar.model.record import TopicPartition
from sidecar.model.stats import LATENESS_BOUNDS_MS, lateness_bucket
from sidecar.overview.seen import Seen

NOW_MS = 1_800_000_000_000
LANE = TopicPartition("reminders", 3)


def late(*lateness_ms: int) -> tuple[int, ...]:
    """Buckets with these latenesses."""
    counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
    for one in lateness_ms:
        counts[lateness_bucket(one)] += 1
    return tuple(counts)


def report(replica: str = "tickover-0", **fields: Any) -> Report:
    """A replica with which all is well."""
    known: dict[str, Any] = {"run": f"run-of-{replica}", "version": "0.2.0", "at_ms": NOW_MS, "started_ms": NOW_MS}
    return Report(replica=replica, **(known | fields))


def report_of(forecast_problem: str) -> Report:
    """A report, as `GroupLookUp` asks for it."""
    return report(forecast_problem=forecast_problem)


def seen(*reports: Report, **fields: Any) -> Seen:
    """A look at a group of these. `minutes`, `missing` and `problem` are those of its overview, `read` of the first."""
    read = fields.pop("read", {})
    replicas = [Replica(one, read if number == 0 else {}) for number, one in enumerate(reports)]
    parts = {"minutes": {}, "missing": [], "problem": ""}
    overview = Overview(replicas, **{name: fields.pop(name, default) for name, default in parts.items()})
    known: dict[str, Any] = {
        "group": "payments", "guarantee": "exactly_once", "at_ms": NOW_MS, "overview": overview,
        "silent": (), "lags": {}, "pauses": {},
    }  # fmt: skip
    return Seen(**(known | fields))


def busy_report() -> Report:
    """A replica that emits, with a target that is limited and one that doesn't acknowledge."""
    flow: dict[str, Any] = {
        "emitted": 120,
        "retried": 20,
        "dead": 2,
        "quarantined": 1,
        "late": late(*(3,) * 118, 90, 400),
    }
    return report(
        memory_bytes=134_217_728,
        partitions=12,
        wheel=92_410,
        overflow=1_111_921,
        late_max_ms=420,
        next_due_ms=NOW_MS + 300,
        targets=(Target(topic="mail-gateway", waiting=8_214, rate=100.0, breaker="open"),),
        suspended=("push",),
        waits=(
            Wait(kind="suspended", topic="push", since_ms=NOW_MS - 960_000),
            Wait(kind="breaker", topic="mail-gateway", since_ms=NOW_MS - 60_000),
        ),
        last_minute=Flow(**flow),
        near=(DueMinute(minute=NOW_MS // MINUTE_MS, held=5),),
        minutes=(Minute(at_ms=NOW_MS // MINUTE_MS * MINUTE_MS, **flow),),
    )


class MemoryOverview:
    """A group that is seen as a test says."""

    def __init__(self, *reports: Report) -> None:
        self.seen = seen(
            *(reports or (busy_report(),)), read={LANE: 9}, lags={LANE: 4}, minutes={NOW_MS // MINUTE_MS: 7}
        )
        self.looks: Sequence[None] = ()

    def look(self) -> Seen:
        self.looks = [*self.looks, None]
        return self.seen
