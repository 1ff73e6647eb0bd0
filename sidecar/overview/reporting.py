"""The report of this process, made of what its engine publishes and what housekeeping has kept."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from sidecar.lookup.report import LISTED_MAX, TEXT_MAX, WARNINGS_MAX, Rebuild, Report, Target, Wait
from sidecar.model.condition import Subject
from sidecar.model.stats import Stats
from sidecar.model.version import VERSION
from sidecar.operations.schedules.schedule_book import Known
from sidecar.overview.minutes import LastHour

UNREAD_SHOWN_MAX: Final = 20  # schedules named in warnings; the list has all
STATM: Final = Path("/proc/self/statm")


class Run(NamedTuple):
    """One start of a process: a name that no other start has, and when, epoch ms."""

    name: str
    started_ms: int


class Reporter:
    """Call it for a report; from any thread. `waits` gives what keeps records waiting and since when, `warnings` what
    is wrong though the process does its work.
    """

    def __init__(
        self,
        run: Run,
        stats: Callable[[], Stats],
        hour: LastHour,
        waits: Callable[[], Sequence[tuple[Subject, int]]],
        warnings: Callable[[Stats], Sequence[str]],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._run = run
        self._stats = stats
        self._hour = hour
        self._waits = waits
        self._warnings = warnings
        self._monotonic_s = monotonic_s

    def __call__(self, forecast_problem: str) -> Report:
        """The report as of now. `forecast_problem`: why it can't be said what is due when."""
        stats = self._stats()
        topics = stats.topics.values()
        return Report(
            replica=stats.replica[:TEXT_MAX],
            run=self._run.name,
            version=VERSION,
            at_ms=stats.at_ms,
            started_ms=self._run.started_ms,
            turn_age_ms=max(round((self._monotonic_s() - stats.turned_monotonic_s) * 1_000), 0),
            memory_bytes=resident_bytes(),
            partitions=stats.partitions_assigned,
            recovering=stats.partitions_recovering,
            paused=stats.partitions_paused,
            recovery_ms=round(stats.recovery_s * 1_000),
            wheel=sum(counts.wheel for counts in topics),
            overflow=sum(counts.overflow for counts in topics),
            parked=sum(counts.parked for counts in topics),
            oldest_overdue_ms=stats.oldest_overdue_ms,
            next_due_ms=stats.next_due_ms,
            late_max_ms=round(stats.lateness.max_ms),
            early=stats.early,
            ledger_imbalance=stats.ledger_imbalance,
            clock_skew_ms=stats.clock_skew_ms,
            targets=tuple(
                Target(topic=topic, waiting=flow.waiting, rate=flow.rate, breaker=flow.breaker)
                for topic, flow in islice(sorted(stats.targets.items()), LISTED_MAX)
            ),
            suspended=stats.suspended[:LISTED_MAX],
            rebuilding=tuple(
                Rebuild(
                    topic=one.topic,
                    partition=one.partition,
                    done=one.done,
                    held=one.held,
                    read_share=one.read_share,
                    problem=one.problem[:TEXT_MAX],
                )
                for one in stats.rebuilding[:LISTED_MAX]
            ),
            waits=tuple(
                Wait(kind=subject.kind.value, topic=subject.topic, partition=subject.partition, since_ms=since_ms)
                for subject, since_ms in islice(self._waits(), LISTED_MAX)
            ),
            last_minute=self._hour.last_minute(),
            minutes=self._hour.minutes(),
            kafka_problem=stats.kafka_problem[:TEXT_MAX],
            overflow_problem=stats.overflow_problem[:TEXT_MAX],
            group_problem="" if stats.joined else (stats.not_taken_in or "waiting for the consumer group")[:TEXT_MAX],
            forecast_problem=forecast_problem[:TEXT_MAX],
            warnings=tuple(text[:TEXT_MAX] for text in islice(self._warnings(stats), WARNINGS_MAX)),
        )


def warnings_of(stats: Stats, policies_problem: str, unread: Mapping[str, Known]) -> list[str]:
    """Warnings of what is wrong though a process does its work.

    `policies_problem`: why the policy topic can't be used, "" when it can; `unread`: schedules that can't be read.
    """
    # Without the policy topic records are decided by the last good table; only writes to policies have to wait.
    return [
        *((f"policies: {policies_problem}",) if policies_problem else ()),
        *stats.warnings,
        *islice(_of_schedules(unread), UNREAD_SHOWN_MAX),
    ]


def _of_schedules(unread: Mapping[str, Known]) -> Iterable[str]:
    return (
        f"schedule {name}: {known.unread.problem}" for name, known in sorted(unread.items()) if known.unread is not None
    )


def resident_bytes() -> int:
    """Memory of this process that is in use, with what it shares with others."""
    pages = int(STATM.read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
