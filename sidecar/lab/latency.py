"""Latency as it was measured, and where the time goes. No client and no clock here; all times in ms.

A record's way, and what is measured of it, as time after the call of `produce`:

    produce()  producer queue  sent  append  appended  replication  delayed fetch  fetched  consumer  received
    |------------------------->|------------>|------------------------------------>|------------------>|
                                             |  delayed produce  acked
                                             |------------------>|

`sent` is the client library's own measure; `appended` the broker's time stamp; `acked` the delivery report; `fetched`
the answer to a fetch as it comes from the socket; `received` what `poll` of a consumer gives. A request's way over the
network is in the part that it begins or ends.

Two parts can't be seen in one case alone. What replication takes is how much later a record can be fetched than with
one replica. What delayed produce takes, the wait of a produce request for the in-sync replicas, is how much longer
acks=-1 takes than acks=1.

`draw` makes a plot of the rows: one bar to a case, its parts side by side as time goes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import ceil
from statistics import fmean
from typing import Any, Final

ALL: Final = -1
PARTS: Final = ("producer_queue_ms", "append_ms", "replication_ms", "delayed_fetch_ms", "consumer_ms")
"""What a consumer waits for, in order; with what can't be told left out they add up to its mean latency."""

COLOURS: Final = ("#8c959f", "#0969da", "#8250df", "#bf8700", "#2da44e")


@dataclass(frozen=True, slots=True)
class Case:
    """Settings of one measurement, by Kafka's names."""

    acks: int
    replicas: int
    linger_ms: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One case on one cluster: `acked` and `received` of each record, the others as means; `round_trip`: the median of
    requests with which a broker has nothing to do."""

    cluster: str
    case: Case
    acked: Sequence[float]
    received: Sequence[float]
    sent: float
    appended: float
    fetched: float
    round_trip: float


def settings_text(case: Case) -> str:
    """A case in one line."""
    return f"acks={case.acks} replicas={case.replicas} linger.ms={case.linger_ms} batch.size={case.batch_size}"


def cases(
    acks: Sequence[int], replicas: Sequence[int], lingers: Sequence[int], batch_sizes: Sequence[int]
) -> list[Case]:
    """Every combination of these values."""
    return [
        Case(one_acks, one_replicas, linger, batch_size)
        for one_replicas in replicas
        for linger in lingers
        for batch_size in batch_sizes
        for one_acks in acks
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank: the least value that `share` (0 to 1) of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(share * len(ordered)) - 1, 0)]


def rows(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """One row to a case: latency as the producer and as the consumer sees it, and the means of its parts."""
    known = {(one.cluster, one.case): one for one in measured}
    return [_row(one, known) for one in measured]


def _row(one: Measured, known: Mapping[tuple[str, Case], Measured]) -> dict[str, Any]:
    case = one.case
    alone = known.get((one.cluster, replace(case, replicas=1)))
    leader_only = known.get((one.cluster, replace(case, acks=1)))
    visible = one.fetched - one.appended
    replication = None if alone is None else visible - (alone.fetched - alone.appended)
    delayed_produce = None
    if case.acks == ALL and leader_only is not None:
        delayed_produce = _answer(one) - _answer(leader_only)
    found = {
        "produce_p50_ms": percentile(one.acked, 0.5),
        "produce_p99_ms": percentile(one.acked, 0.99),
        "consume_p50_ms": percentile(one.received, 0.5),
        "consume_p99_ms": percentile(one.received, 0.99),
        "producer_queue_ms": one.sent,
        "append_ms": one.appended - one.sent,
        "delayed_produce_ms": delayed_produce,
        "replication_ms": replication,
        "delayed_fetch_ms": visible - (replication or 0),
        "consumer_ms": fmean(one.received) - one.fetched,
        "round_trip_ms": one.round_trip,
    }
    settings = {
        "cluster": one.cluster,
        "acks": case.acks,
        "replicas": case.replicas,
        "linger_ms": case.linger_ms,
        "batch_size": case.batch_size,
        "records": len(one.received),
    }
    return settings | {name: None if value is None else round(value, 3) for name, value in found.items()}


def _answer(one: Measured) -> float:
    """From the append to the delivery report."""
    return fmean(one.acked) - one.appended


def explain(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences about rows: what each setting costs here, and which part of the way that is."""
    said: list[str] = []
    for cluster in dict.fromkeys(row["cluster"] for row in found):
        own = [row for row in found if row["cluster"] == cluster]
        said += [f"{cluster}: {text}" for text in (*_about_acks(own), *_about_linger(own), _about_largest(own))]
    return said


def _about_acks(own: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if any(row["acks"] == 0 for row in own):
        told = fmean(row["produce_p50_ms"] for row in own if row["acks"] == 0)
        yield f"acks=0 ends at {told:.2f} ms (p50), when the request is written: no answer, and no error, comes back"
    for replicas in sorted({row["replicas"] for row in own}):
        rows_of = [row for row in own if row["replicas"] == replicas]
        waits = [row["delayed_produce_ms"] for row in rows_of if row["delayed_produce_ms"] is not None]
        if waits:
            why = "until every in-sync replica has the record" if replicas > 1 else "but there is nobody to wait for"
            words = f"{replicas} replica{'s' if replicas > 1 else ''}"
            yield f"acks=-1 with {words} takes {fmean(waits):.2f} ms more than acks=1: delayed produce, {why}"
        copied = [row["replication_ms"] for row in rows_of if row["replication_ms"] is not None]
        if copied and replicas > 1:
            yield (
                f"with {replicas} replicas a consumer waits {fmean(copied):.2f} ms for replication, whatever acks is: "
                "it reads up to the high watermark only"
            )


def _about_linger(own: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    lingers = sorted({row["linger_ms"] for row in own})
    if len(lingers) > 1:
        queued = {one: fmean(row["producer_queue_ms"] for row in own if row["linger_ms"] == one) for one in lingers}
        times = ", ".join(f"{time:.2f} ms with linger.ms={linger}" for linger, time in queued.items())
        yield f"in the producer queue a record is {times}: it waits for others to share its batch"


def _about_largest(own: Sequence[Mapping[str, Any]]) -> str:
    times = {name: fmean(row[name] or 0 for row in own) for name in PARTS}
    largest = max(times, key=lambda name: times[name])
    words = largest.removesuffix("_ms").replace("_", " ")
    share = times[largest] / sum(times.values()) if sum(times.values()) else 0
    return f"of all that a consumer waits for, most is {words}: {times[largest]:.2f} ms, {share:.0%} of the mean"


def missing_library() -> str | None:
    """Advice on how to install the library that a plot needs; None when it is installed."""
    if find_spec("matplotlib") is not None:
        return None
    return "a plot needs matplotlib: make setup-pipeline in a checkout, or pip install 'WHEEL[pipeline]'"


def draw(rows: Sequence[Mapping[str, Any]]) -> str:
    """SVG."""
    from pipeline.reports.html_report import plot

    return plot(rows, _bars)


def _bars(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    places = range(len(rows))
    reached = [0.0] * len(rows)
    for name, colour in zip(PARTS, COLOURS, strict=True):
        # A difference of two means may come out a little below zero: no bar goes backwards.
        lengths = [max(row[name] or 0.0, 0.0) for row in rows]
        axes.barh(places, lengths, left=reached, label=name.removesuffix("_ms").replace("_", " "), color=colour)
        reached = [start + length for start, length in zip(reached, lengths, strict=True)]
    axes.plot([row["produce_p50_ms"] for row in rows], places, "|", color="#cf222e", markersize=10, label="produce p50")
    labels = [
        f"{row['cluster']}: acks={row['acks']}, {row['replicas']} replicas, linger {row['linger_ms']}, "
        f"batch {row['batch_size']}"
        for row in rows
    ]
    axes.set_yticks(list(places), labels, fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("mean time after produce(), ms")
    axes.legend(fontsize=7)
