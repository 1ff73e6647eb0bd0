"""Report of a run: a row for each round, the goals with met or not, and both as JSON and as tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.nemesis.judge import Times
from tests.nemesis.rounds import KINDS, LEADER_KILLED, RESTARTED, Round
from tests.services.oracle import Verdict

RESTART_P99_MAX_S: Final = 1.0
RESUMED_MAX_S: Final = 3.0
LATE_MAX_S: Final = 15.0
MENDED_MAX_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """One round for readers; times in seconds, None where there is no such time.

    `failover_s`: fault to Kafka serving a plain client, or, of brokers restarted in order, the longest time in which it
    served none; `resumed_s`: from there to emissions of every source partition;
    `lasted_s`: fault to undone (a cut, a freeze, a restart); `after_s`: from there to such emissions.
    """

    kind: str
    what: str
    failover_s: float | None
    resumed_s: float | None
    lasted_s: float | None
    after_s: float | None
    late_s_p99: float
    late_s_most: float
    written_late_s_most: float
    due: int
    lost: int
    repeated: int
    early: int
    sidecars_ended: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, and the worst that was measured; None: no such round."""

    what: str
    most_s: float
    worst_s: float | None

    @property
    def met(self) -> bool | None:
        """None where nothing was measured."""
        return None if self.worst_s is None else self.worst_s <= self.most_s


@dataclass(frozen=True, slots=True)
class Run:
    """All of it."""

    seed: int
    minutes: float
    rate: int
    uncut: str  # why links were not cut; "": they were
    rows: tuple[Row, ...]
    verdict: Verdict

    @property
    def violated(self) -> bool:
        """True when something happened that `exactly_once` rules out, or a round broke off."""
        found = self.verdict
        wrong = found.lost or found.early or found.changed or found.repeated
        return bool(wrong or not self.rows or any(row.error for row in self.rows))

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "seed": self.seed,
            "minutes": self.minutes,
            "rate": self.rate,
            "uncut": self.uncut,
            "verdict": asdict(self.verdict),
            "rows": [asdict(row) for row in self.rows],
        }


def read(document: Mapping[str, Any]) -> Run:
    """The run that `document` was made of; whatever else is in it is left alone."""
    verdict = Verdict(**{**document["verdict"], "faults": tuple(document["verdict"]["faults"])})
    names = ("seed", "minutes", "rate", "uncut")
    return Run(**{name: document[name] for name in names}, rows=tuple(map(row_of, document["rows"])), verdict=verdict)


def row_of(fields: Mapping[str, Any]) -> Row:
    return Row(**fields)


def row(one: Round, times: Times) -> Row:
    """A round with what became of its records."""
    return Row(
        one.kind, one.what,
        failover_s=one.silence_ms / 1_000 if one.silence_ms >= 0 else _seconds(one.fault_ms, one.served_ms),
        resumed_s=_seconds(one.served_ms, one.resumed_ms),
        lasted_s=_seconds(one.fault_ms, one.undone_ms) if one.lasting else None,
        after_s=_seconds(one.undone_ms, one.after_ms) if one.lasting else None,
        late_s_p99=times.late_ms_p99 / 1_000, late_s_most=times.late_ms_most / 1_000,
        written_late_s_most=max(0, times.written_late_ms_most) / 1_000,
        due=times.due, lost=times.lost, repeated=times.repeated, early=times.early,
        sidecars_ended=one.sidecars_ended, error=one.error,
    )  # fmt: skip


def _seconds(from_ms: int, to_ms: int) -> float | None:
    return (to_ms - from_ms) / 1_000 if from_ms >= 0 and to_ms >= 0 else None


# --- goals --------------------------------------------------------------------------------------------------------


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Each with the worst of its rounds."""
    restarted = [row for row in rows if row.kind == RESTARTED and not row.error]
    killed = [row for row in rows if row.kind == LEADER_KILLED and not row.error]
    cut = [row for row in rows if KINDS[row.kind].cuts and not row.error]
    return [
        Goal(
            "brokers restarted in order: p99 of lateness", RESTART_P99_MAX_S, _worst(restarted, lambda r: r.late_s_p99)
        ),
        Goal(
            "leader killed: emissions after Kafka's own fail-over", RESUMED_MAX_S, _worst(killed, lambda r: r.resumed_s)
        ),
        Goal("leader killed: longest lateness", LATE_MAX_S, _worst(killed, lambda r: r.late_s_most)),
        Goal("links whole again: emissions after that", MENDED_MAX_S, _worst(cut, lambda r: r.after_s)),
    ]


def _worst(rows: Sequence[Row], figure: Callable[[Row], float | None]) -> float | None:
    return max((value for row in rows if (value := figure(row)) is not None), default=None)


def goals_table(found: Sequence[Goal]) -> str:
    lines = ["| goal | at most | worst | met |", "|---|---|---|---|"]
    words = {None: "not tried", True: "yes", False: "no"}
    lines += [f"| {one.what} | {one.most_s:.0f} s | {_shown(one.worst_s)} | {words[one.met]} |" for one in found]
    return "\n".join(lines)


# --- rounds -------------------------------------------------------------------------------------------------------


COLUMNS: Final = (
    "round",
    "fault to Kafka's fail-over",
    "then to emissions",
    "fault lasted",
    "then to emissions",
    "p99 late",
    "latest",
    "latest in the log",
    "due",
    "lost",
    "repeated",
    "early",
)


def rounds_table(rows: Sequence[Row]) -> str:
    """A line for each round."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    lines += [line(row) for row in rows]
    return "\n".join(lines)


def line(row: Row) -> str:
    """A round in the table; while records are on their way they still count as lost."""
    what = f"{row.kind}: {row.what}" if row.what else row.kind
    if row.sidecars_ended:
        what += "; started again"
    if row.error:
        what += f"; broke off: {row.error.splitlines()[0][:200]}"
    since = (row.failover_s, row.resumed_s, row.lasted_s, row.after_s)
    times = " | ".join(map(_shown, (*since, row.late_s_p99, row.late_s_most, row.written_late_s_most)))
    return f"| {what} | {times} | {row.due:,} | {row.lost} | {row.repeated} | {row.early} |"


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
