"""Writing what schedules owe: once, whoever does it and whatever fails."""

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Event
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from prometheus_client import generate_latest

from sidecar.kafka.background import in_background
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.model.partitioner import partition_of
from sidecar.operations.jobs.transactional_sender import NoTransactions, ShipmentFailed, TakenOver
from sidecar.operations.schedules.apart import AGAIN_MS
from sidecar.operations.schedules.firing import WITHOUT_MS, Firing
from sidecar.operations.schedules.schedule import SchedulesUnavailable
from sidecar.operations.schedules.writing import Tenure
from sidecar.service.metrics import Recorder
from sidecar.service.operations import schedules as assembly
from sidecar.settings.settings import Settings
from tests.unit.pause_world import MemoryPauses
from tests.unit.schedule_world import NOW_MS, Delayed, MemoryPen, MemorySchedules, MemoryTopic

pytestmark = pytest.mark.slow

Result = TypeVar("Result")


@pytest.fixture
def world() -> MemorySchedules:
    return MemorySchedules()


def ids(world: MemorySchedules) -> list[str]:
    return [(dict(parcel.headers)["tickover-id"] or b"").decode() for parcel in world.topic.sent]


def seconds(world: MemorySchedules) -> list[int]:
    """Of the occurrences written, from the beginning on."""
    return [(int(id.rpartition(":")[2]) - NOW_MS) // 1_000 for id in ids(world)]


def problem(world: MemorySchedules, name: str = "tick") -> str:
    world.store.catch_up()
    return world.store.get(name).progress.problem


def test_what_it_writes(world: MemorySchedules) -> None:
    world.put(key="k", value="v", headers=[("mine", "1"), ("mine", None)])
    world.firing().step()
    first, second = world.topic.sent
    assert (first.target, first.key, first.value) == ("reminders", b"k", b"v")
    assert first.partition == partition_of(b"k", 12)
    due = b"%d" % (NOW_MS + 5_000)
    assert list(first.headers) == [
        ("mine", b"1"),
        ("mine", None),
        ("tickover-deliver-at", due),
        ("tickover-target", b"push"),
        ("tickover-id", b"schedule:tick:" + due),
    ]
    assert dict(second.headers)["tickover-deliver-at"] == b"%d" % (NOW_MS + 10_000)
    assert world.written == [("tick", 2, 0, False)]


def test_without_a_key_the_id_decides_the_partition(world: MemorySchedules) -> None:
    world.put()
    world.firing().step()
    assert [parcel.partition for parcel in world.topic.sent] == [partition_of(id.encode(), 12) for id in ids(world)]


def test_step_by_step_each_occurrence_once(world: MemorySchedules) -> None:
    world.put()
    firing = world.firing()
    for _ in range(60):
        firing.step()
        world.now_ms += 1_000
    assert seconds(world) == list(range(5, 70, 5))


def test_a_successor_goes_on_where_the_last_one_stopped_and_a_zombie_writes_nothing(world: MemorySchedules) -> None:
    world.put()
    zombie = world.firing()
    zombie.step()
    world.now_ms += 7_000
    world.topic.meanwhile = successor_steps = world.firing(world.replica()).step
    zombie.step()
    assert not zombie.is_owner
    assert seconds(world) == [5, 10, 15]
    world.now_ms += 5_000
    zombie.step()  # still the one by its own view: it takes over, and learns what the other has done
    assert seconds(world) == [5, 10, 15, 20]
    successor_steps()
    assert seconds(world) == [5, 10, 15, 20]


def test_whoever_is_not_the_one_writes_nothing(world: MemorySchedules) -> None:
    world.put()
    world.owner = False
    world.firing().step()
    assert world.topic.epochs.keys() == {"pen"}
    world.owner = True
    firing = world.firing()
    firing.step()
    assert firing.is_owner
    world.owner = False
    firing.step()
    assert not firing.is_owner


@pytest.mark.parametrize("failure", [ShipmentFailed("no answer"), TakenOver()])
def test_after_a_failure_it_begins_anew(world: MemorySchedules, failure: Exception) -> None:
    world.put()
    firing = world.firing()
    world.topic.failures.append(failure)
    with pytest.raises(ShipmentFailed):
        firing.step()
    assert world.topic.sent == []
    firing.step()
    assert seconds(world) == [5, 10]


def test_before_the_brokers_clock_is_seen_nothing_is_written(world: MemorySchedules) -> None:
    """Neither occurrences nor progress, whatever this machine believes; then all that is owed."""
    world.put(missed="all")
    world.put(name="lost", source="gone", missed="all")
    world.time_is_known = False
    firing = world.firing()
    firing.step()
    world.now_ms += 7_000
    firing.step()
    assert (world.topic.sent, len(world.topic.records)) == ([], 2)
    world.time_is_known = True
    firing.step()
    assert {*seconds(world)} == {5, 10, 15}


def test_brokers_without_transactions_are_asked_again_after_a_minute(world: MemorySchedules) -> None:
    world.put()
    asked: list[int] = []

    def ask() -> None:
        asked.append(world.now_ms)
        raise NoTransactions("API version not supported")

    firing = world.firing()
    for _ in range(WITHOUT_MS // 1_000):
        world.topic.before = ask
        with suppress(NoTransactions):
            firing.step()
        world.now_ms += 1_000
    assert len(asked) == 1
    world.topic.before = None
    firing.step()
    assert firing.is_owner


def test_kafka_away_while_it_takes_over(world: MemorySchedules) -> None:
    world.put()
    firing = world.firing()
    world.topic.down = LogUnavailable("away")
    with pytest.raises(SchedulesUnavailable):
        firing.step()
    assert not firing.is_owner
    world.topic.down = None
    firing.step()
    assert seconds(world) == [5, 10]


def test_a_schedule_whose_record_is_refused_holds_up_no_other(world: MemorySchedules) -> None:
    world.put(name="bad", value="too large")
    world.put(name="good")
    world.topic.refused = {b"too large"}
    firing = world.firing()
    for _ in range(2):
        firing.step()
    assert {id.split(":")[1] for id in ids(world)} == {"good"}
    assert "Kafka refuses" in problem(world, "bad")
    assert problem(world, "good") == ""
    world.topic.refused = set()
    world.now_ms += AGAIN_MS
    for _ in range(2):
        firing.step()
    assert problem(world, "bad") == ""
    assert len([id for id in ids(world) if ":bad:" in id]) == 8


def test_a_source_that_is_not_consumed_is_said_and_what_is_owed_waits_for_it(world: MemorySchedules) -> None:
    world.put()
    firing = world.firing()
    world.sources = {"another": 1}
    firing.step()
    firing.step()
    assert world.topic.sent == []
    assert "source topic reminders does not exist" in problem(world)
    assert len([record for record in world.topic.records if record.key == b"tick/progress"]) == 1, "said once"
    world.sources = {"reminders": 1}
    world.now_ms += 30_000
    firing.step()
    assert problem(world) == ""
    assert seconds(world) == [5, 10, 15, 20, 25, 30, 35, 40]


def test_paused_deleted_and_changed_ones(world: MemorySchedules) -> None:
    world.put()
    firing = world.firing()
    firing.step()
    world.put(1, paused=True)
    world.now_ms += 20_000
    firing.step()
    assert seconds(world) == [5, 10]
    world.put(2)  # what came while it was paused is none of its
    firing.step()
    assert seconds(world) == [5, 10, 25, 30]
    world.store.delete("tick", 3, "me")
    world.now_ms += 20_000
    firing.step()
    assert seconds(world) == [5, 10, 25, 30]
    world.put(cron="*/2 * * * * *")  # made again: no occurrence has the id of one before
    firing.step()
    assert seconds(world) == [5, 10, 25, 30, 42, 44, 46, 48, 50]


def test_a_long_absence(world: MemorySchedules) -> None:
    for missed in ("skip", "once", "all"):
        world.put(name=missed, missed=missed, cron="*/30 * * * * *")
    world.now_ms += 3_600_000
    firing = world.firing()
    firing.step()
    firing.step()
    assert Counter(id.split(":")[1] for id in ids(world)) == {"skip": 2, "once": 3, "all": 7}
    assert sorted(world.written) == [("all", 2, 5, True), ("once", 2, 1, True), ("skip", 2, 0, True)]


def test_many_are_written_in_pieces(world: MemorySchedules) -> None:
    for number in range(30):
        world.put(name=f"n{number}", cron="* * * * * *")
    world.now_ms += 50_000
    world.firing().step()
    assert len(world.topic.sent) == len(set(ids(world))) == 30 * 60


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_each_occurrence_is_written_once_and_in_order(world: MemorySchedules, seed: int) -> None:
    """Three replicas of which any may believe to be the one, that fail, and take over in mid-transaction.

    Partitions stay silent, records are refused, answers are lost, schedules are changed; what is written apart is
    written at any later time, also by a process that was taken for dead.
    """
    chance = random.Random(seed)
    made: dict[str, dict[str, Any]] = {
        "tick": {},
        "keyed": {"key": "k"},
        "same": {"key": "k"},
        "large": {"cron": "*/3 * * * * *", "value": "x" * 300_000},
    }
    for name, changes in made.items():
        world.put(name=name, missed="all", **changes)
    delayed = Delayed()
    world.run = delayed.run
    stores = [world.replica() for _ in range(3)]
    replicas = [world.firing(store) for store in stores]

    for replica in replicas:
        replica._patience_s = chance.choice([1.0, 0.0])  # 0: whatever goes apart is slow, and stays there
    stepping: set[int] = set()

    def step(number: int) -> None:
        if number not in stepping:  # its thread is in the middle of one
            stepping.add(number)
            with suppress(ShipmentFailed, SchedulesUnavailable):
                replicas[number].step()
            stepping.discard(number)

    for _ in range(120):
        number = chance.randrange(3)
        if chance.random() < 0.1:  # killed: nothing of its memory is left, but for what runs on in a thread
            stores[number] = world.replica()
            replicas[number] = world.firing(stores[number])
            replicas[number]._patience_s = chance.choice([1.0, 0.0])
        if chance.random() < 0.1:  # a new version, which goes on with the count
            name = chance.choice(list(made))
            world.put(world.store.get(name).version, name=name, missed="all", headers={"x": "y"}, **made[name])
        strike(world.topic, chance)
        if chance.random() < 0.3:
            world.topic.meanwhile = lambda number=number: step((number + 1) % 3)
        if chance.random() < 0.3:
            world.topic.between = lambda number=number: step((number + 2) % 3)
        step(number)
        while chance.random() < 0.6:
            if chance.random() < 0.3:
                world.topic.meanwhile = lambda: step(chance.randrange(3))
            delayed.work(chance)
        world.topic.failures.clear()
        world.topic.lost_answers.clear()
        world.topic.meanwhile = world.topic.between = world.topic.before = world.topic.down = None
        world.now_ms += chance.randint(0, 6_000)
    world.topic.silent, world.topic.refused = set(), set()
    for _ in range(40):
        world.now_ms += 2_000
        step(0)
        delayed.work_all()
    reached = (world.now_ms + 10_000 - NOW_MS) // 1_000
    for name in made:
        every = 3 if name == "large" else 5
        mine = [int(id.rpartition(":")[2]) for id in ids(world) if id.split(":")[1] == name]
        assert [(at_ms - NOW_MS) // 1_000 for at_ms in mine] == list(range(every, reached + 1, every)), name


def strike(topic: MemoryTopic, chance: random.Random) -> None:
    """Faults of the next transactions, and of partitions."""
    if chance.random() < 0.2:
        topic.silent = {f"reminders/{chance.randrange(12)}" for _ in range(chance.randrange(4))}
    if chance.random() < 0.1:
        topic.refused = {chance.choice([b"", b"x" * 300_000])}
    if chance.random() < 0.2:
        topic.failures = [chance.choice([ShipmentFailed("x"), TakenOver()])]
    if chance.random() < 0.1:
        topic.lost_answers = [chance.choice([ShipmentFailed("x"), TakenOver()])]
    if chance.random() < 0.1:  # it can't be read for a while
        topic.before = lambda: setattr(topic, "down", LogUnavailable("down"))


def test_a_producer_is_not_closed_while_somebody_asks_with_it(world: MemorySchedules) -> None:
    """Kafka's client doesn't survive that. Whoever ends the tenure doesn't wait for it either."""
    asking, answered, closed = Event(), Event(), Event()

    class SlowPen(MemoryPen):
        def write(self, *_: object) -> None:
            asking.set()
            assert answered.wait(10)
            assert not closed.is_set()

        def close(self) -> None:
            closed.set()

    here = world.surroundings()._replace(
        run=in_background, pen=lambda id: SlowPen(world.topic, id, lambda: world.now_ms)
    )
    tenure = Tenure(here)
    asked = in_background(tenure.confirm)
    assert asking.wait(10)
    tenure.close()
    answered.set()
    asked.result(10)
    assert closed.wait(10)
    with pytest.raises(TakenOver):
        tenure.confirm()


def firing_over(
    world: MemorySchedules,
    time: Any,
    consumed: Any,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder | None = None,
) -> Firing:
    """Made as a process makes it, of an engine that has every partition."""

    def submit(command: Callable[[Any], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(command(None))
        return future

    machinery: Any = SimpleNamespace(
        engine=SimpleNamespace(submit=submit),
        viewer=SimpleNamespace(has=lambda lane: True),
        time=time,
    )
    monkeypatch.setattr(assembly, "TransactionalSender", lambda client, id, topic: world.pen(id))
    client: dict[str, Any] = {}
    given = (client, world.store, MemoryPauses().store)
    return assembly.firing_of(Settings(group="g"), given, machinery, consumed, recorder or Recorder())


def test_a_step_of_the_wall_clock_leaves_no_occurrence_out(
    world: MemorySchedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's clock is far from `NOW_MS`; the engine's, which follows the brokers', counts."""
    time = SimpleNamespace(now_ms=lambda: world.now_ms + 86_400_000, is_known=False)
    consumed = SimpleNamespace(partitions=world.sources, open_partitions=world.sources)
    firing = firing_over(world, time, consumed, monkeypatch)
    world.put()
    firing.step()
    assert (world.topic.sent, len(world.topic.records)) == ([], 1), (
        "until the brokers' clock is seen, it may be any time"
    )
    time.is_known, time.now_ms = True, lambda: world.now_ms
    firing.step()
    assert seconds(world) == [5, 10]
    world.now_ms += 5_000
    firing.step()
    assert seconds(world) == [5, 10, 15]


def test_nothing_is_written_to_a_source_that_is_only_read_until_it_is_empty(
    world: MemorySchedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No policy makes it a source any more: each occurrence would be quarantined."""
    time = SimpleNamespace(now_ms=lambda: world.now_ms, is_known=True)
    consumed = SimpleNamespace(partitions=world.sources, open_partitions={})
    firing = firing_over(world, time, consumed, monkeypatch)
    world.put()
    firing.step()
    assert world.topic.sent == []
    assert "no policy" in problem(world)
    consumed.open_partitions = world.sources
    firing.step()
    assert seconds(world) == [5, 10]


def test_ten_thousand_schedules_that_were_deleted_leave_nothing_in_the_metrics(
    world: MemorySchedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    time = SimpleNamespace(now_ms=lambda: world.now_ms, is_known=True)
    consumed = SimpleNamespace(partitions=world.sources, open_partitions=world.sources)
    firing = firing_over(world, time, consumed, monkeypatch, recorder)
    world.put(name="stays")
    firing.step()
    before = generate_latest(recorder.registry).count(b"\n")
    for number in range(10_000):
        recorder.schedule(f"s{number}", 1, 0, passed_over=False)
    assert generate_latest(recorder.registry).count(b"\n") == before + 60_000
    firing.step()
    text = generate_latest(recorder.registry)
    assert text.count(b"\n") == before
    assert b'tickover_schedule_occurrences_total{kind="in_time",schedule="stays"} 2.0' in text
    world.store.delete("stays", 1, "me")
    consumed.partitions = {}
    firing.step()
    assert b'schedule="stays"' not in generate_latest(recorder.registry), "by a replica that writes no more, too"


def test_where_there_are_no_schedules_there_are_no_producers(world: MemorySchedules) -> None:
    """Each is a client of Kafka with threads and connections."""
    firing, writes = world.firing(), []
    for change in (lambda: None, world.put, lambda: world.store.delete("tick", 1, "me"), world.put):
        change()
        firing.step()
        writes.append((firing.is_owner, any(id.startswith("firing.") for id in world.topic.epochs)))
    assert writes == [(False, False), (True, True), (False, True), (True, True)]
    assert seconds(world) == [5, 10]
