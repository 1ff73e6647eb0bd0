"""The timer: a wheel, the queue of its buckets by the time they are due, and the tasks that are due.

Kafka's SystemTimer blocks in a queue of buckets and runs tasks in a thread of its own. This one has neither thread nor
loop: `advance_clock(now_ms)` flushes the buckets that are due and then runs, in order, the tasks that have expired,
holding no lock. Whoever calls it is told when to come back by `next_expiration_ms`, and earlier by `listen`. Given
`submit` (an executor's, say), tasks are handed to that instead, as Kafka does; a slow task delays the later ones
either way.

One lock stands for Kafka's read-write lock: adding takes microseconds, and threads of one interpreter would not do it
in parallel anyway.
"""

import heapq
from collections import deque
from collections.abc import Callable
from math import ceil, floor, inf

from purgatory.timer.clock import hi_res_clock_ms
from purgatory.timer.timer import TaskCounter, TimerTask, TimerTaskList
from purgatory.timer.timing_wheel import TimingWheel

TICK_MS = 1
WHEEL_SIZE = 20


class BucketQueue:
    """Buckets by expiration. A bucket's expiration does not change while it is queued; emptied buckets stay."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTaskList]] = []
        self.offered = 0

    def offer(self, bucket: TimerTaskList) -> None:
        """Queue a bucket by its expiration, behind those of the same."""
        self.offered += 1
        heapq.heappush(self._heap, (bucket.expiration_ms, self.offered, bucket))

    def poll(self, now_ms: float) -> TimerTaskList | None:
        """Take out the earliest bucket, if it is due."""
        if self._heap and self._heap[0][0] <= now_ms:
            return heapq.heappop(self._heap)[2]
        return None

    def is_newest_first(self) -> bool:
        """Whether the bucket that was offered last is the earliest."""
        return self._heap[0][1] == self.offered

    def head_ms(self) -> int | None:
        """When the earliest bucket is due."""
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._heap)


class SystemTimer:
    """Runs tasks after their delay. All methods may be called from any thread.

    `clock` gives monotonic milliseconds. Kafka truncates clock and expiration, so a task may run up to one tick and
    one millisecond early; with `round_up` both are rounded up and a task is never early.
    """

    def __init__(
        self,
        clock: Callable[[], float] = hi_res_clock_ms,
        tick_ms: int = TICK_MS,
        wheel_size: int = WHEEL_SIZE,
        *,
        round_up: bool = False,
        submit: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock = clock
        self._tick_ms = tick_ms
        self._round_up = round_up
        self._submit = submit
        self._task_counter = TaskCounter()
        self._lock = self._task_counter.lock
        self._queue = BucketQueue()
        self._wheel = TimingWheel(tick_ms, wheel_size, floor(clock()), self._task_counter, self._queue.offer)
        self._expired: deque[TimerTask] = deque()
        self._handed_over = TimerTaskList(self._task_counter)  # the list of what has expired; nothing is kept in it
        self._wake: Callable[[], None] = _nobody
        self._closed = False

    def add(self, timer_task: TimerTask) -> None:
        """Run this task in `timer_task.delay_ms`. Without delay it may run at once, but never within this call."""
        delay_ms = timer_task.delay_ms
        expiration_ms = self._rounded_up_ms(delay_ms) if self._round_up else floor(self._clock()) + delay_ms
        if timer_task.timer_task_list is not None:
            timer_task.cancel()  # outside the lock: it takes that of the timer which has the task
        queue = self._queue
        with self._lock:
            if timer_task.timer_task_list is not None:
                return  # another thread has added it since, and the later one counts
            offered = queue.offered
            if self._wheel.add(timer_task, expiration_ms):
                is_earlier = queue.offered != offered and queue.is_newest_first() and not self._expired
            else:
                is_earlier = not self._expired
                self._expire(timer_task)
        if self._submit is not None:
            self._run_expired()
        if is_earlier:
            self._wake()

    def advance_clock(self, now_ms: float) -> bool:
        """Flush what is due at `now_ms`, then run what has expired. True if a bucket was flushed.

        An error of a task is raised here. The tasks behind it wait for the next call.
        """
        if self._closed:
            return False
        wheel = self._wheel
        with self._lock:
            bucket = self._queue.poll(now_ms)
            flushed = bucket is not None
            while bucket is not None:
                wheel.advance_clock(bucket.expiration_ms)
                for timer_task, expiration_ms in bucket.flush():
                    if timer_task.timer_task_list is bucket and not wheel.add(timer_task, expiration_ms):
                        self._expire(timer_task)
                bucket = self._queue.poll(now_ms)
        self._run_expired()
        return flushed

    def next_expiration_ms(self) -> float | None:
        """When the earliest bucket is due; -inf if a task is due; None if nothing waits."""
        with self._lock:
            return self._next_ms()

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` after an `add` that makes `next_expiration_ms` earlier. One listener."""
        self._wake = wake

    def size(self) -> int:
        """Number of tasks that wait in the wheel."""
        return self._task_counter.value

    def close(self) -> None:
        """Run nothing any more. What waits is forgotten; `submit` belongs to whoever gave it."""
        self._closed = True

    def _next_ms(self) -> float | None:
        return -inf if self._expired else self._queue.head_ms()

    def _rounded_up_ms(self, delay_ms: int) -> int:
        expiration_ms = ceil(self._clock()) + delay_ms
        return -(-expiration_ms // self._tick_ms) * self._tick_ms

    def _expire(self, timer_task: TimerTask) -> None:
        timer_task.timer_task_list = self._handed_over
        self._expired.append(timer_task)

    def _run_expired(self) -> None:
        # As many as there are now: a task that adds itself again without delay must not keep the caller here.
        for _ in range(len(self._expired)):
            try:
                timer_task = self._expired.popleft()
            except IndexError:  # another thread took it
                return
            if self._submit is None:
                timer_task.run()
            else:
                self._submit(timer_task.run)


def _nobody() -> None:
    """Nobody listens yet: the next call of `advance_clock` is soon enough."""
