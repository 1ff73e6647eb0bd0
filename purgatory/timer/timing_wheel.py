"""A hierarchical timing wheel, as Kafka builds it.

A wheel is a ring of buckets. Its *tick* is what one bucket covers, its *interval* what the ring covers:

    level    tick      interval           tick 1 ms, 20 buckets
      1      u         u * n              1 ms      20 ms
      2      u * n     u * n^2            20 ms     400 ms
      3      u * n^2   u * n^3            400 ms    8 s

Each level starts at the current time c, rounded down to its tick, and holds what expires from c + tick up to
c + interval; what is later goes to the next level, which is built when it is first needed and has the same number of
buckets. What expires before c + tick is due at once and refused, for the timer to run. When a bucket of a coarse level
is due, its tasks are added again and fall into finer levels, until they are refused. So adding costs at most one
step per level, and cancelling one removal. With clock c only the ticks c/u + 1 ... c/u + n - 1 can be in the ring,
and buckets are flushed in the order of their expiration, so no bucket is used again before it is flushed.

    u = 1, n = 3, c = 0:  level 1 ticks [0][1][2]   level 2 [0-2][3-5][6-8]   level 3 [0-8][9-17][18-26]
    expires 5:            level 2, bucket [3-5], which is due at 3
    clock 3:              added again: level 1 now covers 3..5, bucket [5]
    clock 5:              added again: 5 < 5 + 1, refused: it runs

Rounding is down: a bucket is due at the *start* of its tick, so a task runs up to one tick early. Whoever must not be
early rounds the expiration up to the tick before adding it: then it is the start of its tick (`SystemTimer` does so
by option).

The clock of the wheel moves only when a bucket is due. After a quiet time it is behind, and even a task without delay
is put into a bucket, one that is due already.

No lock: adding, advancing and flushing happen under the timer's.
"""

from collections.abc import Callable

from purgatory.timer.timer import TaskCounter, TimerTask, TimerTaskList


class TimingWheel:
    """One level, and the coarser ones above it. `offer` is given each bucket that begins to wait for its time."""

    __slots__ = (
        "_buckets",
        "_end_ms",
        "_offer",
        "_task_counter",
        "current_time_ms",
        "interval_ms",
        "overflow_wheel",
        "tick_ms",
        "wheel_size",
    )

    def __init__(
        self,
        tick_ms: int,
        wheel_size: int,
        start_ms: int,
        task_counter: TaskCounter,
        offer: Callable[[TimerTaskList], None],
    ) -> None:
        if tick_ms < 1 or wheel_size < 2:  # with one bucket a level would be as coarse as the one above it
            raise ValueError(f"a wheel of {wheel_size} buckets of {tick_ms} ms")
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.interval_ms = tick_ms * wheel_size
        self.current_time_ms = start_ms - start_ms % tick_ms
        self._end_ms = self.current_time_ms + self.interval_ms
        self.overflow_wheel: TimingWheel | None = None
        self._task_counter = task_counter
        self._offer = offer
        self._buckets = [TimerTaskList(task_counter) for _ in range(wheel_size)]

    def add(self, timer_task: TimerTask, expiration_ms: int) -> bool:
        """File a task under its expiration. False if it is due."""
        if expiration_ms < self.current_time_ms + self.tick_ms:
            return False
        wheel = self
        while expiration_ms >= wheel._end_ms:  # not due on any coarser level either
            wheel = wheel.overflow_wheel or wheel._add_overflow_wheel()
        tick = expiration_ms // wheel.tick_ms
        bucket = wheel._buckets[tick % wheel.wheel_size]
        if bucket.add(timer_task, expiration_ms, tick * wheel.tick_ms):
            wheel._offer(bucket)
        return True

    def advance_clock(self, time_ms: int) -> None:
        """Move the clock of this level, and of those above, if a tick of it is over."""
        if time_ms >= self.current_time_ms + self.tick_ms:
            self.current_time_ms = time_ms - time_ms % self.tick_ms
            self._end_ms = self.current_time_ms + self.interval_ms
            if self.overflow_wheel is not None:
                self.overflow_wheel.advance_clock(self.current_time_ms)

    def _add_overflow_wheel(self) -> "TimingWheel":
        self.overflow_wheel = TimingWheel(
            self.interval_ms, self.wheel_size, self.current_time_ms, self._task_counter, self._offer
        )
        return self.overflow_wheel
