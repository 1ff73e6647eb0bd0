"""Conditions that the engine publishes: which partitions it has, and what keeps records waiting, once it does."""

from typing import NoReturn

import pytest

from sidecar.conditions.attribution import OF_OWNERS
from sidecar.engine.assignment import REVOKED_TOLD_MS
from sidecar.engine.conditions import Waits
from sidecar.engine.engine import PUBLISH_INTERVAL_MS
from sidecar.model.condition import WAIT_MIN_MS, Condition, Kind, Subject
from sidecar.model.record import Headers, TopicPartition
from sidecar.model.stats import Stats
from sidecar.overflow.interface import OverflowUnavailable
from tests.simulation.fake_time import EPOCH_MS, FakeTime
from tests.simulation.replica import LEDGER
from tests.unit.engine.emission.test_rate_limit import limited
from tests.unit.engine_bench import LANE, SOURCE, Bench

HERE = Subject(Kind.RUNNING, *LANE)


def there(bench: Bench) -> dict[Subject, int]:
    """Subjects of the conditions now, and since when."""
    stats = bench.replica.publisher.publish(bench.clock.now_ms)
    assert stats.at_ms == bench.clock.now_ms
    found = {one.subject: one.since_ms for one in stats.conditions}
    assert len(found) == len(stats.conditions)
    return found


@pytest.mark.parametrize("trouble", [str, None], ids=["exactly once", "at least once"])
def test_an_engine_at_work_has_its_partitions_and_nothing_waits(trouble: object) -> None:
    bench = Bench(trouble=str if trouble else None)
    for _ in range(20):
        bench.send(b"value", 100)
        bench.run(200)
        assert there(bench).keys() == {HERE}


def test_a_partition_that_is_taken_over_is_recovering_until_it_runs() -> None:
    bench = Bench()
    bench.restart()
    seen: dict[Subject, int] = {}
    for _ in range(100):
        now = there(bench)
        assert len(now) <= 1, "also while the broker's clock isn't known: no limit was reached"
        seen = now | seen
        bench.step(5)
    [running, recovering] = seen.items()
    assert (recovering[0], running[0]) == (Subject(Kind.RECOVERING, *LANE), HERE)
    assert 0 < recovering[1] < running[1] < bench.clock.now_ms, "when each began"


GONE = Subject(Kind.REVOKED, *LANE)


def test_a_partition_that_was_let_go_in_order_is_told_for_a_while() -> None:
    bench = Bench()
    let_go_ms = bench.clock.now_ms
    bench.replica.assignment.revoked([LANE])
    assert (there(bench), bench.replica.assignment.since_ms) == ({GONE: let_go_ms}, {})
    bench.clock.advance(1)
    bench.replica.assignment.revoked([LANE])  # said again, as the consumer is closed
    assert there(bench) == {GONE: let_go_ms}
    bench.clock.advance(REVOKED_TOLD_MS - 1)
    bench.replica.assignment.step(bench.clock.now_ms)
    assert there(bench) == {GONE: let_go_ms}, "since it was done"
    bench.clock.advance(1)
    bench.replica.assignment.step(bench.clock.now_ms)
    assert there(bench) == {}


def test_of_all_that_ever_left_only_what_is_told_is_remembered() -> None:
    bench = Bench()
    assignment = bench.replica.assignment
    for partition in range(100):
        assignment.revoked([TopicPartition(SOURCE, partition)])
        bench.clock.advance(REVOKED_TOLD_MS // 10)
        assignment.step(bench.clock.now_ms)
    assert [lane.partition for lane in assignment.revoked_ms] == list(range(91, 100))
    bench.clock.advance(-60_000)
    assignment.step(bench.clock.now_ms)
    assert not assignment.revoked_ms, "nor where the clock was set back"


def test_what_is_let_go_in_order_is_so_from_before_it_settles() -> None:
    bench = Bench()
    bench.send(b"due", 0)
    bench.wait_until(lambda: bench.replica.settlement.unfinished(bench.replica.lanes))
    let_go_ms = bench.clock.now_ms
    bench.replica.assignment.revoked([LANE])
    assert there(bench) == {GONE: let_go_ms}
    assert bench.clock.now_ms > let_go_ms, "it took a while"


def test_a_partition_that_comes_back_is_no_longer_let_go() -> None:
    bench = Bench()
    bench.replica.assignment.revoked([LANE])
    bench.replica.assignment.assigned([LANE])
    assert there(bench).keys() == {Subject(Kind.RECOVERING, *LANE)}


@pytest.mark.parametrize("settle_ms", [0, 400], ids=["recovering", "running"])
def test_a_process_that_stops_tells_so_before_it_leaves_the_group(settle_ms: int) -> None:
    bench = Bench()
    bench.restart()
    bench.run(settle_ms)
    told: list[Stats] = []
    engine, close = bench.replica.engine, bench.replica.intake.close

    def note_and_close() -> None:
        told.append(engine.stats)
        close()

    bench.replica.intake.close = note_and_close  # type: ignore[method-assign]
    engine.start(FakeTime(bench.clock), lambda _: None)
    engine.stop(10)
    assert [one.subject for one in told[0].conditions if one.subject.kind in OF_OWNERS] == [GONE]


def test_a_partition_that_was_lost_was_not_let_go_in_order() -> None:
    bench = Bench()
    bench.replica.assignment.lost([LANE])
    assert there(bench) == {}


def test_a_rate_is_a_condition_once_its_first_record_has_waited() -> None:
    bench = limited()
    for _ in range(40):
        bench.send(b"v", 200)
    due_ms = bench.clock.now_ms + 200
    bench.run(700)
    assert Subject(Kind.RATE, "mail") not in there(bench)
    bench.run(WAIT_MIN_MS)
    since_ms = there(bench)[Subject(Kind.RATE, "mail")]
    assert due_ms - 50 <= since_ms <= due_ms + 50 + PUBLISH_INTERVAL_MS
    bench.wait_until(lambda: len(bench.values("mail")) == 40)
    bench.run(300)
    assert there(bench).keys() == {HERE}


YESTERDAY: Headers = [("tickover-deliver-at", b"%d" % (EPOCH_MS - 86_400_000))]


def test_a_condition_does_not_reach_back_to_before_anything_waited() -> None:
    bench = limited()
    for _ in range(30):
        bench.send(b"overdue when it came", headers=YESTERDAY)
    came_ms = bench.clock.now_ms
    bench.run(700)
    assert there(bench).keys() == {HERE}, "it has not waited for long, however overdue it is"
    bench.run(WAIT_MIN_MS)
    assert came_ms <= there(bench)[Subject(Kind.RATE, "mail")] <= came_ms + PUBLISH_INTERVAL_MS + 50
    bench.wait_until(lambda: len(bench.values("mail")) == 30)
    bench.run(2 * PUBLISH_INTERVAL_MS)  # nothing waits any more
    for _ in range(20):
        bench.send(b"overdue when it came", headers=YESTERDAY)
    again_ms = bench.clock.now_ms
    bench.run(WAIT_MIN_MS + PUBLISH_INTERVAL_MS + 50)
    assert again_ms <= there(bench)[Subject(Kind.RATE, "mail")] <= again_ms + PUBLISH_INTERVAL_MS + 50


RATE, ORDER = Subject(Kind.RATE, "mail"), Subject(Kind.ORDER, *LANE)


def test_a_wait_begins_when_it_is_seen_and_is_due() -> None:
    waits = Waits()
    waiting = [(RATE, 0), (ORDER, 5_500)]  # long overdue, and due after it was seen
    assert waits.step(waiting, 5_000) == []
    assert waits.step(waiting, 5_000 + WAIT_MIN_MS) == [Condition(RATE, 5_000)]
    assert waits.step(waiting, 5_500 + WAIT_MIN_MS) == [Condition(RATE, 5_000), Condition(ORDER, 5_500)]
    assert waits.step([(ORDER, 5_500)], 9_000) == [Condition(ORDER, 5_500)]
    assert waits.step(waiting, 9_250) == [Condition(ORDER, 5_500)], "the other one began again"
    assert waits.step(waiting, 9_250 + WAIT_MIN_MS) == [Condition(RATE, 9_250), Condition(ORDER, 5_500)]
    assert waits.step([], 12_000) == []
    assert waits._begun_ms == {}


def test_a_wait_is_told_also_after_the_clock_was_set_back() -> None:
    waits = Waits()
    waits.step([(RATE, 0)], 90_000)
    waits.step([(RATE, 0)], 5_000)
    assert waits.step([(RATE, 0)], 5_000 + WAIT_MIN_MS) == [Condition(RATE, 5_000)]


def test_a_target_that_does_not_acknowledge_and_the_settlement_behind_it() -> None:
    bench = Bench(trouble=str)
    bench.broker.short.add("mail")
    bench.send(b"due", 0)
    handed_over_ms = bench.clock.now_ms
    bench.wait_until(lambda: Subject(Kind.SETTLE) in there(bench), 5_000)
    assert there(bench)[Subject(Kind.SETTLE)] - handed_over_ms < 100
    bench.wait_until(lambda: Subject(Kind.SUSPENDED, "mail") in there(bench), 120_000)
    bench.broker.short.clear()
    bench.wait_until(lambda: there(bench).keys() == {HERE}, 120_000)


def test_a_ledger_that_does_not_acknowledge_is_a_problem_with_kafka() -> None:
    bench = Bench()
    bench.broker.short.add(LEDGER.name)
    bench.send(b"value", 0)
    bench.wait_until(lambda: Subject(Kind.KAFKA) in there(bench), 120_000)
    bench.broker.short.clear()
    bench.wait_until(lambda: there(bench).keys() == {HERE}, 120_000)


def test_redis_that_does_not_answer() -> None:
    def away(_call: str, _done: bool) -> NoReturn:
        raise OverflowUnavailable("Redis does not answer")

    bench = Bench()
    well, bench.overflow.failing = bench.overflow.failing, away
    bench.send(b"far", 600_000)
    bench.wait_until(lambda: Subject(Kind.REDIS) in there(bench), 5_000)
    bench.overflow.failing = well
    bench.wait_until(lambda: there(bench).keys() == {HERE}, 5_000)


def test_a_full_wheel_pauses_the_intake() -> None:
    bench = Bench(wheel_records_max=20)
    for _ in range(60):
        bench.send(b"near", 1_000)
    bench.wait_until(lambda: Subject(Kind.PAUSED) in there(bench), 5_000)
    bench.wait_until(lambda: len(bench.values("mail")) == 60, 20_000)
    bench.run(300)
    assert there(bench).keys() == {HERE}


def test_there_is_no_condition_of_another_source() -> None:
    assert all(subject.topic in ("", SOURCE) for subject in there(Bench()))
