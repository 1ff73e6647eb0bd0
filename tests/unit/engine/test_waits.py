"""Waits by the engine's time. One that is set back by an hour makes none of them an hour long."""

from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.assignment import DRAIN_S, Assignment
from sidecar.engine.counters import EngineCounters
from sidecar.engine.emission.target_health import SUSPENDED_MAX_MS
from sidecar.engine.storage.overflow_worker import RETRY_MAX_MS
from sidecar.ledger.topic import LedgerUnavailable
from sidecar.model.ports import NO_ANSWER, is_over
from sidecar.model.record import TargetPartition
from sidecar.overflow.interface import OverflowUnavailable
from tests.simulation.replica import LEDGER
from tests.unit.engine.emission.test_circuit_breaker import broken
from tests.unit.engine.emission.test_targets import LANE as OF_RECORDS
from tests.unit.engine.emission.test_targets import NOW_MS, Cluster, held
from tests.unit.engine.test_assignment import LANE, START_MS, Unanswered
from tests.unit.engine.test_clock_set_back import set_back
from tests.unit.engine_bench import Bench

HOUR_MS = 3_600_000


@given(st.integers(0, 1 << 40), st.integers(1, 100_000), st.integers(-HOUR_MS, HOUR_MS))
def test_a_wait_ends_in_its_time_unless_the_clock_is_set_back_far(
    began_ms: int, longest_ms: int, passed_ms: int
) -> None:
    over = is_over(began_ms + passed_ms, began_ms + longest_ms, longest_ms)
    assert over == (passed_ms >= longest_ms or passed_ms < -longest_ms)


def test_what_the_cluster_has_said_is_not_believed_for_longer() -> None:
    cluster = Cluster()
    cluster.targets.wait(OF_RECORDS, held(1))
    cluster.settle(NOW_MS + HOUR_MS)
    assert cluster.targets.absent("mail", NOW_MS + HOUR_MS)
    assert not cluster.targets.absent("mail", NOW_MS)
    cluster.topics["mail"] = 1
    cluster.targets.wait(OF_RECORDS, held(2))
    assert cluster.settle(NOW_MS) == [2]
    asked = held(3)._replace(target_partition=1)
    cluster.targets._counted_ms["mail"] = NOW_MS + HOUR_MS
    assert cluster.targets.count_for(asked, NOW_MS + HOUR_MS) == 1
    assert cluster.targets.count_for(asked, NOW_MS) is None, "it may have been added to"


def test_a_cluster_that_did_not_answer_is_asked_again() -> None:
    cluster = Cluster()
    cluster.topics["mail"] = NO_ANSWER
    cluster.targets.wait(OF_RECORDS, held(1))
    assert cluster.settle(NOW_MS + HOUR_MS) == []
    cluster.topics["mail"] = 1
    assert cluster.settle(NOW_MS) == [1]


@pytest.mark.parametrize("tried", [False, True])
def test_a_target_that_did_not_acknowledge_is_tried(tried: bool) -> None:
    cluster, place = Cluster(), TargetPartition("mail", 0)
    cluster.targets.partitions["mail"] = 1
    cluster.targets.step(NOW_MS + HOUR_MS)
    cluster.targets.suspend("mail", {0})
    cluster.targets.holds_up(place, OF_RECORDS, held(1))
    cluster.targets.holds_up(place, OF_RECORDS, held(2))
    if tried:
        assert cluster.settle(NOW_MS + HOUR_MS + SUSPENDED_MAX_MS) == [1]
    assert cluster.settle(NOW_MS) == ([2] if tried else [1])


def test_one_that_will_say_when_it_is_back_is_not_tried() -> None:
    cluster, place = Cluster(), TargetPartition("mail", 0)
    cluster.targets.await_answers({place})
    cluster.targets.holds_up(place, OF_RECORDS, held(1))
    assert cluster.settle(NOW_MS) == []


def test_what_is_not_due_after_all_is_no_trial_and_keeps_none_waiting() -> None:
    cluster, place = Cluster(), TargetPartition("mail", 0)
    cluster.targets.partitions["mail"] = 1
    cluster.targets.step(NOW_MS)
    cluster.targets.suspend("mail", {0})
    for offset in range(3):
        cluster.targets.holds_up(place, OF_RECORDS, held(offset)._replace(due_ms=NOW_MS + HOUR_MS))
    cluster.targets.holds_up(place, OF_RECORDS, held(3))
    assert cluster.settle(NOW_MS + 5_000) == [0, 1, 2]
    assert cluster.settle(NOW_MS + 5_001) == [3]


def test_a_breaker_lets_its_probes_through() -> None:
    breaker = broken(NOW_MS + HOUR_MS)
    assert breaker.allowed(NOW_MS) == breaker.rule.probes
    breaker.emitted(breaker.rule.probes, NOW_MS + HOUR_MS)
    few = breaker.allowed(NOW_MS)
    assert few > 0, "they have stayed away: it ramps up"
    breaker.emitted(few, NOW_MS)
    assert breaker.allowed(NOW_MS - HOUR_MS) > 0


def test_redis_is_asked_again() -> None:
    bench = Bench()
    bench.overflow.failing = lambda method, after: (_ for _ in ()).throw(OverflowUnavailable("down"))
    bench.send(b"far", HOUR_MS)
    bench.run(2_000)
    assert bench.replica.worker.problem
    set_back(bench, HOUR_MS)
    bench.overflow.failing = lambda method, after: None
    bench.run(2 * RETRY_MAX_MS)
    assert bench.lane.overflow_held == 1
    assert not bench.replica.worker.problem


def test_a_recovery_is_tried_again() -> None:
    settlement: Any = Mock(must_start_over=False, ready=True)
    recovery: Any = Unanswered(LedgerUnavailable("no answer"))
    assignment = Assignment(Mock(), Mock(), settlement, (Mock(), recovery), lambda: START_MS, EngineCounters())
    assignment.assigned([LANE])
    assignment.step(START_MS + HOUR_MS)
    assignment.step(START_MS)
    assert len(recovery.asked) == 2


def test_a_partition_that_is_let_go_of_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(trouble=str)
    bench.broker.short = {LEDGER.name}
    bench.send(b"v", 0)
    bench.run(100)
    monkeypatch.setattr(bench.replica.assignment, "_clock", lambda: bench.clock.now_ms - HOUR_MS)
    began_ms = bench.clock.now_ms
    bench.replica.stop()
    assert bench.clock.now_ms - began_ms <= DRAIN_S * 1_000 + 100
