"""Purgatory and timer under real threads, with every lock checked against Kafka's order."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from purgatory import locks
from purgatory.locks import Rank, monitor
from purgatory.operation.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.timer.reaper import SystemTimerReaper
from purgatory.timer.system_timer import SystemTimer
from purgatory.timer.timer import TimerTask
from purgatory.timer.timing_wheel import TimingWheel
from purgatory.versions import KafkaVersion
from tests.services.waiting import wait_until
from tests.unit.purgatory_tasks import Clock, Operation, Recorded

pytestmark = pytest.mark.slow

VERSIONS = pytest.mark.parametrize(
    "version", [KafkaVersion.V4_0, KafkaVersion.V4_1], ids=lambda version: f"{version.name}"
)


@pytest.fixture(autouse=True)
def _checked_locks_and_many_switches(monkeypatch):
    monkeypatch.setattr(locks, "checked", True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def in_threads(*functions):
    with ThreadPoolExecutor(len(functions)) as threads:
        done, pending = wait([threads.submit(function) for function in functions], timeout=240)
        assert not pending, "threads wait for each other"
        for future in done:
            future.result()


def test_locks_out_of_order_are_noticed():
    operation, shard, timer = (monitor(rank) for rank in (Rank.OPERATION, Rank.SHARD, Rank.TIMER))
    with operation, operation, shard, timer, operation:
        pass  # in order, or held already
    with shard, pytest.raises(AssertionError, match="OPERATION taken under SHARD"):
        operation.acquire()
    with operation, pytest.raises(AssertionError, match="OPERATION taken under OPERATION"):
        monitor(Rank.OPERATION).acquire()
    with timer, pytest.raises(AssertionError, match="TIMER taken under TIMER"):
        monitor(Rank.TIMER).acquire()
    with operation:
        pass  # nothing is left behind


@VERSIONS
def test_no_wake_up_is_lost_among_threads(version):
    """As Kafka's testTryCompleteWithMultipleThreads: many tries at once, the last of which could complete."""
    purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory("test", SystemTimer(Clock()))

    class Attempted(Operation):
        def __init__(self, number):
            super().__init__(version=version)
            self.number = number
            self.attempts = 0

        def try_complete(self):
            threading.Event().wait(random.random() / 1e4)  # others come in between
            return super().try_complete()

    operations = [Attempted(number) for number in range(100)]
    for operation in operations:
        assert not purgatory.try_complete_else_watch(operation, [operation.number])

    def attempt(operation):
        operation.attempts += 1
        if operation.attempts == 20:
            operation.completable = True
        purgatory.check_and_complete(operation.number)

    with ThreadPoolExecutor(20) as threads:
        done, pending = wait([threads.submit(attempt, one) for _ in range(20) for one in operations], timeout=240)
        assert not pending
    for future in done:
        future.result()
    assert [operation.completions for operation in operations] == [1] * 100
    assert (purgatory.num_delayed, purgatory.watched) == (0, 0)


@VERSIONS
def test_every_operation_completes_once_whoever_comes_first(version):
    """Events, expiry by the reaper, forced completion, and registration, all at once and on shared keys."""
    timer = SystemTimer()
    reaper = SystemTimerReaper("reaper-of-test", timer)
    purgatory: DelayedOperationPurgatory[Operation] = DelayedOperationPurgatory("test", timer, 20, version=version)
    reaper_of_purgatory = threading.Event()
    operations: list[Operation] = []
    chance = random.Random(7)
    plans = [(chance.randrange(5), chance.sample(range(8), 3), chance.random() < 0.5) for _ in range(600)]

    def register(plan):
        for delay_ms, keys, completable in plan:
            operation = Operation(delay_ms, version=version)
            operation.completable = completable and delay_ms > 2
            operations.append(operation)
            purgatory.try_complete_else_watch(operation, keys)

    def events():
        while not reaper_of_purgatory.is_set():
            for key in range(8):
                purgatory.check_and_complete(key)
            for operation in operations[-20:]:
                operation.completable = True

    def force():
        while not reaper_of_purgatory.is_set():
            for operation in operations[-3:]:
                operation.force_complete()

    def register_all():
        try:
            in_threads(*(lambda part=part: register(plans[part::3]) for part in range(3)))
        finally:
            reaper_of_purgatory.set()

    in_threads(register_all, events, force)
    for operation in operations:
        operation.completable = True
    for key in range(8):
        purgatory.check_and_complete(key)
    wait_until(lambda: purgatory.num_delayed == 0)  # an entry cancelled while it changes wheels goes when it is due
    reaper.close()
    assert len(operations) == len(plans)
    assert {operation.completions for operation in operations} == {1}
    assert {operation.expirations for operation in operations} <= {0, 1}
    assert (purgatory.num_delayed, purgatory.watched) == (0, 0)


def test_cancelling_during_a_flush_runs_nothing_and_the_size_comes_right():
    """The race of one coarse bucket's flush with cancels: an entry between two buckets, in none of them."""
    for seed in range(15):
        chance = random.Random(seed)
        clock = Clock()
        timer = SystemTimer(clock, wheel_size=3)
        ran: list[int] = []
        tasks = [Recorded(27 + chance.randrange(50), ran, number) for number in range(60)]
        for task in tasks:
            timer.add(task)
        cancelled_before_running: list[int] = []

        def cancel(tasks=tasks, cancelled=cancelled_before_running):
            for number, task in enumerate(tasks):
                if number % 2:
                    task.cancel()
                    cancelled.append(number)

        def flush(timer=timer):
            for now_ms in range(27):  # cascades, but nothing is due
                timer.advance_clock(now_ms)

        in_threads(cancel, flush)
        assert ran == []
        for now_ms in range(27, 100):
            timer.advance_clock(now_ms)
        assert sorted(ran) == [number for number in range(60) if not number % 2]
        assert timer.size() == 0


def test_a_task_cancelled_during_a_flush_waits_for_its_end_and_is_gone():
    """The cancel comes exactly when the flush has given up the coarse bucket, and before the finer one has the task."""
    timer = SystemTimer(Clock(), wheel_size=3)
    task = Recorded(8, [])
    timer.add(task)
    canceller = threading.Thread(target=task.cancel)

    class Raced(TimingWheel):
        __slots__ = ()  # the same layout, so that a wheel can become one

        def add(self, timer_task: TimerTask, expiration_ms: int) -> bool:
            if not canceller.ident:
                canceller.start()
            canceller.join(0.05)
            assert canceller.is_alive()  # it waits for the lock
            return super().add(timer_task, expiration_ms)

    timer._wheel.__class__ = Raced
    timer.advance_clock(6)
    timer._wheel.__class__ = TimingWheel
    canceller.join()
    assert (task.is_cancelled(), timer.size()) == (True, 0)
    timer.advance_clock(8)
    assert task.ran == []


def test_a_task_that_two_timers_take_at_the_same_moment_runs_once_and_leaves_no_count():
    one, other = SystemTimer(Clock()), SystemTimer(Clock())
    task = Recorded(8, [])

    class Raced(TimingWheel):
        __slots__ = ()

        def add(self, timer_task: TimerTask, expiration_ms: int) -> bool:
            thread = threading.Thread(target=other.add, args=(timer_task,))  # neither has seen that the other has it
            thread.start()
            thread.join()
            return super().add(timer_task, expiration_ms)

    one._wheel.__class__ = Raced
    one.add(task)
    one._wheel.__class__ = TimingWheel
    assert (one.size(), other.size()) == (1, 1)
    other.advance_clock(8)
    assert (task.ran, other.size()) == ([], 0)  # dropped unrun
    one.advance_clock(8)
    assert (task.ran, one.size()) == (["task"], 0)


def test_asking_for_the_next_time_and_advancing_do_not_meet():
    """A bucket that one thread has seen waiting must not be taken by the other before it is looked at."""
    timer = SystemTimer(Clock())
    timer.add(Recorded(5, []))
    threads: list[threading.Thread] = []

    class Raced(list):  # type: ignore[type-arg]
        def __bool__(self) -> bool:
            if not threads:
                threads.append(threading.Thread(target=timer.advance_clock, args=(10,)))
                threads[0].start()
                threads[0].join(0.05)  # it waits for the lock
                return True
            return len(self) > 0

    timer._queue._heap = Raced(timer._queue._heap)
    assert timer.next_expiration_ms() == 5
    threads[0].join()
    assert timer.next_expiration_ms() is None
