"""The rule of the topic of schedules: versions, races, what others write."""

import json
import threading

import pytest

from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.operations.jobs.transactional_sender import OutgoingRecord, ShipmentFailed, TakenOver
from sidecar.operations.schedules.schedule import ScheduleConflict, ScheduleRefused, SchedulesUnavailable
from sidecar.operations.schedules.schedule_book import SCHEDULES_MAX, SCHEMA, ScheduleBook
from sidecar.operations.schedules.store import FAILURES_MAX, TRIES_MAX
from tests.unit.schedule_world import NOW_MS, TOPIC, MemorySchedules, schedule


@pytest.fixture
def world() -> MemorySchedules:
    return MemorySchedules()


def test_versions_go_on_over_a_deletion(world: MemorySchedules) -> None:
    first = world.store.put(schedule(), "reminders", 0, "me")
    assert (first.version, first.author, first.time_ms, first.since_ms) == (1, "me", NOW_MS, NOW_MS)
    second = world.store.put(schedule(value="new"), "reminders", 1, "you")
    assert (second.version, second.author) == (2, "you")
    world.store.delete("tick", 2, "me")
    assert world.store.get("tick").entry is None
    assert world.store.alive() == {}
    assert world.store.put(schedule(), "reminders", 0, "me").version == 4


@pytest.mark.parametrize(("expected", "current"), [(0, 1), (2, 1)])
def test_only_the_version_expected_is_replaced(world: MemorySchedules, expected: int, current: int) -> None:
    world.put()
    with pytest.raises(ScheduleConflict) as caught:
        world.put(expected, value="other")
    assert caught.value.version == current
    with pytest.raises(ScheduleConflict):
        world.store.delete("tick", expected or 7, "me")
    with pytest.raises(ScheduleConflict):
        world.store.delete("none", 1, "me")


def test_of_two_that_write_at_once_one_wins_and_the_other_is_told(world: MemorySchedules) -> None:
    world.put()
    other = world.replica()
    world.topic.meanwhile = lambda: other.put(schedule(value="theirs"), "reminders", 1, "they") and None
    with pytest.raises(ScheduleConflict) as caught:
        world.put(1, value="ours")
    assert caught.value.version == 2
    entry = world.store.get("tick").entry
    assert entry is not None
    assert entry.schedule.value == "theirs"


def test_who_is_disturbed_by_another_name_tries_again(world: MemorySchedules) -> None:
    other = world.replica()
    world.topic.meanwhile = lambda: other.put(schedule(name="another"), "reminders", 0, "they") and None
    world.put()
    assert set(world.store.alive()) == {"tick", "another"}


def test_writes_of_one_process_do_not_take_the_pen_from_each_other(world: MemorySchedules) -> None:
    threads = [threading.Thread(target=world.put, kwargs={"name": f"n{number}"}) for number in range(8)]

    def all_come_at_once() -> None:
        for thread in threads:
            thread.start()
        threads[-1].join(0.1)  # without a queue it would be through by then, with the pen

    world.topic.meanwhile = all_come_at_once
    world.put()
    for thread in threads:
        thread.join()
    assert len(world.store.alive()) == 1 + len(threads)
    assert world.topic.epochs == {"pen": 1 + len(threads)}, "some were tried again"


def test_who_is_always_disturbed_gives_up(world: MemorySchedules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.operations.schedules.store.PAUSE_S", 0.0)
    other = world.replica()
    count = iter(range(100))

    def disturb() -> None:
        other.put(schedule(name=f"n{next(count)}"), "reminders", 0, "they")
        world.topic.meanwhile = disturb

    def once_more() -> None:
        world.topic.meanwhile = None
        other.put(schedule(name=f"n{next(count)}"), "reminders", 0, "they")
        world.topic.meanwhile = once_more

    world.topic.meanwhile = once_more
    with pytest.raises(SchedulesUnavailable, match="others keep writing"):
        world.put()
    assert next(count) == TRIES_MAX


@pytest.mark.parametrize("end", [ShipmentFailed("no answer"), TakenOver()])
def test_a_write_of_which_nobody_heard_the_end_is_found_and_no_conflict(world: MemorySchedules, end: Exception) -> None:
    world.topic.lost_answers.append(end)
    assert world.store.put(schedule(), "reminders", 0, "me").version == 1
    world.topic.lost_answers.append(end)
    assert world.store.put(schedule(value="new"), "reminders", 1, "me").version == 2
    world.topic.lost_answers.append(end)
    world.store.delete("tick", 2, "me")
    assert world.store.get("tick").version == 3
    assert len(world.topic.records) == 3


def test_a_write_of_which_nobody_heard_the_end_is_found_behind_what_others_wrote_since(world: MemorySchedules) -> None:
    world.put()
    other = world.replica()

    def they_are_first_when_it_is_looked_for() -> None:
        world.topic.before = lambda: other.put(schedule(value="theirs"), "reminders", 2, "they")

    world.topic.meanwhile = they_are_first_when_it_is_looked_for
    world.topic.lost_answers.append(ShipmentFailed("no answer"))
    written = world.store.put(schedule(value="ours"), "reminders", 1, "me")
    assert (written.version, written.schedule.value) == (2, "ours")
    assert world.store.get("tick").version == 3


def test_a_write_that_did_not_get_through_is_made_again(world: MemorySchedules) -> None:
    world.topic.failures.append(ShipmentFailed("no answer"))
    assert world.store.put(schedule(), "reminders", 0, "me").version == 1
    world.topic.failures.append(ShipmentFailed("no answer"))
    other = world.replica()
    world.topic.meanwhile = lambda: other.put(schedule(value="theirs"), "reminders", 1, "they") and None
    with pytest.raises(ScheduleConflict):  # it is known that it isn't there, and somebody else was first
        world.put(1, value="ours")


def test_what_is_written_and_cannot_be_read_yet_is_written(world: MemorySchedules) -> None:
    def topic_goes_down() -> None:
        world.topic.down = LogUnavailable("away")

    world.topic.meanwhile = topic_goes_down
    assert world.store.put(schedule(), "reminders", 0, "me").version == 1
    world.topic.down = None
    world.store.catch_up()
    assert world.store.get("tick").version == 1


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
def test_a_schedule_begins_by_the_broker_s_clock(world: MemorySchedules, ahead_ms: int) -> None:
    """The clock of the process that was asked to write the schedule does not count."""
    world.host_ahead_ms = ahead_ms
    assert world.store.put(schedule(), "reminders", 0, "me").since_ms == NOW_MS
    world.now_ms += 1_000
    assert world.store.put(schedule(cron="* * * * *"), "reminders", 1, "me").since_ms == NOW_MS + 1_000
    replica = world.replica()
    replica.catch_up()
    assert replica.get("tick") == world.store.get("tick")


def test_without_append_times_it_begins_when_its_writer_says(world: MemorySchedules) -> None:
    world.put()
    world.topic.appended_ms.clear()
    world.host_ahead_ms = 5_000
    replica = world.replica()
    replica.catch_up()
    entry = replica.get("tick").entry
    assert entry is not None
    assert entry.since_ms == NOW_MS


def test_a_change_of_its_time_counts_from_now_and_no_other_change_does(world: MemorySchedules) -> None:
    world.put()
    world.now_ms += 1_000
    assert world.store.put(schedule(value="new"), "reminders", 1, "me").since_ms == NOW_MS
    assert world.store.put(schedule(value="new", paused=True), "reminders", 2, "me").since_ms == NOW_MS + 1_000
    world.now_ms += 1_000
    assert world.store.put(schedule(value="new"), "reminders", 3, "me").since_ms == NOW_MS + 2_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"tick/schedule", b"nonsense"),
        (b"tick/schedule", b""),
        (b"tick/schedule", b'{"schema": 1, "version": "9"}'),
        (b"tick/progress", b'{"last": -1}'),
        (b"tick/progress", b'{"last": 99999999999999999}'),
        (b"tick/other", b"{}"),
        (b"\xff", b"{}"),
        (b"", b""),
    ],
)
def test_garbage_is_passed_over(world: MemorySchedules, key: bytes, value: bytes) -> None:
    world.put()
    before = world.store.get("tick")
    world.topic.records.append(OutgoingRecord(TOPIC, key, value))
    world.store.put(schedule(name="another"), "reminders", 0, "me")
    assert world.store.get("tick") == before


def test_what_a_newer_program_wrote_is_neither_fired_nor_overwritten(world: MemorySchedules) -> None:
    world.put()
    document = json.loads(world.topic.records[-1].value or b"")
    newer = {**document, "schema": SCHEMA + 1, "version": 2}
    world.topic.records.append(OutgoingRecord(TOPIC, b"tick/schedule", json.dumps(newer).encode()))
    with pytest.raises(ScheduleConflict) as caught:
        world.put(1, value="ours")
    assert caught.value.version == 2
    with pytest.raises(ScheduleRefused, match="newer version"):
        world.put(2, value="ours")
    assert world.store.alive() == {}


def test_there_is_an_end_to_how_many_and_how_large(world: MemorySchedules) -> None:
    with pytest.raises(ScheduleRefused, match="bytes"):
        world.put(value="x" * 600_000)
    book = ScheduleBook()
    world.put()
    record = world.topic.records[-1]
    for number in range(SCHEDULES_MAX):
        value = (record.value or b"").replace(b'"tick"', b'"t%d"' % number)
        world.topic.records.append(OutgoingRecord(TOPIC, b"t%d/schedule" % number, value))
        book.apply(b"t%d/schedule" % number, value, 0)
    assert len(book.alive()) == SCHEDULES_MAX
    with pytest.raises(ScheduleRefused, match="as many as there can be"):
        world.put(name="one-too-many")
    world.put(1, value="still")  # what is there can be replaced


def test_kafka_that_does_not_answer(world: MemorySchedules) -> None:
    world.topic.failures += [ShipmentFailed("no answer")] * FAILURES_MAX
    with pytest.raises(SchedulesUnavailable, match="may still take effect"):
        world.put()
    world.topic.down = LogUnavailable("away")
    with pytest.raises(SchedulesUnavailable, match="away"):
        world.put()


@pytest.mark.parametrize(("bounds", "schema"), [({}, 1), ({"start": NOW_MS}, 2), ({"end": NOW_MS + 1}, 2)])
def test_only_what_has_a_start_or_an_end_is_of_the_newer_schema(
    world: MemorySchedules, bounds: dict[str, int], schema: int
) -> None:
    world.put(**bounds)
    assert json.loads(world.topic.records[-1].value or b"")["schema"] == schema
    other = world.replica()
    other.catch_up()
    entry = other.get("tick").entry
    assert entry is not None
    assert entry.schedule == schedule(**bounds)
    world.store.delete("tick", 1, "me")
    assert json.loads(world.topic.records[-1].value or b"")["schema"] == 1
