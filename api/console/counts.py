"""Counts beside the pages' names, from the process's last look at the group: no page waits for one."""

from typing import NamedTuple

from sidecar.lookup.report import MINUTE_MS, MINUTES
from sidecar.overview.problems import Level, problems_of
from sidecar.overview.seen import Seen


class Count(NamedTuple):
    """A count and what it counts; `is_bad`: somebody should look."""

    number: int
    what: str
    is_bad: bool = False


def counts_of(seen: Seen | None) -> dict[str, Count]:
    """By the path of a page; zeros are left out, and without a look there are none."""
    if seen is None:
        return {}
    problems, since_ms = problems_of(seen), seen.at_ms - MINUTES * MINUTE_MS
    minutes = [minute for report in seen.reports for minute in report.minutes if minute.at_ms > since_ms]
    held = sum(report.wheel + report.overflow for report in seen.reports)
    found = {
        "": Count(len(problems), "problems", any(one.level is Level.BAD for one in problems)),
        "/messages": Count(held, "held"),
        "/dead-letters": Count(sum(minute.dead for minute in minutes), "in the last hour"),
        "/quarantine": Count(sum(minute.quarantined for minute in minutes), "in the last hour"),
    }
    return {path: count for path, count in found.items() if count.number}
