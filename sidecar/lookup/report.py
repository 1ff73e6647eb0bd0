"""The report that a replica gives the others of itself: figures, its last hour by minute, what keeps records waiting.

It goes through Redis, where anybody with the right to write may say anything: no text is longer than a limit, no list
either, and no number is outside of its range. Fields of a newer version are passed over; what an older one doesn't
say has a default.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from policies.fields import is_topic
from policies.headers import OFFSET_MAX
from sidecar.lookup.query import TIME_MAX_MS
from sidecar.model.record import TopicPartition
from sidecar.model.stats import LATENESS_BOUNDS_MS

MINUTES: Final = 60  # that are told
MINUTE_MS: Final = 60_000
LISTED_MAX: Final = 1_000  # of targets, rebuilds and waits; more are left out
WARNINGS_MAX: Final = 100
TEXT_MAX: Final = 1_000
BUCKETS: Final = len(LATENESS_BOUNDS_MS) + 1


def _topic(text: str) -> str:
    if text and not is_topic(text):
        raise ValueError("no topic")
    return text


Count = Annotated[int, Field(ge=0, le=OFFSET_MAX)]
Number = Annotated[int, Field(ge=-OFFSET_MAX, le=OFFSET_MAX)]
TimeMs = Annotated[int, Field(ge=-1, le=TIME_MAX_MS)]  # -1: none, or not known
Text = Annotated[str, StringConstraints(max_length=TEXT_MAX)]
Topic = Annotated[str, AfterValidator(_topic)]  # "": none
Buckets = Annotated[tuple[Count, ...], Field(min_length=BUCKETS, max_length=BUCKETS)]


class Told(BaseModel):
    """Part of a report."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Flow(Told):
    """Counts of what a process did in a while. `late`: emitted records by their lateness, as `Lateness.counts`."""

    emitted: Count = 0
    retried: Count = 0  # of the emitted ones: from a topic with a policy of retries
    dead: Count = 0
    quarantined: Count = 0
    late: Buckets = (0,) * BUCKETS


class Minute(Flow):
    """A minute that began at `at_ms`."""

    at_ms: TimeMs


class Target(Told):
    """A limited target, as `TargetFlow`."""

    topic: Topic
    waiting: Count = 0
    rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    breaker: Text = ""


class Rebuild(Told):
    """A partition whose overflow is written again, as `RebuildProgress`."""

    topic: Topic
    partition: Count
    done: Count = 0
    held: Count = 0
    read_share: Annotated[float, Field(ge=-1, le=1)] = -1.0
    problem: Text = ""


class DueMinute(Told):
    """Records in memory that are due in a minute, which is counted from the epoch."""

    minute: Count
    held: Count


class Wait(Told):
    """A condition that goes on (`sidecar.model.condition`), and since when."""

    kind: Text
    topic: Topic = ""
    partition: Number = -1
    since_ms: TimeMs = -1


class Report(Told):
    """One process of the group at one moment. `run`: one start of it; no other start has this name."""

    replica: Text
    run: Text
    version: Text = ""
    at_ms: TimeMs = -1
    started_ms: TimeMs = -1
    turn_age_ms: Count = 0  # how long ago the engine has turned
    memory_bytes: Count = 0
    partitions: Count = 0
    recovering: Count = 0
    paused: Count = 0
    recovery_ms: Count = 0  # how long the last recovery took
    wheel: Count = 0
    overflow: Count = 0
    parked: Count = 0
    oldest_overdue_ms: Count = 0
    next_due_ms: TimeMs = -1
    late_max_ms: Count = 0
    early: Count = 0
    ledger_imbalance: Number = 0
    clock_skew_ms: Number = 0
    targets: Annotated[tuple[Target, ...], Field(max_length=LISTED_MAX)] = ()
    suspended: Annotated[tuple[Topic, ...], Field(max_length=LISTED_MAX)] = ()
    rebuilding: Annotated[tuple[Rebuild, ...], Field(max_length=LISTED_MAX)] = ()
    waits: Annotated[tuple[Wait, ...], Field(max_length=LISTED_MAX)] = ()
    last_minute: Flow = Flow()
    minutes: Annotated[tuple[Minute, ...], Field(max_length=MINUTES)] = ()
    near: Annotated[tuple[DueMinute, ...], Field(max_length=MINUTES)] = ()  # of the hour to come
    kafka_problem: Text = ""
    overflow_problem: Text = ""
    group_problem: Text = ""  # why the group hasn't given it partitions
    forecast_problem: Text = ""  # why it can't say what is due when
    warnings: Annotated[tuple[Text, ...], Field(max_length=WARNINGS_MAX)] = ()


class Replica(NamedTuple):
    """One that has answered: its report, and of each of its partitions the offset to be read next."""

    report: Report
    read: Mapping[TopicPartition, int]


class Overview(NamedTuple):
    """Reports of all replicas. `minutes`: held records by the minute in which they are due, later ones
    by -1. `missing`: partitions that nobody answered for. `problem`: why others could not be asked; empty: they were.
    """

    replicas: Sequence[Replica]
    minutes: Mapping[int, int]
    missing: Sequence[TopicPartition]
    problem: str = ""


def read_report(row: Any) -> Report:
    """A report as `row_of_report` writes it. Raises ValueError for anything else; the text has nothing of it."""
    try:
        return Report.model_validate_json(json.dumps(row))  # as JSON lists are tuples, and nothing else becomes another
    except (ValidationError, TypeError, RecursionError):
        raise ValueError("no report") from None


def row_of_report(report: Report) -> dict[str, Any]:
    """Plain data, for JSON."""
    return report.model_dump(mode="json")
