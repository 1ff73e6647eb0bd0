"""Pauses: what waits, for how long, and that it is held like any other record."""

from collections.abc import Callable
from typing import Any

import pytest

from sidecar.engine.emission.pauses import PauseGate
from sidecar.model.condition import Condition, Kind, Pausable, Pause, PauseKind, Pauses, Subject, in_force
from sidecar.model.record import Headers
from tests.simulation.replica import INTAKE_BATCH
from tests.unit.engine.emission.test_rate_limit import at_rest, rules
from tests.unit.engine_bench import SOURCE, Bench

MAIL = Pausable(PauseKind.TARGET, "mail")
RULES = Pausable(PauseKind.POLICY, "p0")
READING = Pausable(PauseKind.SOURCE, SOURCE)
GUARANTEES = pytest.mark.parametrize("trouble", [None, str], ids=["at_least_once", "exactly_once"])
Trouble = Callable[[], str] | None


def pause(bench: Bench, *paused: Pausable, until_ms: int = -1) -> None:
    bench.replica.engine.pauses = pauses(*paused, until_ms=until_ms)
    bench.run(100)  # in force


def pauses(*paused: Pausable, until_ms: int = -1) -> Pauses:
    return dict.fromkeys(paused, Pause("a release", "me", 0, until_ms))


def ruled(**settings: Any) -> Bench:
    bench = Bench(**settings)
    bench.tables[9] = bench.replica.engine.table = rules({"topic": "mail"})
    bench.run(100)
    return bench


@GUARANTEES
@pytest.mark.parametrize("what", [MAIL, RULES], ids=["target", "policy"])
def test_what_is_paused_waits_and_others_go_on(what: Pausable, trouble: Trouble) -> None:
    bench = ruled(trouble=trouble)
    bench.send(b"before", 100)
    bench.wait_until(lambda: bench.values("mail") == [b"before"])
    pause(bench, what)
    for number in range(30):
        bench.send(b"%d" % number, 200 + 10 * (30 - number))  # the later, the earlier due
        bench.send(b"%d" % number, 300, [("to", b"other")])
    bench.wait_until(lambda: len(bench.values("other")) == 30, 2_000)
    bench.run(3_000)
    assert bench.values("mail") == [b"before"]
    stats = bench.replica.publisher.publish(bench.clock.now_ms)
    assert stats.oldest_overdue_ms == 0, "late by intent"
    assert stats.topics[SOURCE].wheel == 30 == stats.paused[what]
    assert len([held for run, start in bench.replica.emitter.due_of(bench.lane) for held in run[start:]]) == 30
    assert bench.replica.emitter.backlog == 0, "the engine rests meanwhile"
    pause(bench)
    bench.wait_until(lambda: len(bench.values("mail")) == 31)
    assert bench.values("mail")[1:] == [b"%d" % number for number in reversed(range(30))], "in order of due"
    at_rest(bench)
    assert bench.replica.tally.early == 0


def test_what_fires_while_a_queue_is_emptied_goes_behind_it() -> None:
    gate, lane = PauseGate(), ruled().lane
    held = _held()
    gate.follow(frozenset((MAIL,)), 0)
    assert gate.sift(lane, [held._replace(offset=offset, due_ms=offset) for offset in range(3)]) == []
    gate.follow(frozenset(), 1_000)
    assert not gate.holds(held)
    assert gate.sift(lane, [held._replace(offset=9, due_ms=9)]) == []
    through = [one.offset for _, records in gate.let_through(1_000, lambda _: 2) for one in records]
    through += [one.offset for _, records in gate.let_through(1_000, lambda _: 9) for one in records]
    assert through == [0, 1, 2, 9]
    assert gate.sift(lane, [held]) == [held]
    assert not gate.keeps_any


def test_what_two_things_hold_waits_for_both() -> None:
    bench = ruled()
    pause(bench, MAIL, RULES)
    bench.send(b"v", 100)
    bench.run(300)
    for still in (RULES, MAIL):
        pause(bench, still)
        bench.run(500)
        assert bench.values("mail") == []
    pause(bench)
    bench.wait_until(lambda: bench.values("mail") == [b"v"])
    at_rest(bench)


@GUARANTEES
@pytest.mark.parametrize("action", [b"cancel", b"reschedule", b"fire"])
def test_what_waits_can_be_acted_on(action: bytes, trouble: Trouble) -> None:
    bench = ruled(trouble=trouble)
    pause(bench, MAIL)
    bench.send(b"v", 100, [("tickover-id", b"one")])
    bench.run(300)
    when = [("tickover-delay", b"1s")] if action == b"reschedule" else []
    bench.send(b"", None, [("tickover-id", b"one"), ("tickover-action", action), *when])
    bench.run(500)
    assert bench.replica.emitter.pauses.count == (1 if action == b"fire" else 0)
    assert bench.values("mail") == [], "fired or not, it waits"
    pause(bench)
    bench.run(2_000)
    assert bench.values("mail") == ([] if action == b"cancel" else [b"v"])
    at_rest(bench)


def test_what_expires_while_it_waits_goes_to_the_dead_letters() -> None:
    bench = ruled()
    pause(bench, MAIL)
    for number in range(5):
        expires: Headers = [("tickover-expires-at", b"%d" % (bench.clock.now_ms + 2_000))] if number == 3 else []
        bench.send(b"%d" % number, 100, expires)
    bench.run(1_500)
    assert bench.values("dead") == []
    bench.wait_until(lambda: bench.values("dead") == [b"3"], 3_000)
    assert bench.values("mail") == []
    pause(bench)
    bench.wait_until(lambda: bench.values("mail") == [b"0", b"1", b"2", b"4"])
    at_rest(bench)


def test_a_pause_ends_at_its_time() -> None:
    bench = ruled()
    pause(bench, MAIL, until_ms=bench.clock.now_ms + 2_000)
    ends_ms = bench.clock.now_ms + 1_900
    bench.send(b"v", 100)
    bench.wait_until(lambda: bench.values("mail") == [b"v"], 3_000)
    assert 0 <= bench.records("mail")[0].handed_over_ms - ends_ms < 300


def test_a_pause_without_its_time_over_is_in_force() -> None:
    paused = {**pauses(MAIL, until_ms=10), **pauses(RULES)}
    assert in_force(paused, 9) == {MAIL, RULES}
    assert in_force(paused, 10) == {RULES}


def test_what_waits_for_its_rate_waits_for_the_pause_from_then_on() -> None:
    bench = Bench()
    bench.tables[9] = bench.replica.engine.table = rules({"topic": "mail", "rate": "2/s", "burst": 1})
    bench.run(100)
    for number in range(9):
        bench.send(b"%d" % number, 100)
    bench.run(300)
    pause(bench, MAIL)
    came = len(bench.values("mail"))
    assert bench.replica.emitter.gate.count == 0
    bench.run(5_000)
    assert len(bench.values("mail")) == came
    pause(bench)
    bench.run(1_000)
    assert came < len(bench.values("mail")) < 9, "the rate holds again"
    bench.wait_until(lambda: len(bench.values("mail")) == 9)
    at_rest(bench)


def test_what_its_target_did_not_acknowledge_waits_for_the_pause_when_it_does() -> None:
    bench = ruled()
    bench.replica.targets.suspend("mail", [0])
    for number in range(5):
        bench.send(b"%d" % number, 100)
    bench.run(300)
    pause(bench, MAIL)
    bench.run(90_000)  # long enough for a target to be tried again
    assert bench.values("mail") == []
    pause(bench)
    bench.wait_until(lambda: len(bench.values("mail")) == 5)
    at_rest(bench)


def test_what_comes_back_from_an_aborted_transaction_waits_for_the_pause() -> None:
    troubles = ["abort"]
    bench = ruled(trouble=lambda: troubles[0])
    bench.send(b"v", 100)
    bench.run(300)
    pause(bench, MAIL)
    troubles[0] = ""
    bench.run(2_000)
    assert bench.values("mail") == []
    pause(bench)
    bench.wait_until(lambda: bench.values("mail") == [b"v"])
    at_rest(bench)


def test_a_restart_goes_on_with_the_pause() -> None:
    bench = ruled()
    pause(bench, MAIL)
    bench.send(b"v", 100)
    bench.run(300)
    bench.restart()
    bench.replica.engine.pauses = pauses(MAIL)
    bench.run(20_000)
    assert bench.values("mail") == []
    pause(bench)
    bench.wait_until(lambda: bench.values("mail") == [b"v"])


def test_nothing_new_of_a_paused_source_is_read_and_what_is_held_fires() -> None:
    bench = ruled()
    bench.send(b"held", 1_000)
    bench.run(100)
    pause(bench, READING)
    bench.send(b"new", 100)
    bench.wait_until(lambda: bench.values("mail") == [b"held"], 3_000)
    bench.run(3_000)
    assert bench.values("mail") == [b"held"]
    pause(bench)
    bench.wait_until(lambda: bench.values("mail") == [b"held", b"new"])
    at_rest(bench)


def test_what_was_held_of_a_paused_source_is_read_again_after_a_crash_and_nothing_else() -> None:
    bench = ruled()
    bench.send(b"far", 30_000)
    bench.send(b"near", 1_900)
    bench.run(300)
    pause(bench, READING)
    for _ in range(4 * INTAKE_BATCH):
        bench.send(b"new", 100)
    bench.run(300)
    bench.restart()
    bench.replica.engine.pauses = pauses(READING)
    bench.wait_until(lambda: b"far" in bench.values("mail"))
    assert b"near" in bench.values("mail")
    assert bench.values("mail").count(b"new") < INTAKE_BATCH, "it comes with what is read again"
    pause(bench)
    bench.wait_until(lambda: bench.values("mail").count(b"new") == 4 * INTAKE_BATCH)


def test_what_is_paused_is_a_condition() -> None:
    bench = ruled()
    pause(bench, MAIL, RULES, READING)
    told = bench.replica.publisher.publish(bench.clock.now_ms).conditions
    since_ms = bench.replica.emitter.pauses.since_ms[MAIL]
    assert 0 <= bench.clock.now_ms - since_ms <= 100
    assert Condition(Subject(Kind.TARGET_PAUSED, "mail"), since_ms) in told
    assert Condition(Subject(Kind.POLICY_PAUSED, "p0"), since_ms) in told
    assert Condition(Subject(Kind.SOURCE_PAUSED, SOURCE), since_ms) in told


def _held() -> Any:
    bench = ruled()
    bench.send(b"v", 1_500)
    bench.run(200)
    return next(iter(bench.lane.wheel.records()))
