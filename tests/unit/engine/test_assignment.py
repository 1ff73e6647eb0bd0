"""A recovery that waits says so, and goes on saying it; until nobody needs it."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.engine.assignment import REMIND_MS, RETRY_MS, SWEEP_MS, Assignment
from sidecar.engine.counters import EngineCounters
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import NOWHERE, OffsetMap, PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.engine.recovery_reader import RecoveryJob
from sidecar.engine.source_cuts import SourceChangedError
from sidecar.engine.source_rights import ASK_MS, SURE_MS, SourceUnreadable
from sidecar.ledger.topic import CommitsHidden, LedgerUnavailable
from sidecar.model.log_cuts import NO_CUTS, ReadMark
from sidecar.model.record import TopicPartition

START_MS = 1_000_000
LANE = TopicPartition("source", 0)


class Unanswered:
    """Recoveries that fail each time, of the same."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked: list[set[TopicPartition]] = []

    def submit(self, lanes: set[TopicPartition], now_ms: int) -> RecoveryJob:
        job = RecoveryJob(set(lanes), now_ms, Future())
        self.again(job, now_ms)
        return job

    def again(self, job: RecoveryJob, _: int) -> None:
        self.asked.append(set(job.lanes))
        job.retry_at_ms = -1
        job.future = Future()
        job.future.set_exception(self.error)


@pytest.fixture
def assignment() -> Assignment:
    """With one partition, whose recovery fails each time."""
    settlement: Any = Mock(must_start_over=False, ready=True)
    recovery: Any = Unanswered(LedgerUnavailable("no answer"))
    assignment = Assignment(Mock(), Mock(), settlement, (Mock(), recovery), lambda: START_MS, EngineCounters())
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
    assignment: Assignment, leave: Callable[[Assignment, list[TopicPartition]], None]
) -> None:
    assignment.step(START_MS)
    assert assignment.problem
    leave(assignment, [LANE])
    assignment.step(START_MS + RETRY_MS)
    assert (assignment.problem, assignment.recovering) == ("", 0)


@pytest.mark.parametrize("leave", [Assignment.revoked, Assignment.lost])
def test_a_partition_of_a_source_that_may_not_be_consumed_waits_until_it_may_or_is_gone(
    assignment: Assignment, leave: Callable[[Assignment, list[TopicPartition]], None]
) -> None:
    recovery: Any = assignment._recovery
    begun, late, gone = LANE, TopicPartition("source", 1), TopicPartition("source", 2)
    assignment.step(START_MS)
    assignment.refuse(frozenset({"source"}))
    assignment.assigned([late, gone, TopicPartition("other", 0)])
    leave(assignment, [gone])
    assignment.step(START_MS + 1)
    assert recovery.asked == [{begun}, {TopicPartition("other", 0)}], "what was begun goes on"
    assert assignment.turned_away == 1
    assignment.refuse(frozenset())
    assignment.step(START_MS + 2)
    assert recovery.asked[-1] == {late}
    assert assignment.turned_away == 0


def swept(assignment: Assignment, problem: Exception, until_ms: int) -> list[int]:
    """When producers were made anew while the recovery failed of this."""
    times: list[int] = []

    recovery: Any = assignment._recovery
    settlement: Any = assignment._settlement
    recovery.error = problem
    for now_ms in range(START_MS, until_ms, RETRY_MS):
        settlement.sweep = lambda lanes, now_ms=now_ms: times.append(now_ms - START_MS)
        assignment.step(now_ms)
    return times


def test_what_hides_commits_for_long_is_ended_again_and_again(assignment: Assignment) -> None:
    assert swept(assignment, CommitsHidden("hidden"), START_MS + 3 * SWEEP_MS) == [SWEEP_MS, 2 * SWEEP_MS]


def test_it_is_not_where_something_else_is_waited_for(assignment: Assignment) -> None:
    assert swept(assignment, LedgerUnavailable("no answer"), START_MS + 3 * SWEEP_MS) == []


def test_a_partition_without_a_leader_is_no_reason(assignment: Assignment) -> None:
    recovery: Any = assignment._recovery

    def leave_out(job: RecoveryJob, _: int) -> None:
        job.retry_at_ms = -1
        job.future = Future()
        job.future.set_result([])

    recovery.again = leave_out
    assert swept(assignment, LedgerUnavailable("once"), START_MS + 3 * SWEEP_MS) == []
    assert assignment.problem == f"where {LANE} begins isn't known yet"


def test_partitions_that_are_known_begin_while_others_are_waited_for(assignment: Assignment) -> None:
    known, later = (
        Mock(id=TopicPartition("source", n), offsets=OffsetMap(at), cuts=NO_CUTS) for n, at in ((1, 7), (2, 9))
    )
    recovery: Any = assignment._recovery
    intake: Any = assignment._intake
    assignment.step(START_MS)
    assignment.assigned([known.id])
    assignment.step(START_MS + 1)
    one, other = assignment._jobs
    assert (one.lanes, other.lanes) == ({LANE}, {known.id})
    other.lanes.add(later.id)
    other.future = Future()
    other.future.set_result([known])
    assignment.step(START_MS + 2)
    assert list(assignment.lanes) == [known.id]
    intake.begin.assert_called_once_with({known.id: 7})
    assert recovery.asked[-1] == {later.id}, "some are known: the others are asked for at once"
    other.future = Future()
    other.future.set_result([])
    assignment.step(START_MS + 3)
    assert (assignment.recovering, assignment.problem, other.problem) == (
        2,
        "no answer",
        "where source/2 begins isn't known yet",
    )
    assignment.step(START_MS + 3 + RETRY_MS)
    assert recovery.asked[-2:] == [{LANE}, {later.id}]
    other.future = Future()
    other.future.set_result([later])
    assignment.step(START_MS + 4 + RETRY_MS)
    assert list(assignment.lanes) == [known.id, later.id]
    assert assignment._jobs == [one]


class Rights:
    """Answers about the right to read a source, one after the other; the last one stays."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def may_read(self, topic: str) -> Future[bool]:
        self.asked.append(topic)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        future: Future[bool] = Future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future


WORDS = "Fetch from broker 1 failed: Broker: Topic authorization failed"
AWAY = LedgerUnavailable("no answer")


def refused(rights: Any) -> Assignment:
    """Of a source that was read, the brokers say that it may not be."""
    settlement: Any = Mock(must_start_over=False, ready=True)
    assignment = Assignment(Mock(), Mock(), settlement, (Mock(), rights), lambda: START_MS, EngineCounters())
    assignment.unreadable(LANE.topic, WORDS)  # nothing was read of it: others go on
    assignment._counters.accepted[LANE.topic] += 1
    assignment.lost([LANE])  # the client may take its partitions for gone first
    assignment.unreadable("other", WORDS)
    assignment.unreadable(LANE.topic, WORDS)
    return assignment


def end_of(assignment: Assignment, seconds: int = 20) -> tuple[int, str]:
    """Milliseconds from the refusal to the end, and why; -1 and "" where there is none in this time."""
    for now_ms in range(START_MS, START_MS + seconds * 1_000, 100):
        try:
            assignment.step(now_ms)
        except SourceUnreadable as error:
            return now_ms - START_MS, str(error)
    return -1, ""


def test_a_source_that_was_read_and_may_not_be_read_any_more_ends_the_process_once_that_is_certain() -> None:
    rights = Rights(False)
    after_ms, words = end_of(refused(rights))
    assert SURE_MS <= after_ms <= SURE_MS + 2 * ASK_MS
    assert words == f"no right to read a source: {WORDS}; `tickover doctor` says more"
    assert set(rights.asked) == {LANE.topic}


@pytest.mark.parametrize("answers", [(True,), (False, True), (AWAY, False, False, True)], ids=len)
def test_a_refusal_that_passes_ends_nobody_and_is_forgotten(answers: tuple[Any, ...]) -> None:
    rights = Rights(*answers)
    assignment = refused(rights)
    assert end_of(assignment) == (-1, "")
    asked = len(rights.asked)
    assignment.step(START_MS + 60_000)
    assert len(rights.asked) == asked < 20


def test_one_permission_between_refusals_proves_nothing() -> None:
    after_ms, _ = end_of(refused(Rights(False, True, False)))
    assert after_ms >= SURE_MS + ASK_MS


def test_brokers_that_do_not_answer_prove_nothing() -> None:
    rights = Rights(AWAY)
    assert end_of(refused(rights)) == (-1, "")
    assert len(rights.asked) > 20, "it is asked on"


class Looks:
    """Looks at a log, each of which comes to what it is told."""

    def __init__(self) -> None:
        self.under_way: list[Future[int | None]] = []

    def look_at(self, lane: SourcePartition) -> Future[int | None]:
        self.under_way.append(Future())
        return self.under_way[-1]


@pytest.fixture
def reading() -> tuple[Assignment, SourcePartition, Looks]:
    """One lane that was read up to 100, with one record in the wheel."""
    looks: Any = Looks()
    settlement: Any = Mock(must_start_over=False, ready=True)
    assignment = Assignment(Mock(), Mock(), settlement, (Mock(), looks), lambda: START_MS, EngineCounters())
    lane = SourcePartition(LANE, Wheel(START_MS, 1), PromotionWindows(NOWHERE))
    assert lane.offsets.append_run(list(range(100)))
    lane.note_read(ReadMark(99, 1, START_MS))
    lane.offsets.done[:] = b"\x01" * 95 + b"\x00" + b"\x01" * 4
    lane.advance_low()
    assignment.lanes[LANE] = lane
    return assignment, lane, looks


def test_a_log_that_is_cut_back_while_it_is_read_is_read_on_and_what_is_held_stays(
    reading: tuple[Assignment, SourcePartition, Looks],
) -> None:
    assignment, lane, looks = reading
    intake: Any = assignment._intake
    assignment.out_of_range(LANE)
    assignment.out_of_range(LANE)
    intake.pause.assert_called_once_with([LANE])
    assert looks.under_way == [], "what was given out before is accepted first"
    assignment.step(START_MS)
    assignment.hold_back(lane, False)
    intake.begin.assert_not_called()
    looks.under_way[0].set_exception(LedgerUnavailable("no leader"))
    for now_ms in (START_MS, START_MS + RETRY_MS):
        assignment.step(now_ms)
    looks.under_way[1].set_result(90)
    assignment.step(START_MS + RETRY_MS)
    intake.begin.assert_called_once_with({LANE: 90})
    intake.resume.assert_called_once_with([LANE])
    assert lane.accept(lane.cuts.lane_offset(90)), "it is a new one"
    assert (lane.offsets.low, lane.offsets.is_open(95), lane.offsets.next) == (95, True, 101)
    assert (lane.touched, lane.uncommitted, lane.read_marks) == (True, True, ())


def test_a_log_that_was_not_cut_is_read_on_where_it_was(reading: tuple[Assignment, SourcePartition, Looks]) -> None:
    assignment, lane, looks = reading
    intake: Any = assignment._intake
    assignment.out_of_range(LANE)
    assignment.step(START_MS)
    looks.under_way[0].set_result(None)
    assignment.step(START_MS)
    intake.begin.assert_called_once_with({LANE: 100})
    assert not lane.cuts


def test_a_topic_that_is_another_one_ends_the_process(reading: tuple[Assignment, SourcePartition, Looks]) -> None:
    assignment, _, looks = reading
    assignment.out_of_range(LANE)
    assignment.step(START_MS)
    looks.under_way[0].set_exception(SourceChangedError("deleted and created again"))
    with pytest.raises(SourceChangedError):
        assignment.step(START_MS)


def test_of_a_partition_that_is_gone_meanwhile_nothing_is_read_on(
    reading: tuple[Assignment, SourcePartition, Looks],
) -> None:
    assignment, _, looks = reading
    intake: Any = assignment._intake
    assignment.out_of_range(LANE)
    assignment.step(START_MS)
    assignment.lost([LANE])
    assignment.out_of_range(LANE)
    looks.under_way[0].set_result(90)
    assignment.step(START_MS)
    intake.begin.assert_not_called()
