"""From when on the occurrences of a schedule count: written, changed, made anew, set back."""

import json

import pytest

from sidecar.operations.jobs.transactional_sender import OutgoingRecord
from sidecar.operations.schedules.owing import REMEMBERED_MS, Owed, after_writing
from sidecar.operations.schedules.schedule import Progress, ScheduleRefused
from sidecar.operations.schedules.schedule_book import progress_record
from tests.unit.schedule_world import NOW_MS, TOPIC, MemorySchedules, schedule


@pytest.fixture
def world() -> MemorySchedules:
    return MemorySchedules()


def seconds(world: MemorySchedules, target: str = "push") -> list[int]:
    """Of the occurrences written for a target, from the beginning on, in the order of time."""
    headers = [dict(parcel.headers) for parcel in world.topic.sent]
    due = [int(one["tickover-deliver-at"] or b"") for one in headers if one["tickover-target"] == target.encode()]
    return sorted((at_ms - NOW_MS) // 1_000 for at_ms in due)


def after(world: MemorySchedules, *steps_s: int) -> None:
    """Somebody writes what is owed, each time so many seconds later."""
    for step_s in steps_s:
        world.now_ms += step_s * 1_000
        world.steps()


def test_a_new_cron_counts_from_the_moment_it_is_written(world: MemorySchedules) -> None:
    world.put(cron="0 * * * * *")
    after(world, 51)
    assert seconds(world) == [60]  # 9 s ahead
    world.now_ms += 1_000
    world.put(1, cron="* * * * * *")
    after(world, 1, 1, 1)
    assert seconds(world) == list(range(53, 66))


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_written_ahead_stays_the_only_message_of_its_instant(world: MemorySchedules, restarted: bool) -> None:
    """Also for a successor, who knows of it from the topic alone, and over several changes."""
    world.put()
    after(world, 0)
    assert seconds(world) == [5, 10]
    for version in (1, 2, 3):
        if restarted:
            world.restart()
        world.put(version, cron=f"*/{4 - version} * * * * *")  # every 3, then 2, then 1 s
        after(world, 1)
    ids = [dict(parcel.headers)["tickover-id"] for parcel in world.topic.sent]
    assert len(ids) == len(set(ids))
    assert set(seconds(world)) >= {5, 10, *range(3, 14)}


def test_a_schedule_made_anew_counts_from_then_on(world: MemorySchedules) -> None:
    """A new schedule is another one, whatever the former of its name did, and may be for another target."""
    world.put(cron="0 * * * * *")
    after(world, 51)
    world.store.delete("tick", 1, "me")
    world.put(cron="55,0 * * * * *", target="mail")
    after(world, 1, 60)
    assert seconds(world) == [60]
    assert seconds(world, "mail") == [55, 115, 120], "of one instant there is one message: that at 60 was written"


def test_a_writer_that_sees_a_change_late_has_written_nothing_twice_in_the_end(world: MemorySchedules) -> None:
    world.put()
    late = world.firing(world.replica())
    late.step()
    world.now_ms += 3_000
    world.put(1, cron="* * * * * *")
    world.now_ms += 15_000
    late.step()  # it doesn't know
    assert seconds(world) == [5, 10, 15, 20, 25]
    world.steps()
    assert seconds(world) == list(range(4, 29))


def test_what_is_remembered_of_written_ones_has_an_end(world: MemorySchedules) -> None:
    world.put(cron="* * * * * *")
    after(world, *[10] * 30)
    world.store.catch_up()
    ahead = world.store.get("tick").progress.ahead
    assert ahead == tuple(range(world.now_ms - REMEMBERED_MS + 1_000, world.now_ms + 11_000, 1_000))


def test_set_back_it_owes_again_what_came_since_and_is_in_the_past(world: MemorySchedules) -> None:
    world.put(missed="all")
    after(world, 0, 20)
    assert seconds(world) == [5, 10, 15, 20, 25, 30]
    entry = world.store.rewind("tick", NOW_MS + 7_000, 1, "me")
    assert (entry.version, entry.schedule.missed) == (2, "all")
    after(world, 0)
    assert seconds(world) == [5, 10, 10, 15, 15, 20, 20, 25, 30], "25 and 30 are to come, and written"
    after(world, 10)
    assert seconds(world)[-3:] == [30, 35, 40]
    world.restart()
    after(world, 0)
    assert seconds(world)[-3:] == [30, 35, 40]


@pytest.mark.parametrize("began", [1, None])
def test_set_back_from_the_future_it_fires_from_now_on(world: MemorySchedules, began: int | None) -> None:
    """A clock that was far ahead has written what it had no reason to, and silences the schedule for as long.

    Older programs, which knew of no counts, could do so.
    """
    world.put(cron="0 * * * * *")
    day_ms = 86_400_000
    value = progress_record("tick", Progress(NOW_MS + day_ms, began=began, ahead=(NOW_MS + day_ms,)))[1]
    world.topic.records.append(OutgoingRecord(TOPIC, b"tick/progress", value))
    after(world, 120)
    assert seconds(world) == []
    world.store.rewind("tick", world.now_ms, 1, "me")
    after(world, 60, 60)
    assert seconds(world) == [180, 240]
    world.now_ms = NOW_MS + day_ms - 5_000
    world.steps()
    assert day_ms // 1_000 not in seconds(world), "that one was written a day ago"


def test_what_lies_before_the_grace_is_missed_after_a_rewind_too(world: MemorySchedules) -> None:
    world.put(cron="0 * * * * *")
    after(world, *[60] * 10)
    world.store.rewind("tick", NOW_MS, 1, "me")
    before = len(world.topic.sent)
    after(world, 0)
    assert len(world.topic.sent) == before + 1, "skipped, but for the one within the grace"


@pytest.mark.parametrize("to_ms", [NOW_MS + 10_000, NOW_MS + 86_400_000])
def test_a_rewind_never_goes_forward(world: MemorySchedules, to_ms: int) -> None:
    world.put()
    after(world, 0)
    world.store.catch_up()
    with pytest.raises(ScheduleRefused, match="goes back"):
        world.store.rewind("tick", to_ms, 1, "me")
    assert world.store.get("tick").version == 1


def test_progress_of_an_older_program_is_gone_on_from(world: MemorySchedules) -> None:
    """Old progress says nothing of counts: neither may anything be written twice, nor what is written be changed."""
    world.put()
    world.topic.records.append(
        OutgoingRecord(TOPIC, b"tick/progress", b'{"schema":1,"last":%d,"problem":""}' % (NOW_MS + 5_000))
    )
    after(world, 0)
    assert seconds(world) == [10]


def test_a_version_of_an_older_program_goes_on_from_the_progress(world: MemorySchedules) -> None:
    world.put()
    after(world, 0)
    document = json.loads(next(one.value for one in world.topic.records if one.key == b"tick/schedule") or b"")
    for name in ("began", "rewound", "write"):
        del document[name]
    older = {**document, "version": 2, "since": NOW_MS - 86_400_000}
    world.topic.records.append(OutgoingRecord(TOPIC, b"tick/schedule", json.dumps(older).encode()))
    after(world, 5)
    assert seconds(world) == [5, 10, 15]
    assert world.store.put(schedule(value="new"), "reminders", 2, "me").began == 0
    after(world, 5)
    assert seconds(world) == [5, 10, 15, 20]


def test_what_was_written_ahead_is_known_until_the_schedule_has_come_to_it() -> None:
    """The schedule may wait for its partition for longer than a written occurrence is remembered otherwise."""
    progress = Progress(NOW_MS, began=3, ahead=(NOW_MS + 7_000,))
    waits = Owed((), 0, dropped=False, through_ms=NOW_MS, complete=False)
    late_ms = NOW_MS + 7_000 + 2 * REMEMBERED_MS
    assert after_writing(progress, waits, late_ms).ahead == (NOW_MS + 7_000,)
    passed = waits._replace(through_ms=NOW_MS + 8_000)
    assert after_writing(progress, passed, late_ms).ahead == ()
