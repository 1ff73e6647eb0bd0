"""The last runs of a schedule, and what of it was missed, as its progress remembers them."""

from typing import Any

import pytest

from sidecar.operations.schedules.job import job_of, split
from sidecar.operations.schedules.owing import after_writing, owed
from sidecar.operations.schedules.schedule import (
    COUNTED_MAX,
    MISSED_KEPT,
    RUNS_KEPT,
    Entry,
    MissedRuns,
    Progress,
    Run,
    standing,
)
from sidecar.operations.schedules.schedule_book import ScheduleBook, progress_record
from tests.unit.schedule_world import LIMITS, NOW_MS, MemorySchedules, schedule

MINUTE_MS = 60_000


def progress_of(world: MemorySchedules) -> Progress:
    world.store.catch_up()
    return world.store.get("tick").progress


def test_runs_are_remembered_with_when_they_were_written() -> None:
    world = MemorySchedules()
    world.put(cron="* * * * *")
    for _ in range(3):
        world.now_ms += MINUTE_MS
        world.steps()
    expected = [Run(NOW_MS + minute * MINUTE_MS, NOW_MS + minute * MINUTE_MS) for minute in (1, 2, 3)]
    assert list(progress_of(world).runs) == expected
    world.restart()
    world.now_ms += MINUTE_MS - 5_000  # ahead of its time
    world.steps()
    assert progress_of(world).runs[-1] == Run(NOW_MS + 4 * MINUTE_MS, world.now_ms)
    assert progress_of(world).missed == ()


def test_the_last_ones_are_kept() -> None:
    world = MemorySchedules()
    world.put()
    for _ in range(5):
        world.now_ms += 10_000
        world.steps()
    runs = progress_of(world).runs
    assert len(runs) == RUNS_KEPT
    assert runs[-1].at_ms == world.now_ms + LIMITS.ahead_ms


@pytest.mark.parametrize(("missed", "made_up"), [("skip", 0), ("once", 1), ("all", 5)])
def test_what_was_missed_is_told_with_what_was_made_up_for(missed: str, made_up: int) -> None:
    world = MemorySchedules()
    world.put(cron="* * * * *", missed=missed)
    world.now_ms += 20 * MINUTE_MS
    world.steps()
    through_ms = world.now_ms - LIMITS.grace_ms
    assert progress_of(world).missed == (MissedRuns(NOW_MS, through_ms, 19, made_up, world.now_ms),)
    world.now_ms += MINUTE_MS
    world.steps()
    assert len(progress_of(world).missed) == 1, "once"


def test_not_all_that_was_missed_is_counted() -> None:
    found = owed(schedule(), Progress(NOW_MS - 100 * 86_400_000), NOW_MS, LIMITS, 10)
    assert found.missed is not None
    assert found.missed.number == COUNTED_MAX


def test_the_last_misses_are_kept() -> None:
    progress = Progress(NOW_MS)
    for hour in range(1, MISSED_KEPT + 3):
        now_ms = NOW_MS + hour * 3_600_000
        progress = after_writing(progress, owed(schedule(cron="* * * * *"), progress, now_ms, LIMITS, 10), now_ms)
    assert [one.noticed_ms for one in progress.missed] == [NOW_MS + hour * 3_600_000 for hour in (3, 4, 5, 6, 7)]


def test_a_job_that_is_split_tells_of_what_was_missed_once() -> None:
    entry = Entry(schedule(cron="* * * * *", missed="all"), "reminders", 1, "me", NOW_MS, NOW_MS)
    job = job_of(entry, Progress(NOW_MS, began=0), NOW_MS + 9 * MINUTE_MS, LIMITS, {"reminders": 1})
    assert job is not None
    head, rest = split(job, 2)
    assert head.progress.missed == rest.progress.missed == (job.owed.missed,)
    assert [run.at_ms for run in rest.progress.runs] == list(job.owed.due)


def test_a_new_count_keeps_what_was() -> None:
    runs, missed = (Run(NOW_MS, NOW_MS),), (MissedRuns(1, 2, 1, 0, 3),)
    progress = Progress(NOW_MS + 5, "no topic", 1, runs=runs, missed=missed)
    later = Entry(schedule(), "reminders", 2, "me", NOW_MS, NOW_MS, began=2)
    assert standing(later, progress) == Progress(NOW_MS, "no topic", 2, runs=runs, missed=missed)


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        ({}, True),
        ({"runs": [[1, 2]], "missed": [[1, 2, 3, 4, 5]]}, True),
        ({"runs": [[1]]}, False),
        ({"runs": [[1, -2]]}, False),
        ({"missed": [[1, 2, -3, 4, 5]]}, False),
    ],
)
def test_a_progress_is_read_back(changes: dict[str, Any], is_read: bool) -> None:
    runs, missed = (Run(1, 2),), (MissedRuns(1, 2, 3, 4, 5),)
    key, value = progress_record("tick", Progress(7, runs=runs, missed=missed) if changes else Progress(7))
    if not is_read:
        value = value.replace(b"[[1,2]]", str(changes["runs"]).encode()) if "runs" in changes else value
        value = value.replace(b"[[1,2,3,4,5]]", str(changes.get("missed", [[1, 2, 3, 4, 5]])).encode())
    book = ScheduleBook()
    book.apply(key, value, 0)
    expected = Progress(7, runs=runs if changes else (), missed=missed if changes else ())
    assert book.get("tick").progress == (expected if is_read else Progress())
