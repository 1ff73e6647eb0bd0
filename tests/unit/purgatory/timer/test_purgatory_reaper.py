"""Drivers of timers: the reaper's thread and the driver in an event loop, on the real clock."""

import asyncio
import logging
import threading
from functools import partial

import pytest

from purgatory.operation.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.timer import reaper as reaper_module
from purgatory.timer.clock import hi_res_clock_ms
from purgatory.timer.reaper import WORK_TIMEOUT_MS, SystemTimerReaper, TimerDriver
from purgatory.timer.system_timer import SystemTimer
from tests.unit.purgatory_tasks import Clock, Hook, Operation

WAIT_S = 60.0
TRIES = 5  # a busy machine is late by itself, but not each time


@pytest.fixture
def reaper():
    reaper = SystemTimerReaper("reaper-of-test", SystemTimer())
    yield reaper
    reaper.close()


def test_tasks_run_without_anybody_advancing_the_clock(reaper):
    finished = threading.Event()
    late_ms: dict[float, float] = {}  # by due time

    def ran(due_ms: float) -> None:
        late_ms[due_ms] = hi_res_clock_ms() - due_ms
        if len(late_ms) == 3:
            finished.set()

    for delay_ms in (30, 20, 10):
        reaper.add(Hook(delay_ms, partial(ran, hi_res_clock_ms() + delay_ms)))
    assert finished.wait(WAIT_S)
    assert list(late_ms) == sorted(late_ms)
    assert all(late > -2 for late in late_ms.values())  # the clock's millisecond and the tick's
    assert reaper.size() == 0


def test_an_earlier_task_wakes_the_thread(monkeypatch):
    """Not by polling: with nothing to do the thread sleeps far longer than this test waits."""
    monkeypatch.setattr(reaper_module, "WORK_TIMEOUT_MS", 100_000)
    asleep = threading.Event()

    class Watched(SystemTimer):
        def next_expiration_ms(self):
            asleep.set()
            return super().next_expiration_ms()

    reaper = SystemTimerReaper("reaper-of-test", Watched())
    assert asleep.wait(WAIT_S)
    ran = threading.Event()
    started_ms = hi_res_clock_ms()
    reaper.add(Hook(5, ran.set))
    assert ran.wait(WAIT_S)
    assert hi_res_clock_ms() - started_ms >= 4
    reaper.close()


@pytest.mark.parametrize("round_up", [False, True])
def test_lateness_in_a_thread_is_of_the_order_of_kafkas(round_up):
    """Kafka's, measured, with tick 1: earliest -0.97 ms, half of them within 0.6 ms, the rest as the machine allows.
    A timer that polled every 200 ms would be 75 ms late half of the time, and more."""
    medians_ms = []
    for _ in range(TRIES):
        late_ms = sorted(latenesses_ms(round_up))
        # The due time is read a moment before the timer reads its clock.
        assert late_ms[0] >= (0 if round_up else -2)
        medians_ms.append(late_ms[len(late_ms) // 2])
        if medians_ms[-1] < 50:
            return
    pytest.fail(f"half of them are late by {medians_ms} ms")


def latenesses_ms(round_up: bool) -> list[float]:
    """Of 400 tasks within 150 ms."""
    reaper = SystemTimerReaper("reaper-of-test", SystemTimer(round_up=round_up))
    late_ms: list[float] = []
    finished = threading.Event()
    count = 400

    def ran(due_ms: float) -> None:
        late_ms.append(hi_res_clock_ms() - due_ms)
        if len(late_ms) == count:
            finished.set()

    for number in range(count):
        delay_ms = 1 + number * 7 % 150
        reaper.add(Hook(delay_ms, partial(ran, hi_res_clock_ms() + delay_ms)))
    assert finished.wait(WAIT_S)
    reaper.close()
    return late_ms


def test_closing_closes_the_timer_once_and_ends_the_thread():
    class Counted(SystemTimer):
        closed = 0

        def close(self):
            self.closed += 1

        def listen(self, wake):
            """Closing must not depend on being woken by the timer."""

    timer = Counted()
    reaper = SystemTimerReaper("reaper-of-test", timer)
    reaper.close()
    reaper.close()
    assert timer.closed == 1
    assert not reaper.thread.is_alive()


def test_an_error_of_a_task_is_logged_and_the_thread_goes_on(reaper, caplog):
    def fail():
        raise RuntimeError("the task's own")

    ran = threading.Event()
    with caplog.at_level(logging.ERROR):
        reaper.add(Hook(1, fail))
        reaper.add(Hook(2, ran.set))
        assert ran.wait(WAIT_S)
    assert [entry.message for entry in caplog.records] == ["a timer task failed"]


class Loop:
    """An event loop that only notes what it is asked for."""

    def __init__(self):
        self.calls = []

    def call_later(self, seconds, function):
        call = Call(seconds, function)
        self.calls.append(call)
        return call

    @property
    def pending(self):
        return [call.seconds for call in self.calls if not call.cancelled]


class Call:
    def __init__(self, seconds, function):
        self.seconds, self.function, self.cancelled = seconds, function, False

    def cancel(self):
        self.cancelled = True


def test_a_driver_asks_for_the_earliest_time_of_all_it_drives():
    clock, loop = Clock(), Loop()
    driver = TimerDriver(loop.call_later, clock)
    timers = [SystemTimer(clock), SystemTimer(clock)]
    for timer in timers:
        driver.drive(timer)
    assert loop.pending == [WORK_TIMEOUT_MS / 1000]
    ran = []
    timers[0].add(Hook(15, lambda: ran.append(15)))
    assert loop.pending == [0.015]
    timers[1].add(Hook(12, lambda: ran.append(12)))
    assert loop.pending == [0.012]
    timers[1].add(Hook(19, lambda: ran.append(19)))
    assert loop.pending == [0.012]
    assert len(loop.calls) == 3  # the later one asked for nothing
    clock.now_ms = 12
    driver.step()
    assert (ran, loop.pending) == ([12], [0.003])
    clock.now_ms = 15
    driver.step()
    assert (ran, loop.pending) == ([12, 15], [0.004])
    driver.stop()
    driver.stop()
    assert loop.pending == []


def test_a_driver_whose_task_fails_has_arranged_the_next_step():
    def fail():
        raise RuntimeError("the task's own")

    clock, loop = Clock(), Loop()
    driver = TimerDriver(loop.call_later, clock)
    timer = SystemTimer(clock)
    driver.drive(timer)
    timer.add(Hook(1, fail))
    clock.now_ms = 1
    with pytest.raises(RuntimeError, match="the task's own"):
        driver.step()
    assert loop.pending == [WORK_TIMEOUT_MS / 1000]


def test_operations_expire_in_an_event_loop_and_completed_ones_are_purged():
    async def drive() -> tuple[float, bool]:
        loop = asyncio.get_running_loop()
        driver = TimerDriver(loop.call_later)
        purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory("test", SystemTimer(), 10)
        driver.drive(purgatory)
        expired: asyncio.Future[float] = loop.create_future()

        class Expiring(Operation):
            def on_expiration(self):
                expired.set_result(hi_res_clock_ms())

        started_ms = hi_res_clock_ms()
        purgatory.try_complete_else_watch(Expiring(20), ["key"])
        for _ in range(11):
            operation = Operation()
            purgatory.try_complete_else_watch(operation, ["cold"])
            operation.force_complete()
        elapsed_ms = await asyncio.wait_for(expired, WAIT_S) - started_ms
        purged = purgatory.watched <= 1  # of 12
        driver.stop()
        return elapsed_ms, purged

    elapsed_ms, purged = asyncio.run(drive())
    assert elapsed_ms >= 18  # 20, less the clock's millisecond and the tick's
    assert purged
