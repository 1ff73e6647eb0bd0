"""Schedules that can't be written hold up no other, and nothing of theirs is lost by it."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.model.partitioner import partition_of
from sidecar.operations.jobs.transactional_sender import ShipmentFailed, TakenOver
from sidecar.operations.schedules.apart import AGAIN_MS, SLOW_KEPT_MS, Apart
from sidecar.operations.schedules.job import Job, Room, batches, before, job_of, place_of, size_of
from sidecar.operations.schedules.schedule import Entry, Progress, SchedulesUnavailable
from tests.unit.schedule_world import LIMITS, NOW_MS, MemorySchedules, schedule

SECOND_MS = 1_000
MINUTE_MS = 60_000


@pytest.fixture
def world() -> MemorySchedules:
    world = MemorySchedules()
    world.sources = {"reminders": 12, "offline": 1}
    return world


def put(world: MemorySchedules, name: str, source: str = "reminders", **changes: object) -> None:
    world.store.put(schedule(name=name, **changes), source, 0, "me")


def run(world: MemorySchedules, seconds: int) -> None:
    """As long, with a step each second."""
    for _ in range(seconds):
        world.now_ms += SECOND_MS
        with suppress(ShipmentFailed, SchedulesUnavailable):
            world.steps()


def written(world: MemorySchedules, name: str) -> list[tuple[int, int]]:
    """Of a schedule's occurrences: seconds from the beginning when they are due, and when they were written."""
    found = []
    for parcel, at_ms in zip(world.topic.sent, world.topic.sent_ms, strict=True):
        _, mine, due = (dict(parcel.headers)["tickover-id"] or b"").decode().split(":")
        if mine == name:
            found.append(((int(due) - NOW_MS) // SECOND_MS, (at_ms - NOW_MS) // SECOND_MS))
    return found


def due(world: MemorySchedules, name: str) -> list[int]:
    return [due_s for due_s, _ in written(world, name)]


def assert_on_time(world: MemorySchedules, name: str, every_s: int) -> None:
    """All until now, each before it was due."""
    until_s = (world.now_ms - NOW_MS) // SECOND_MS
    found = written(world, name)
    assert {due_s for due_s, _ in found} >= set(range(every_s, until_s + 1, every_s))
    assert [due_s for due_s, written_s in found if written_s > due_s] == []


def problem(world: MemorySchedules, name: str) -> str:
    world.store.catch_up()
    return world.store.get(name).progress.problem


def keep_apart(world: MemorySchedules, key: str, names: Sequence[str]) -> None:
    """As if their last try had been well, and slow."""
    assert world.writer is not None
    world.writer._patience_s = 0.0  # any is slow
    apart = world.writer._apart[key] = Apart(key, world.now_ms)
    apart.names = {name: world.store.get(name).version for name in names}
    apart.again_ms, apart.kept_until_ms = world.now_ms, world.now_ms + SLOW_KEPT_MS


def test_a_partition_that_does_not_acknowledge_holds_up_nobody_else(world: MemorySchedules) -> None:
    """Ten minutes long; then all that waited is written, however long ago it was due, and nothing is missed."""
    put(world, "healthy")
    put(world, "struck", "offline")
    world.topic.silent = {"offline/0"}
    run(world, 600)
    assert_on_time(world, "healthy", 5)
    assert due(world, "struck") == []
    assert "a partition without a leader" in problem(world, "struck")
    assert problem(world, "healthy") == ""
    world.topic.silent = set()
    run(world, AGAIN_MS // SECOND_MS + 5)
    assert problem(world, "struck") == ""
    assert_on_time(world, "healthy", 5)
    until_s = (world.now_ms - NOW_MS) // SECOND_MS
    assert due(world, "struck") == list(range(5, until_s + 11, 5))
    assert [gap for *_, gap in world.written if gap] == []


def test_of_a_source_with_such_a_partition_only_what_is_for_it_waits(world: MemorySchedules) -> None:
    """A schedule without a key writes to all partitions in turn: in order, so it waits at the first such occurrence."""
    for number in range(12):
        put(world, f"keyed-{number}", key=f"k{number}")
    put(world, "keyless")
    run(world, 1)
    places = {
        (dict(one.headers)["tickover-id"] or b"").split(b":")[1].decode(): place_of(one) for one in world.topic.sent
    }
    struck = {name for name, place in places.items() if place == places["keyed-3"] and name != "keyless"}
    world.topic.silent = {places["keyed-3"]}
    run(world, 120)
    for number in range(12):
        if f"keyed-{number}" not in struck:
            assert_on_time(world, f"keyed-{number}", 5)
    assert due(world, "keyed-3") == [5, 10]
    assert due(world, "keyless") == list(range(5, 5 * len(due(world, "keyless")) + 1, 5))
    world.topic.silent = set()
    run(world, AGAIN_MS // SECOND_MS + 5)
    for name in places:
        assert due(world, name) == list(range(5, 166, 5))


@pytest.mark.parametrize("fault", ["gone", "unnamed"])
def test_a_source_that_refuses_all_holds_up_no_other_also_where_kafka_does_not_say_which(
    world: MemorySchedules, fault: str
) -> None:
    put(world, "healthy")
    for number in range(3):
        put(world, f"struck-{number}", "offline")
    getattr(world.topic, fault).add("offline")
    run(world, 120)
    assert_on_time(world, "healthy", 5)
    for number in range(3):
        assert due(world, f"struck-{number}") == []
        assert "Kafka" in problem(world, f"struck-{number}")
    getattr(world.topic, fault).clear()
    run(world, AGAIN_MS // SECOND_MS + 5)
    for name in ("struck-0", "struck-1", "struck-2", "healthy"):
        assert due(world, name) == list(range(5, 166, 5))
        assert problem(world, name) == ""


def test_what_one_schedule_has_missed_holds_up_no_other(world: MemorySchedules) -> None:
    """Two hours of large records: in small pieces, beside the others, and in order."""
    put(world, "healthy", cron="0 * * * * *")
    put(world, "large", cron="* * * * * *", missed="all", value="x" * 400_000)
    world.topic.bytes_max = 1_000_000
    world.now_ms += 120 * MINUTE_MS
    begun_s = (world.now_ms - NOW_MS) // SECOND_MS
    run(world, 180)
    assert [due_s for due_s, written_s in written(world, "healthy") if begun_s + 11 < due_s < written_s] == []
    assert len(due(world, "healthy")) >= 4
    missed = 120 * 60 - LIMITS.grace_ms // SECOND_MS
    assert due(world, "large") == list(range(missed - LIMITS.missed_max + 2, begun_s + 191))
    assert "firing.together" not in world.topic.failed, "what is large is no trouble for the others even once"


def test_records_that_kafka_takes_too_slowly_are_tried_in_ever_smaller_pieces(world: MemorySchedules) -> None:
    put(world, "healthy")
    put(world, "large", cron="*/2 * * * * *", value="x" * 400_000)
    world.now_ms += 20 * SECOND_MS
    world.topic.bytes_max = 500_000
    run(world, 60)
    assert due(world, "large") == list(range(2, 91, 2))
    world.topic.bytes_max = 300_000
    run(world, 60)
    assert "has not acknowledged" in problem(world, "large")
    assert [late for late in written(world, "healthy") if late[0] > 30 and late[1] > late[0]] == []
    world.topic.bytes_max = 500_000
    run(world, AGAIN_MS // SECOND_MS + 20)
    assert problem(world, "large") == ""
    assert due(world, "large") == list(range(2, (world.now_ms - NOW_MS) // SECOND_MS + 11, 2))


def test_a_successor_goes_on_with_them_apart(world: MemorySchedules) -> None:
    """Nothing that waits is missed over a change of who writes, or a while without anybody."""
    put(world, "healthy")
    put(world, "struck", "offline")
    world.topic.silent = {"offline/0"}
    run(world, 30)
    for _ in range(3):
        world.restart()
        run(world, 40)
        assert_on_time(world, "healthy", 5)
        assert "without a leader" in problem(world, "struck")
    world.topic.silent = set()
    world.restart()
    world.now_ms += 5 * MINUTE_MS  # nobody was there: healthy ones are missed, those that waited are not
    run(world, AGAIN_MS // SECOND_MS + 5)
    assert due(world, "struck") == list(range(5, (world.now_ms - NOW_MS) // SECOND_MS + 11, 5))
    assert [name for name, *_, gap in world.written if gap] == ["healthy"]


def test_an_id_that_cannot_be_used_holds_up_nobody(world: MemorySchedules) -> None:
    """A partition that dies between a transaction's acknowledgement and its end keeps the id from use."""
    put(world, "healthy")
    put(world, "struck", "offline")
    run(world, 10)
    world.topic.silent = {"offline/0"}
    world.topic.untold = {"firing.together": {"offline/0"}}
    world.restart()
    run(world, 60)
    assert_on_time(world, "healthy", 5)


@pytest.mark.parametrize("end", [ShipmentFailed("no answer"), TakenOver()])
def test_what_was_written_apart_and_nobody_heard_of_is_not_written_again(
    world: MemorySchedules, end: Exception
) -> None:
    put(world, "struck", "offline")
    world.topic.silent = {"offline/0"}
    run(world, 20)
    world.topic.silent = set()
    world.topic.lost_answers = [end]
    while world.topic.lost_answers:
        run(world, 1)
    until_s = (world.now_ms - NOW_MS) // SECOND_MS
    assert due(world, "struck") == list(range(5, until_s + 11, 5)), "it is found, and the rest written at once"
    run(world, 30)
    assert problem(world, "struck") == ""
    assert due(world, "struck") == list(range(5, until_s + 41, 5))


def test_while_nobody_knows_how_far_they_have_come_nothing_is_said_of_them(world: MemorySchedules) -> None:
    """An answer is lost, and then the topic can't be read for a moment: nobody may put their progress back."""
    lose_an_answer(world)
    world.topic.down = None
    run(world, 60)
    assert_all_once(world, "one", "two")


def test_where_the_end_of_a_transaction_can_be_read_and_not_told_it_is_said(world: MemorySchedules) -> None:
    """The topic has been told, and shows how far they have come; a partition of the source has not."""
    lose_an_answer(world)
    world.topic.down = None
    world.topic.silent, world.topic.untold = {"offline/0"}, {"firing.offline/0": {"offline/0"}}
    run(world, AGAIN_MS // SECOND_MS)
    for name in ("one", "two"):
        assert "end an earlier transaction" in problem(world, name)
    world.topic.silent = set()
    run(world, AGAIN_MS // SECOND_MS + 5)
    assert_all_once(world, "one", "two")


def lose_an_answer(world: MemorySchedules) -> None:
    """Of a transaction that two schedules have apart, and with it the topic: nobody knows how it has ended."""
    for name in ("one", "two"):
        put(world, name, "offline")
    run(world, 30)
    keep_apart(world, "offline/0", ["one", "two"])

    def go_down() -> None:
        world.topic.down = LogUnavailable("down")

    world.topic.lost_answers = [ShipmentFailed("no answer")]
    while world.topic.lost_answers:
        world.topic.between = lambda: setattr(world.topic, "before", go_down)
        run(world, 1)
    assert world.topic.down is not None
    world.topic.between = world.topic.before = None


def assert_all_once(world: MemorySchedules, *names: str) -> None:
    """In order, and all is well."""
    for name in names:
        assert due(world, name) == list(range(5, (world.now_ms - NOW_MS) // SECOND_MS + 11, 5))
        assert problem(world, name) == ""


def test_where_a_whole_source_goes_apart_all_of_it_goes_by_that(world: MemorySchedules) -> None:
    """Also who comes from elsewhere, where it could not be written: no other key writes what is for that source."""
    world.sources["offline"] = 12
    put(world, "one", "offline", key="a")
    put(world, "two", key="b")
    assert partition_of(b"a", 12) != partition_of(b"b", 12)
    world.topic.silent = {f"reminders/{partition_of(b'b', 12)}"}
    run(world, 20)
    assert problem(world, "two") != ""
    keep_apart(world, "offline", ["one"])
    world.store.put(schedule(name="two", key="b"), "offline", 1, "me")
    run(world, 30)
    assert_all_once(world, "one", "two")


def test_what_is_large_and_for_a_silent_partition_waits_for_that(world: MemorySchedules) -> None:
    put(world, "small", "offline")
    world.topic.silent = {"offline/0"}
    run(world, 20)
    put(world, "large", "offline", cron="* * * * * *", value="x" * 400_000)
    run(world, AGAIN_MS // SECOND_MS + 20)
    assert "partition without a leader" in problem(world, "large")
    assert "firing.name:large" not in world.topic.epochs


def test_a_clock_that_is_set_back_makes_no_wait_an_hour_long(world: MemorySchedules) -> None:
    put(world, "struck", "offline")
    run(world, 3_600)
    world.topic.silent = {"offline/0"}
    run(world, 60)
    world.now_ms -= 3_600 * SECOND_MS  # the brokers'
    world.topic.silent = set()
    run(world, 3)
    assert problem(world, "struck") == ""
    assert due(world, "struck") == list(range(5, due(world, "struck")[-1] + 1, 5))


def test_many_that_are_well_are_written_in_few_transactions(world: MemorySchedules) -> None:
    for number in range(400):
        put(world, f"n{number}", cron="0 * * * * *")
    run(world, 50)
    assert len(world.topic.sent) == 400
    assert world.topic.transactions == 1


def test_many_that_wait_for_one_partition_are_tried_together_and_seldom(world: MemorySchedules) -> None:
    for number in range(200):
        put(world, f"n{number}", "offline", cron="0 * * * * *")
    world.topic.silent = {"offline/0"}
    run(world, 50)
    before_count = sum(world.topic.epochs.values())
    run(world, 300)
    assert sum(world.topic.epochs.values()) - before_count <= 300 * SECOND_MS // AGAIN_MS + 1
    world.topic.silent = set()
    transactions = world.topic.transactions
    run(world, AGAIN_MS // SECOND_MS + 2)
    assert len(world.topic.sent) == 200 * 6
    assert world.topic.transactions - transactions <= 12


def test_whoever_waits_can_be_paused_changed_and_deleted(world: MemorySchedules) -> None:
    for name in ("paused", "moved", "deleted"):
        put(world, name, "offline")
    put(world, "healthy")
    world.topic.silent = {"offline/0"}
    run(world, 30)
    world.store.put(schedule(name="paused", paused=True), "offline", 1, "me")
    world.store.put(schedule(name="moved"), "reminders", 1, "me")
    world.store.delete("deleted", 1, "me")
    run(world, AGAIN_MS // SECOND_MS + 10)
    assert due(world, "moved") == list(range(5, 81, 5)), "through another source, all that had waited"
    assert problem(world, "moved") == ""
    assert_on_time(world, "healthy", 5)
    world.topic.silent = set()
    run(world, AGAIN_MS // SECOND_MS + 10)
    assert due(world, "paused") == due(world, "deleted") == []


# --- how they are packed ----------------------------------------------------------------------------------------------


def jobs_of(counts: Sequence[int], size: int) -> list[Job]:
    """Of schedules that owe so many records each."""
    made = []
    for number, count in enumerate(counts):
        one = schedule(name=f"n{number}", cron="* * * * * *", value="x" * size)
        entry = Entry(one, "reminders", 1, "me", NOW_MS, NOW_MS)
        since_ms = NOW_MS + LIMITS.ahead_ms - count * SECOND_MS
        job = job_of(entry, Progress(since_ms, began=0), NOW_MS, LIMITS, {"reminders": 12})
        assert job is not None
        made.append(job)
    return made


@given(st.lists(st.integers(1, 30), max_size=6), st.integers(0, 300), st.integers(1, 40), st.integers(1, 5_000))
def test_transactions_have_all_of_every_job_in_order_within_the_room(
    counts: list[int], size: int, records: int, room: int
) -> None:
    jobs = jobs_of(counts, size)
    packed = list(batches(jobs, lambda: Room(records, room)))
    for batch in packed:
        parcels = [parcel for job in batch for parcel in job.parcels]
        assert len({job.name for job in batch}) == len(batch)
        assert len(parcels) == 1 or (len(parcels) <= records and sum(map(size_of, parcels)) <= room)
    for job in jobs:
        parts = [part for batch in packed for part in batch if part.name == job.name]
        assert [parcel for part in parts for parcel in part.parcels] == job.parcels
        assert parts[-1].progress == job.progress
        reached = [part.progress.last_ms for part in parts]
        assert reached == sorted(set(reached))
        assert all(part.progress.waiting_ms == NOW_MS for part in parts[:-1]), "what is to come is not missed"


@given(st.integers(1, 30), st.sets(st.integers(0, 11)))
def test_what_comes_before_a_closed_place_goes(count: int, closed: set[int]) -> None:
    [job] = jobs_of([count], 1)
    first, place = before(job, {f"reminders/{number}" for number in closed})
    going = [] if first is None else list(first.parcels)
    assert going == list(job.parcels[: len(going)])
    assert all(parcel.partition not in closed for parcel in going)
    if place:
        assert place == place_of(job.parcels[len(going)])
    else:
        assert first == job
