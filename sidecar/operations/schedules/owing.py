"""Occurrences of a schedule that have to be written now. Pure.

    since          now - grace            now            now + look-ahead
      |   missed        |      late         |      ahead       |
      +-----------------+-------------------+------------------+--> time

Late ones and those ahead are written as they are. What of the missed ones is made up for is the schedule's choice:
none, the last, or all of them up to a limit. Missed is what nobody was there to write. What waits for Kafka or for its
source is not, however long that takes: where something waits since some time, the grace goes back from that time. No
instant of a name is written twice: where a new count meets what an earlier one has written ahead, that stays the only
message of its instant.
"""

from itertools import islice, takewhile
from typing import Final, NamedTuple

from sidecar.operations.schedules.schedule import (
    COUNTED_MAX,
    MISSED_KEPT,
    RUNS_KEPT,
    MissedRuns,
    Progress,
    Run,
    Schedule,
)

REMEMBERED_MS: Final = 60_000  # a written one is known so long after its time: longer than a change needs to show


class Limits(NamedTuple):
    """How far ahead of its time an occurrence is written, and how long after it still as if nothing had been."""

    ahead_ms: int
    grace_ms: int
    missed_max: int


class Owed(NamedTuple):
    """Occurrences to write, rising. When that is a fact, nothing up to `through_ms` is owed any more."""

    due: tuple[int, ...]
    made_up: int  # how many of `due` were missed
    dropped: bool  # some that were missed are not in `due`
    through_ms: int
    complete: bool  # no more is owed now than `due`
    missed: MissedRuns | None = None  # what nobody was there to write


def owed(schedule: Schedule, progress: Progress, now_ms: int, limits: Limits, most: int) -> Owed:
    """Occurrences owed behind a standing progress; `most`: of those that were not missed, in one go."""
    since_ms = progress.last_ms
    if schedule.paused:
        return Owed((), 0, False, since_ms, True)
    grace_ms = min(now_ms, progress.waiting_ms or now_ms) - limits.grace_ms
    wanted = {"skip": 0, "once": 1, "all": limits.missed_max}[schedule.missed]
    missed: list[int] = []
    if since_ms < grace_ms:  # one more than wanted tells whether there are more
        missed = schedule.latest(since_ms, grace_ms, wanted + 1)
    kept = missed[-wanted:] if wanted else []
    coming = schedule.occurrences(max(since_ms, grace_ms))
    in_time = list(islice(takewhile(lambda at_ms: at_ms <= now_ms + limits.ahead_ms, coming), most))
    through_ms = max((since_ms, *missed[-1:], *in_time[-1:]))
    made_up = [at_ms for at_ms in kept if at_ms not in progress.ahead]
    due = (*made_up, *(at_ms for at_ms in in_time if at_ms not in progress.ahead))
    told = _missed(schedule, since_ms, missed[-1], len(made_up), now_ms) if missed else None
    return Owed(due, len(made_up), len(missed) > len(kept), through_ms, len(in_time) < most, told)


def _missed(schedule: Schedule, after_ms: int, through_ms: int, made_up: int, now_ms: int) -> MissedRuns:
    behind = takewhile(lambda at_ms: at_ms <= through_ms, schedule.occurrences(after_ms))
    return MissedRuns(after_ms, through_ms, sum(1 for _ in islice(behind, COUNTED_MAX)), made_up, now_ms)


def after_writing(progress: Progress, owed: Owed, now_ms: int) -> Progress:
    """The progress that goes with it: where more is owed, that waits from now on."""
    known = {*progress.ahead, *owed.due}
    forgotten_ms = min(now_ms - REMEMBERED_MS, owed.through_ms)  # what lies behind isn't reached yet, however late
    ahead = tuple(sorted(at_ms for at_ms in known if at_ms > forgotten_ms))
    waiting_ms = 0 if owed.complete else progress.waiting_ms or now_ms
    runs = (*progress.runs, *(Run(at_ms, now_ms) for at_ms in owed.due))[-RUNS_KEPT:]
    missed = (*progress.missed, *(() if owed.missed is None else (owed.missed,)))[-MISSED_KEPT:]
    return Progress(owed.through_ms, "", progress.began, waiting_ms, ahead, runs, missed)
