"""A recovery that waits says so, and goes on saying it; until nobody needs it."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.assignment import REMIND_MS, RETRY_MS, SWEEP_MS, Assignment
from sidecar.lane import Lane
from sidecar.ledger import CommitsHidden, LedgerUnavailable
from sidecar.record import LaneId
from sidecar.recovery_reader import RecoveryJob

START_MS = 1_000_000
LANE = LaneId("source", 0)


def failing(lanes: set[LaneId], now_ms: int) -> RecoveryJob:
    """A recovery to which nobody answers."""
    future: Future[list[Lane]] = Future()
    future.set_exception(LedgerUnavailable("no answer"))
    return RecoveryJob(set(lanes), now_ms, future)


@pytest.fixture
def assignment() -> Assignment:
    """With one partition, whose recovery fails each time."""
    settlement, recovery = Mock(broken=False, ready=True), Mock(submit=failing)
    assignment = Assignment(Mock(), Mock(), settlement, (Mock(), recovery), lambda: START_MS)
    assignment.assigned([LANE])
    return assignment


def test_a_recovery_that_waits_is_told_once_a_minute(assignment: Assignment, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for now_ms in range(START_MS, START_MS + 2 * REMIND_MS + 1, RETRY_MS):
            assignment.step(now_ms)
    told: list[Any] = [record for record in caplog.records if record.message == "recovery waits"]
    assert [record.waited_s for record in told] == [0, REMIND_MS // 1_000, 2 * REMIND_MS // 1_000]
    assert assignment.problem == "no answer"


@pytest.mark.parametrize("leave", [Assignment.revoked, Assignment.lost])
def test_a_recovery_that_nobody_needs_any_more_is_no_problem(
    assignment: Assignment, leave: Callable[[Assignment, list[LaneId]], None]
) -> None:
    assignment.step(START_MS)
    assert assignment.problem
    leave(assignment, [LANE])
    assignment.step(START_MS + RETRY_MS)
    assert (assignment.problem, assignment.recovering) == ("", 0)


def swept(assignment: Assignment, problem: Exception, until_ms: int) -> list[int]:
    """When producers were made anew while the recovery failed of this."""
    times: list[int] = []

    def failing_so(lanes: set[LaneId], now_ms: int) -> RecoveryJob:
        job = failing(lanes, now_ms)
        job.future = Future()
        job.future.set_exception(problem)
        return job

    recovery: Any = assignment._recovery
    settlement: Any = assignment._settlement
    recovery.submit = failing_so
    for now_ms in range(START_MS, until_ms, RETRY_MS):
        settlement.sweep = lambda now_ms=now_ms: times.append(now_ms - START_MS)
        assignment.step(now_ms)
    return times


def test_what_hides_commits_for_long_is_ended_again_and_again(assignment: Assignment) -> None:
    assert swept(assignment, CommitsHidden("hidden"), START_MS + 3 * SWEEP_MS) == [SWEEP_MS, 2 * SWEEP_MS]


def test_it_is_not_where_something_else_is_waited_for(assignment: Assignment) -> None:
    assert swept(assignment, LedgerUnavailable("no answer"), START_MS + 3 * SWEEP_MS) == []


def test_where_there_are_lanes_their_next_transaction_ends_it(assignment: Assignment) -> None:
    lane = assignment.lanes["other", 0] = Mock(uncommitted=False)
    assert swept(assignment, CommitsHidden("hidden"), START_MS + SWEEP_MS) == []
    assert not lane.uncommitted
    assert swept(assignment, CommitsHidden("hidden"), START_MS + 3 * SWEEP_MS) == []
    assert lane.uncommitted
