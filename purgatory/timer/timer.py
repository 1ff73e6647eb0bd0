"""Contents of a timer: tasks, and the lists of tasks that are the wheel's buckets.

A list is a dict from task to expiration, so a task leaves it in O(1), and tasks keep the order in which they came. An
item of the dict is what Kafka has a TimerTaskEntry for. A task knows its list; one that is added again leaves that
first, so it is moved.

All lists of a timer share one lock, in their `TaskCounter`: a flush moves tasks from one list to others under it, so
whoever cancels sees each in one of them, or expired. Only two threads that add one task to two timers at the same
moment may leave it in both. It counts in the earlier one until its bucket expires, and is dropped there unrun; a
timer's size is too high by it until then. While a bucket expires, a reader of the size may see what it moves missing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol

from purgatory.locks import Monitor, Rank, monitor

NOT_QUEUED = -1
DELAY_MS_MAX = 2**63 - 1  # Kafka's delays are Java longs


class TimerTask(ABC):
    """Something to run after `delay_ms`, counted from when it is added to a timer. Hashed by identity.

    Kafka adds delay and clock in a long, so an enormous delay wraps round and runs at once. Here it is held.
    """

    __slots__ = ("delay_ms", "timer_task_list")

    def __init__(self, delay_ms: int) -> None:
        if delay_ms > DELAY_MS_MAX:
            raise ValueError(f"a delay of {delay_ms} ms is more than {DELAY_MS_MAX}")
        self.delay_ms = delay_ms
        self.timer_task_list: TimerTaskList | None = None  # changes under the lock of the list's timer only

    @abstractmethod
    def run(self) -> None:
        """Called once when the delay is over, unless cancelled before."""

    def cancel(self) -> None:
        """Take it off its timer. Harmless when repeated. A run that has begun, or is handed over, is not stopped."""
        current = self.timer_task_list
        while current is not None:  # again, if a flush moves it to another list meanwhile
            current.remove(self)
            current = self.timer_task_list

    def is_cancelled(self) -> bool:
        """Whether it has no list: true before it is added and after `cancel`, but still false after it has run."""
        return self.timer_task_list is None


class TaskCounter:
    """Number of tasks in all lists of a timer, and the lock under which lists and number change."""

    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        self.lock: Monitor = monitor(Rank.TIMER)
        self.value = 0


class TimerTaskList:
    """A bucket: tasks that expire within the same tick. All lists of a timer share one `task_counter`.

    `remove` takes the lock itself; whoever adds or flushes holds it.
    """

    __slots__ = ("_expirations_ms", "_task_counter", "expiration_ms")

    def __init__(self, task_counter: TaskCounter) -> None:
        self._task_counter = task_counter
        self._expirations_ms: dict[TimerTask, int] = {}
        self.expiration_ms = NOT_QUEUED  # when this bucket is due

    def add(self, timer_task: TimerTask, expiration_ms: int, due_ms: int) -> bool:
        """Append a task that is in no list, or in one that is flushed just now. `due_ms`: when this bucket is due.

        True if that is another time than before: exactly once between two flushes, and whoever is told so queues the
        bucket. Nothing else keeps a bucket from being queued twice.
        """
        self._expirations_ms[timer_task] = expiration_ms
        timer_task.timer_task_list = self
        self._task_counter.value += 1
        if self.expiration_ms == due_ms:
            return False
        self.expiration_ms = due_ms
        return True

    def remove(self, timer_task: TimerTask) -> None:
        """Take a task out, if this is its list."""
        counter = self._task_counter
        with counter.lock:
            if timer_task.timer_task_list is self:
                timer_task.timer_task_list = None
                if self._expirations_ms.pop(timer_task, None) is not None:
                    counter.value -= 1

    def flush(self) -> Iterable[tuple[TimerTask, int]]:
        """Give up all tasks with their expirations, in their order, and be free to be queued again. They still name
        this list: each must go to another one before the lock is given back."""
        taken = self._expirations_ms
        self._expirations_ms = {}
        self.expiration_ms = NOT_QUEUED
        self._task_counter.value -= len(taken)
        return taken.items()


class Timer(Protocol):
    """A timer, which runs tasks after their delay."""

    def add(self, timer_task: TimerTask) -> None:
        """Run this task when its delay is over. A task that is in the timer is moved."""

    def advance_clock(self, now_ms: float) -> bool:
        """Bring the timer to this time. True if a bucket was flushed, which need not mean that a task ran."""

    def size(self) -> int:
        """Number of tasks that wait."""

    def close(self) -> None:
        """Run nothing any more. Harmless when repeated."""


class Driven(Protocol):
    """A part that a driver brings forward, by `advance_clock` at `next_expiration_ms`, and earlier when woken."""

    def advance_clock(self, now_ms: float) -> bool:
        """Bring it to this time."""

    def next_expiration_ms(self) -> float | None:
        """When there is something to do, by the clock; None if nothing waits."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when `next_expiration_ms` has become earlier."""


class DrivenTimer(Timer, Driven, Protocol):
    """A timer that says when it wants to be brought forward."""
