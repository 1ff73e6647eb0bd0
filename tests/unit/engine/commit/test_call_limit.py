"""How long a job of calls that wait for brokers may be silent."""

from concurrent.futures import Future
from typing import Any

import pytest

from sidecar.engine.commit.committer import BlockingCallThread
from sidecar.model.call_limit import GRACE_S, SHORT_GRACE_S, SILENT_MAX_S, CallLimit, within
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_time import FakeTime, VirtualClock


class SteppedTime(FakeTime):
    """Time that stands where it was set."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s


def test_a_job_of_many_calls_may_take_as_long_as_all_of_them() -> None:
    time, seen = SteppedTime(), []
    executor = StepExecutor()
    committer = BlockingCallThread(lambda: executor, time)
    committer.renew()

    def call(seconds: float) -> None:
        time.now_s += seconds
        seen.append(committer.late)

    def work() -> str:
        for _ in range(5):
            within(SILENT_MAX_S - 1, call)
        return "done"

    results: list[Any] = []
    committer.submit(work, results.append)
    executor.step()
    committer.take()
    assert seen == [False] * 5
    assert results == ["done"]


@pytest.mark.parametrize("grace_s", [GRACE_S, SHORT_GRACE_S])
@pytest.mark.parametrize("seconds", [1.0, 5.0, 60.0])
def test_a_call_that_does_not_keep_its_own_limit_is_found_out_shortly_after(seconds: float, grace_s: float) -> None:
    time = SteppedTime()
    executor = StepExecutor()
    committer = BlockingCallThread(lambda: executor, time)
    committer.renew()
    seen: list[bool] = []

    def call(argument: str, limit_s: float) -> None:
        assert (argument, limit_s) == ("offsets", seconds)
        for late_s in (0.0, seconds, seconds + grace_s, seconds + grace_s + 0.1):
            time.now_s = began_s + late_s
            seen.append(committer.late)

    committer.submit(lambda: within(seconds, call, "offsets", grace_s=grace_s), lambda _: None)
    time.now_s += SILENT_MAX_S - 1  # the thread had something else to do
    began_s = time.now_s
    executor.step()
    assert seen == [False, False, False, True]


def test_what_is_computed_between_two_calls_has_a_limit_too() -> None:
    time = SteppedTime()
    limit = CallLimit(time)
    seen = []

    def work() -> None:
        within(0.001, lambda _: None)
        time.now_s += SILENT_MAX_S
        seen.append(limit.passed)
        time.now_s += 0.1
        seen.append(limit.passed)

    limit.watch(work)
    assert seen == [False, True]


def test_a_job_that_was_left_behind_renews_nobody_else_s_limit() -> None:
    time = SteppedTime()
    former, fresh = CallLimit(time), CallLimit(time)

    def call(_: float) -> None:
        time.now_s += SILENT_MAX_S + 1

    former.watch(lambda: within(SILENT_MAX_S, call))
    assert not former.passed
    assert fresh.passed


def test_outside_of_a_job_it_is_the_call_alone() -> None:
    future: Future[float] = Future()
    within(0.5, future.set_result)
    assert future.result(0) == 0.5
    with pytest.raises(OSError, match="away"):
        within(0.5, refuse)


def refuse(seconds: float) -> None:
    raise OSError("away")
