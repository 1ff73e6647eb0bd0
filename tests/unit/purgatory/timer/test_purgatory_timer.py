"""Timer tasks, buckets, wheel, timer: what Kafka's TimerTaskListTest, TimingWheelTest, TimerTest ask, and more."""

import math
from collections import Counter

import pytest

from purgatory.timer.system_timer import BucketQueue, SystemTimer
from purgatory.timer.timer import DELAY_MS_MAX, NOT_QUEUED, TaskCounter, TimerTask, TimerTaskList
from purgatory.timer.timing_wheel import TimingWheel
from tests.unit.purgatory_tasks import Clock, Hook, Recorded, tasks_of


def sizes(*buckets: TimerTaskList) -> list[int]:
    return [len(tasks_of(bucket)) for bucket in buckets]


def test_the_counter_follows_what_comes_into_lists_and_leaves_them() -> None:
    counter = TaskCounter()
    one, two, three = (TimerTaskList(counter) for _ in range(3))
    tasks = [Recorded(0, []) for _ in range(10)]
    for number, task in enumerate(tasks, 1):
        one.add(task, 10, 10)
        assert counter.value == number
    for number, task in enumerate(tasks):
        task.cancel()
        (two if number < 4 else three).add(task, 10, 10)
        assert counter.value == 10
    assert sizes(one, two, three) == [0, 4, 6]
    for task in tasks[:4]:
        task.cancel()
    assert (sizes(one, two, three), counter.value) == ([0, 0, 6], 6)
    for task in tasks[4:]:
        one.remove(task)  # not its list any more
        assert not task.is_cancelled()
        task.cancel()
    assert (sizes(three), counter.value) == ([0], 0)


def test_a_task_that_is_moved_while_it_leaves_leaves_the_other_list_too() -> None:
    """A flush takes it along between the look at its list and the list's own look."""
    counter = TaskCounter()
    finer = TimerTaskList(counter)

    class Flushed(TimerTaskList):
        def remove(self, timer_task: TimerTask) -> None:
            for task, expiration_ms in self.flush():
                finer.add(task, expiration_ms, 10)
            super().remove(timer_task)

    coarse = Flushed(counter)
    task = Recorded(0, [])
    coarse.add(task, 10, 10)
    task.cancel()
    assert (sizes(coarse, finer), counter.value, task.is_cancelled()) == ([0, 0], 0, True)


def test_a_list_keeps_the_order_and_says_once_that_it_has_a_new_time() -> None:
    bucket = TimerTaskList(TaskCounter())
    assert bucket.expiration_ms == NOT_QUEUED
    ran: list[int] = []
    tasks = [Recorded(0, ran, number) for number in range(5)]
    told = [bucket.add(task, 6, due_ms) for task, due_ms in zip(tasks, (5, 5, 5, 6, 6), strict=True)]
    assert told == [True, False, False, True, False]
    taken = list(bucket.flush())
    assert taken == [(task, 6) for task in tasks]
    assert (sizes(bucket), bucket.expiration_ms) == ([0], NOT_QUEUED)
    assert bucket.add(tasks[0], 6, 6)  # free again after the flush


def test_a_task_is_cancelled_when_it_has_no_list() -> None:
    clock = Clock()
    timer = SystemTimer(clock)
    task = Recorded(5, [])
    assert task.is_cancelled()  # not added yet
    timer.add(task)
    assert not task.is_cancelled()
    timer.advance_clock(5)
    assert task.ran == ["task"]
    assert not task.is_cancelled()  # an expired task keeps a list
    task.cancel()
    task.cancel()
    assert task.is_cancelled()


class Wheel:
    """A wheel that starts at 1000 with tick 10 and five buckets, as Kafka's tests have it."""

    def __init__(self) -> None:
        self.queue = BucketQueue()
        self.counter = TaskCounter()
        self.wheel = TimingWheel(10, 5, 1000, self.counter, self.queue.offer)

    def add(self, expiration_ms: int) -> bool:
        return self.wheel.add(Recorded(0, []), expiration_ms)


def test_a_task_in_the_future_is_filed() -> None:
    world = Wheel()
    assert world.add(1020)
    assert (len(world.queue), world.counter.value) == (1, 1)


@pytest.mark.parametrize("expiration_ms", [999, 1000, 1005, 1009])
def test_a_task_before_the_next_tick_is_refused(expiration_ms: int) -> None:
    world = Wheel()
    assert not world.add(expiration_ms)
    assert (len(world.queue), world.counter.value) == (0, 0)


def test_a_task_of_one_timer_is_moved_to_another() -> None:
    one, other = SystemTimer(Clock()), SystemTimer(Clock())
    task = Recorded(20, [])
    one.add(task)
    other.add(task)
    assert (one.size(), other.size()) == (0, 1)
    one.advance_clock(20)
    assert task.ran == []
    other.advance_clock(20)
    assert task.ran == ["task"]


def test_a_task_that_cancels_itself_or_a_later_one_while_it_runs_leaves_the_size_right() -> None:
    timer = SystemTimer(Clock())
    ran: list[object] = []
    first = Hook(5, lambda: (first.cancel(), later.cancel()))
    later = Recorded(30, ran)
    timer.add(first)
    timer.add(later)
    timer.add(Recorded(30, ran, "other"))
    timer.advance_clock(5)
    assert (first.is_cancelled(), later.is_cancelled(), timer.size()) == (True, True, 1)
    timer.advance_clock(30)
    assert (ran, timer.size()) == (["other"], 0)


@pytest.mark.parametrize(("time_ms", "clock_ms"), [(1005, 1000), (1009, 1000), (1010, 1010), (1019, 1010)])
def test_the_clock_moves_by_whole_ticks(time_ms: int, clock_ms: int) -> None:
    world = Wheel()
    world.wheel.advance_clock(time_ms)
    assert world.wheel.current_time_ms == clock_ms


def test_the_overflow_wheel_is_made_once_when_it_is_needed() -> None:
    world = Wheel()
    assert world.add(1049)
    assert [world.wheel.overflow_wheel] == [None]
    assert world.add(1050)
    overflow = world.wheel.overflow_wheel
    assert overflow is not None
    assert world.add(1060)
    assert (overflow.tick_ms, overflow.wheel_size, overflow.current_time_ms) == (50, 5, 1000)
    assert world.add(1061)
    assert world.wheel.overflow_wheel is overflow
    world.wheel.advance_clock(1060)
    assert (world.wheel.current_time_ms, overflow.current_time_ms) == (1060, 1050)


LEVELS_END_MS = [20 * 20**level for level in range(7)]  # 20 ms, 400 ms, 8 s, 160 s, 53 min, 17.8 h, 14.8 d


@pytest.mark.parametrize(
    ("delay_ms", "levels"),
    [
        *((end_ms - 1, level) for level, end_ms in enumerate(LEVELS_END_MS, 1)),
        *((end_ms, level + 1) for level, end_ms in enumerate(LEVELS_END_MS, 1)),
    ],
)
def test_with_kafkas_tick_and_size_a_delay_takes_so_many_levels(delay_ms: int, levels: int) -> None:
    timer = SystemTimer(Clock())
    timer.add(Recorded(delay_ms, []))
    found, wheel = 1, timer._wheel
    while (above := wheel.overflow_wheel) is not None:
        found, wheel = found + 1, above
    assert found == levels


def test_a_bucket_is_queued_once_until_it_is_flushed() -> None:
    world = Wheel()
    assert all(world.add(1020) for _ in range(3))
    assert len(world.queue) == 1
    assert world.add(1030)
    assert len(world.queue) == 2


@pytest.mark.parametrize(("tick_ms", "wheel_size"), [(0, 20), (1, 1), (-1, 20)])
def test_a_wheel_that_could_not_turn_is_refused(tick_ms: int, wheel_size: int) -> None:
    with pytest.raises(ValueError, match="a wheel of"):
        SystemTimer(Clock(), tick_ms, wheel_size)


def test_tasks_that_are_overdue_when_added_run_once() -> None:
    timer = SystemTimer(Clock(), wheel_size=3)
    ran: list[int] = []
    for delay_ms in range(-5, 0):
        timer.add(Recorded(delay_ms, ran, delay_ms))
    assert ran == []  # never within add
    assert timer.next_expiration_ms() == -math.inf
    timer.advance_clock(0)
    timer.advance_clock(0)
    assert ran == [-5, -4, -3, -2, -1]


def test_everything_submitted_runs_through_several_levels() -> None:
    timer = SystemTimer(Clock(), wheel_size=3)
    ran: list[int] = []
    delays = [*range(5), *range(10, 100), *range(10, 100), *range(100, 500)]
    for delay_ms in delays:
        timer.add(Recorded(delay_ms, ran, delay_ms))
    while timer.advance_clock(2000):
        pass
    assert Counter(ran) == Counter(delays)
    assert ran == sorted(ran)
    assert timer.size() == 0


def test_a_task_added_twice_is_moved() -> None:
    timer = SystemTimer(Clock())
    task = Recorded(50, [])
    timer.add(task)
    task.delay_ms = 10
    timer.add(task)
    assert timer.size() == 1
    timer.advance_clock(10)
    timer.advance_clock(50)
    assert task.ran == ["task"]


def test_a_bucket_emptied_by_cancelling_is_still_flushed() -> None:
    timer = SystemTimer(Clock())
    task = Recorded(10, [])
    timer.add(task)
    task.cancel()
    assert timer.size() == 0
    assert timer.advance_clock(10)  # a bucket was flushed, which is not a task that ran
    assert not timer.advance_clock(1000)
    assert task.ran == []


def test_the_clock_of_the_wheel_is_lazy() -> None:
    clock = Clock()
    timer = SystemTimer(clock)
    clock.now_ms = 5000
    task = Recorded(0, [])
    timer.add(task)
    assert timer.size() == 1  # put into a bucket, although it is due
    assert (timer.next_expiration_ms() or 0) <= 5000
    timer.advance_clock(5000)
    assert task.ran == ["task"]


def test_a_failing_task_stops_its_caller_and_loses_no_other() -> None:
    def fail() -> None:
        raise RuntimeError("the task's own")

    timer = SystemTimer(Clock())
    ran: list[object] = []
    timer.add(Hook(1, fail))
    timer.add(Recorded(1, ran, "behind it"))
    with pytest.raises(RuntimeError, match="the task's own"):
        timer.advance_clock(1)
    timer.advance_clock(1)
    assert ran == ["behind it"]


def test_a_task_that_adds_itself_again_does_not_keep_its_caller() -> None:
    timer = SystemTimer(Clock())
    ran: list[None] = []

    def again() -> None:
        ran.append(None)
        timer.add(Hook(0, again))

    timer.add(Hook(0, again))
    for turns in range(1, 4):
        timer.advance_clock(0)
        assert len(ran) == turns


def test_tasks_go_to_the_executor_given() -> None:
    submitted: list[object] = []
    timer = SystemTimer(Clock(), submit=submitted.append)
    due, later = Recorded(0, []), Recorded(5, [])
    timer.add(due)
    timer.add(later)
    assert submitted == [due.run]
    timer.advance_clock(5)
    assert submitted == [due.run, later.run]
    assert (due.ran, later.ran) == ([], [])


def test_a_listener_hears_only_of_earlier_times() -> None:
    timer = SystemTimer(Clock())
    heard: list[float | None] = []
    timer.listen(lambda: heard.append(timer.next_expiration_ms()))
    for delay_ms in (15, 18, 15, 4, 16, -1, 3):
        timer.add(Recorded(delay_ms, []))
    assert heard == [15, 4, -math.inf]


def test_a_closed_timer_runs_nothing() -> None:
    timer = SystemTimer(Clock())
    task = Recorded(1, [])
    timer.add(task)
    timer.close()
    timer.close()
    assert not timer.advance_clock(10)
    assert task.ran == []


def test_an_enormous_delay_is_held_and_one_beyond_a_long_refused() -> None:
    timer = SystemTimer(Clock(5))
    task = Recorded(DELAY_MS_MAX, [])
    timer.add(task)
    timer.advance_clock(10**15)
    assert (task.ran, timer.size()) == ([], 1)
    with pytest.raises(ValueError, match="is more than"):
        Recorded(DELAY_MS_MAX + 1, [])
