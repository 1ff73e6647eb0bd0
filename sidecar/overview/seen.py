"""The group as one look sees it, and its last hour added up. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sidecar.conditions.attribution import Sign
from sidecar.lookup.report import MINUTE_MS, MINUTES, Flow, Overview, Report
from sidecar.model.condition import Pausable, Pause
from sidecar.model.record import TopicPartition
from sidecar.model.stats import Lateness
from sidecar.overview.minutes import plus


class Seen(NamedTuple):
    """The group as of `at_ms`. `silent`: the last signs of processes that have not answered; `problem`: why nobody else
    could be asked. `lags`: records of each partition that its replica has not read; none where Kafka doesn't say.
    `pauses`: those that are in force.
    """

    group: str
    guarantee: str
    at_ms: int
    overview: Overview
    silent: Sequence[Sign]
    lags: Mapping[TopicPartition, int]
    pauses: Mapping[Pausable, Pause]

    @property
    def reports(self) -> list[Report]:
        """Reports of the replicas, by their names."""
        return sorted((one.report for one in self.overview.replicas), key=lambda report: report.replica)


class Percentiles(NamedTuple):
    """Lateness of what was emitted in a while, milliseconds; None where nothing was."""

    p50: float | None
    p99: float | None


def last_minute(reports: Iterable[Report]) -> Flow:
    """The last 60 seconds of all together."""
    return _together(report.last_minute for report in reports)


def last_hour(reports: Sequence[Report], now_ms: int) -> list[tuple[int, Flow]]:
    """The minutes of the last hour, by their begin in epoch ms, of all together; the last one goes on."""
    by_begin: dict[int, list[Flow]] = {}
    for report in reports:
        for minute in report.minutes:
            by_begin.setdefault(minute.at_ms, []).append(minute)
    this = now_ms // MINUTE_MS
    begins = [minute * MINUTE_MS for minute in range(this - MINUTES + 1, this + 1)]
    return [(begin, _together(by_begin.get(begin, ()))) for begin in begins]


def percentiles(flow: Flow, reports: Iterable[Report]) -> Percentiles:
    """How late the emitted records of these replicas were, as upper bounds of the buckets."""
    if not any(flow.late):
        return Percentiles(None, None)
    lateness = Lateness(flow.late, 0.0, float(max((report.late_max_ms for report in reports), default=0)))
    return Percentiles(lateness.percentile(0.5), lateness.percentile(0.99))


def _together(flows: Iterable[Flow]) -> Flow:
    total = Flow()
    for flow in flows:
        total = plus(total, flow)
    return total
