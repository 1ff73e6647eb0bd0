"""How long the engine rests between two turns: what it must not oversleep, and that it does rest."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final
from unittest.mock import Mock

import pytest

from sidecar.engine.commit.transaction import Transaction
from sidecar.engine.engine import AWAIT_MS, CLIENT_MIN_S, LOOK_S, PUBLISH_INTERVAL_MS, TURN_MS
from tests.simulation.fake_time import FakeTime
from tests.unit.engine_bench import Bench

LOOK_MS: Final = round(LOOK_S * 1_000)
GUARANTEES: Final = pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])


def bench_of(exactly_once: bool) -> Bench:
    """An engine that has had its time to get ready, and rests."""
    bench = Bench(trouble=str if exactly_once else None)
    bench.run(300)
    return bench


def run(bench: Bench, ms: int, happens: Mapping[int, Callable[[], object]]) -> list[int]:
    """Let the engine run by itself for so long. What `happens`, by milliseconds from now, does so as time passes.

    Returns when its turns were, by milliseconds from now. All goes on in the engine's thread: no chance.
    """
    clock, engine, began_ms = bench.clock, bench.replica.engine, bench.clock.now_ms
    turns: list[int] = []
    turn, due = engine.turn, dict(happens)

    def noted(now_ms: int) -> int:
        turns.append(clock.now_ms - began_ms)
        return turn(now_ms)

    def passes() -> None:
        bench.replica.deliver()
        for executor in bench.replica.executors:
            executor.run()
        passed_ms = clock.now_ms - began_ms
        for at_ms in [at_ms for at_ms in due if at_ms <= passed_ms]:
            due.pop(at_ms)()
        if passed_ms >= ms:
            engine._stopping.set()

    engine.turn = noted  # type: ignore[method-assign]
    clock.passing.append(passes)
    engine.start(FakeTime(clock), lambda seconds: clock.advance(max(round(seconds * 1_000), 1)))
    assert engine.finished.wait(30)
    assert engine.failure is None
    clock.passing.remove(passes)
    return turns


def gaps(turns: list[int]) -> list[int]:
    return [second - first for first, second in pairwise(turns)]


@GUARANTEES
def test_with_nothing_to_do_it_turns_a_few_times_a_second_and_publishes_as_ever(exactly_once: bool) -> None:
    bench = bench_of(exactly_once)
    published: list[int] = []
    publish = bench.replica.publisher.publish
    bench.replica.publisher.publish = lambda now_ms: (published.append(now_ms), publish(now_ms))[1]  # type: ignore[method-assign]
    turns = run(bench, 2_000, {})
    assert len(turns) <= 2_000 // PUBLISH_INTERVAL_MS + 2
    assert max(gaps(turns)) <= PUBLISH_INTERVAL_MS
    assert set(gaps(published[:-1])) == {PUBLISH_INTERVAL_MS}, "but for the last one, at its end"


@GUARANTEES
def test_a_record_fires_in_the_millisecond_in_which_it_is_due(exactly_once: bool) -> None:
    bench = bench_of(exactly_once)
    bench.send(b"value", 333)
    due_ms, settlement = bench.clock.now_ms + 333, bench.replica.settlement
    handed_over: set[int] = set()

    def look() -> None:
        handed_over.update(at_ms for interval in settlement.in_flight for *_, at_ms in interval.batches)

    bench.clock.passing.append(look)
    run(bench, 340, {})
    assert handed_over == {due_ms}


def test_one_that_comes_later_and_is_due_sooner_is_not_overslept() -> None:
    bench = bench_of(False)
    bench.send(b"later", 90)
    turns = run(bench, 100, {10: lambda: bench.send(b"sooner", 37)})
    assert {10, 47, 90} <= set(turns)


@GUARANTEES
def test_a_record_that_comes_ends_the_rest(exactly_once: bool) -> None:
    bench = bench_of(exactly_once)
    turns = run(bench, 100, {37: lambda: bench.send(b"value", 60_000)})
    assert 37 in turns


def test_records_that_come_one_by_one_share_turns() -> None:
    bench = bench_of(False)
    turns = run(bench, 300, {at_ms: lambda: bench.send(b"value", 60_000) for at_ms in range(300)})
    assert min(gaps(turns)) >= TURN_MS
    assert len(turns) >= 80, "and none waits for others"


def busy_turns(bench: Bench, count: int = 300) -> list[int]:
    """Turns while each millisecond one record comes, and one falls due."""
    return run(bench, count, {at_ms: lambda: bench.send(b"value", 20) for at_ms in range(count)})


def test_what_is_seen_at_the_end_of_an_interval_only_is_worked_on_twice_an_interval() -> None:
    bench = bench_of(True)
    interval_ms = bench.shape.settle_interval_ms
    turns = sorted(set(busy_turns(bench)))  # one that was given all it can take is followed by another at once
    assert len(turns) <= 2 * 300 // interval_ms + 4
    assert max(gaps(turns)) <= interval_ms


def test_what_is_seen_at_once_is_emitted_at_once() -> None:
    assert max(gaps(busy_turns(bench_of(False)))) <= TURN_MS + 1


def test_what_is_due_by_the_end_of_an_interval_is_in_the_transaction_that_ends_it() -> None:
    """However few turns there are: what falls due by the step that seals is emitted in the turn of it."""
    bench = bench_of(True)
    sealed: list[tuple[int, set[int]]] = []
    settlement: Any = bench.replica.settlement
    fill = settlement._filling.fill

    def noted(transaction: Transaction, lanes: Any, now_ms: int) -> None:
        left = {lane.wheel.next_due_ms() for lane in bench.replica.lanes}
        sealed.append((now_ms, {due_ms for due_ms in left if due_ms >= 0}))
        fill(transaction, lanes, now_ms)

    settlement._filling.fill = noted
    busy_turns(bench)
    assert len(sealed) >= 300 // bench.shape.settle_interval_ms
    assert all(now_ms < min(left, default=now_ms + 1) for now_ms, left in sealed)


@GUARANTEES
def test_what_was_emitted_is_settled_by_the_end_of_its_interval(exactly_once: bool) -> None:
    bench = bench_of(exactly_once)
    bench.send(b"value", 200)
    blocks = len(bench.ledger)
    settled: list[int] = []
    began_ms = bench.clock.now_ms

    def look() -> None:
        if not settled and bench.replica.lanes and bench.lane.settled_count:
            settled.append(bench.clock.now_ms - began_ms)

    bench.clock.passing.append(look)
    run(bench, 600, {})
    assert len(bench.ledger) > blocks
    intervals = 1 if exactly_once else 2  # its reports, then its block
    assert settled[0] <= 200 + intervals * bench.shape.settle_interval_ms + 20


@pytest.mark.parametrize("at_ms", [1, 37, 99])
def test_a_command_is_answered_within_the_time_between_two_looks(at_ms: int) -> None:
    bench = bench_of(True)
    answered: list[int] = []
    began_ms = bench.clock.now_ms

    def ask() -> None:
        bench.replica.engine.submit(lambda _: answered.append(bench.clock.now_ms - began_ms))

    run(bench, 200, {at_ms: ask})
    assert at_ms <= answered[0] <= at_ms + LOOK_MS


def test_all_commands_that_wait_are_answered_without_a_rest() -> None:
    bench = bench_of(False)
    futures = [bench.replica.engine.submit(lambda _: None) for _ in range(100)]
    run(bench, 2, {})
    assert all(future.done() for future in futures)


def test_its_end_is_not_slept_through() -> None:
    bench = bench_of(False)
    began_ms = bench.clock.now_ms
    run(bench, 37, {})
    assert bench.clock.now_ms - began_ms <= 37 + LOOK_MS


def test_an_event_of_the_group_ends_the_rest() -> None:
    bench = bench_of(False)
    turns = run(bench, 60, {37: bench.new_replica})  # takes the partition
    assert turns[-1] == 37
    assert bench.replica.lanes == []


def test_answers_of_other_threads_are_waited_for_in_short_rests() -> None:
    bench = bench_of(False)
    engine = bench.replica.engine
    assert engine.rest_ms(bench.clock.now_ms, 0) > AWAIT_MS
    assert bench.replica.worker.find(bench.lane, ["id"], lambda _: None, lambda: None)
    assert engine.rest_ms(bench.clock.now_ms, 0) == AWAIT_MS


def test_less_than_the_client_can_wait_for_is_no_busy_loop() -> None:
    """The client waits for whole milliseconds: asked to wait for less, it returns at once."""
    engine = bench_of(True).replica.engine
    now_s, asked, paced = [10.0], 0, []

    def hasten(*_: object) -> bool:
        nonlocal asked
        asked += 1
        now_s[0] += 0.000_01
        return True

    def pace(seconds: float) -> None:
        paced.append(seconds)
        now_s[0] += seconds

    engine._rhythm.hasten = hasten  # type: ignore[assignment]
    until_s = 10.0 + CLIENT_MIN_S / 2
    engine._rest(0, (until_s, until_s), Mock(monotonic_s=lambda: now_s[0]), pace)
    assert asked == 0
    assert paced == [pytest.approx(CLIENT_MIN_S / 2)]
