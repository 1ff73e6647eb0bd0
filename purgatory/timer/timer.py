"""Contents of a timer: tasks, entries, and the lists of entries that are the wheel's buckets.

A task is what shall run; an entry is one place of a task in one list. Building a new entry for a task steals it from
the entry it had, so a task added twice is moved, and `entry.cancelled` is a comparison of two references without a
lock. A list is circular and doubly linked round a root that holds no task; entries leave it in O(1), in the order in
which they came.

A known race is left as it is in Kafka: a task cancelled while a flush has taken its entry out of one bucket and not
yet put it into the next leaves that entry behind. It is counted until its bucket expires and dropped there unrun. So
a timer's size may be too high for a moment, never too low.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from purgatory.locks import AtomicInteger, Monitor, Rank, monitor

NOT_QUEUED = -1
DELAY_MS_MAX = 2**63 - 1  # Kafka's delays are Java longs


class TimerTask(ABC):
    """Something to run after `delay_ms`, counted from when it is added to a timer.

    Kafka adds delay and clock in a long, so an enormous delay wraps round and runs at once. Here it is held.
    """

    def __init__(self, delay_ms: int) -> None:
        if delay_ms > DELAY_MS_MAX:
            raise ValueError(f"a delay of {delay_ms} ms is more than {DELAY_MS_MAX}")
        self.delay_ms = delay_ms
        self._timer_task_entry: TimerTaskEntry | None = None
        self._task_monitor: Monitor = monitor(Rank.TASK)

    @abstractmethod
    def run(self) -> None:
        """Called once when the delay is over, unless cancelled before."""

    def cancel(self) -> None:
        """Take it off its timer. Harmless when repeated. A run that has begun, or is handed over, is not stopped."""
        with self._task_monitor:
            if self._timer_task_entry is not None:
                self._timer_task_entry.remove()
                self._timer_task_entry = None

    def is_cancelled(self) -> bool:
        """Whether it has no entry: true before it is added and after `cancel`, but still false after it has run."""
        return self._timer_task_entry is None

    def set_timer_task_entry(self, entry: "TimerTaskEntry") -> None:
        """Belong to this entry from now on; a former one leaves its list."""
        with self._task_monitor:
            if self._timer_task_entry is not None and self._timer_task_entry is not entry:
                self._timer_task_entry.remove()
            self._timer_task_entry = entry


class TimerTaskEntry:
    """One place of a task in a list. `expiration_ms` is absolute, by the timer's clock."""

    __slots__ = ("expiration_ms", "list", "monitor", "next", "previous", "timer_task")

    def __init__(self, timer_task: TimerTask | None, expiration_ms: int) -> None:
        self.timer_task = timer_task
        self.expiration_ms = expiration_ms
        self.list: TimerTaskList | None = None
        self.next: TimerTaskEntry = self
        self.previous: TimerTaskEntry = self
        self.monitor: Monitor = monitor(Rank.ENTRY)
        if timer_task is not None:
            timer_task.set_timer_task_entry(self)

    @property
    def cancelled(self) -> bool:
        """Whether its task was cancelled or has another entry now."""
        return self.timer_task is None or self.timer_task._timer_task_entry is not self

    def remove(self) -> None:
        """Leave the list. A flush may be moving it to another list meanwhile, hence again until it is in none."""
        current = self.list
        while current is not None:
            current.remove(self)
            current = self.list


class TimerTaskList:
    """A bucket: entries that expire within the same tick. All lists of a timer share one `task_counter`."""

    __slots__ = ("_expiration_ms", "_monitor", "_root", "_task_counter")

    def __init__(self, task_counter: AtomicInteger) -> None:
        self._task_counter = task_counter
        self._root = TimerTaskEntry(None, NOT_QUEUED)
        self._expiration_ms = NOT_QUEUED
        self._monitor: Monitor = monitor(Rank.BUCKET)

    @property
    def expiration_ms(self) -> int:
        """When this bucket is due, `NOT_QUEUED` while it waits for its first entry."""
        return self._expiration_ms

    def set_expiration(self, expiration_ms: int) -> bool:
        """True if this is another time than before: exactly once between two flushes, and whoever is told so queues
        the bucket. Nothing else keeps a bucket from being queued twice."""
        with self._monitor:
            former = self._expiration_ms
            self._expiration_ms = expiration_ms
            return former != expiration_ms

    def add(self, entry: TimerTaskEntry) -> None:
        """Append an entry, out of whatever list it is in."""
        done = False
        while not done:
            entry.remove()  # before the monitor: it takes the monitor of the other list
            with self._monitor, entry.monitor:
                if entry.list is None:
                    tail = self._root.previous
                    entry.next = self._root
                    entry.previous = tail
                    entry.list = self
                    tail.next = entry
                    self._root.previous = entry
                    self._task_counter.add(1)
                    done = True

    def remove(self, entry: TimerTaskEntry) -> None:
        """Take an entry out, if it is in this list."""
        with self._monitor, entry.monitor:
            if entry.list is self:
                self._unlink(entry)

    def flush(self, take: Callable[[TimerTaskEntry], None]) -> None:
        """Take all entries out in their order, give each to `take`, and be free to be queued again."""
        with self._monitor:
            head = self._root.next
            while head is not self._root:
                with head.monitor:
                    self._unlink(head)
                take(head)
                head = self._root.next
            self._expiration_ms = NOT_QUEUED

    def _unlink(self, entry: TimerTaskEntry) -> None:
        entry.next.previous = entry.previous
        entry.previous.next = entry.next
        entry.next = entry
        entry.previous = entry
        entry.list = None
        self._task_counter.add(-1)


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
