"""A timer for tests whose time is set by hand."""

import heapq
from collections.abc import Callable

from purgatory.timer.timer import TaskCounter, TimerTask, TimerTaskList


class MockTimer:
    """Kafka's MockTimer: a task without delay runs within `add`; others run when the time is *later* than their
    expiration, so a test waits one millisecond more than the delay. Cancelled tasks are not counted.

    One thread only. `now_ms` is its clock, and starts at 0.
    """

    def __init__(self) -> None:
        self.now_ms: float = 0
        self._heap: list[tuple[int, int, TimerTask]] = []
        self._added = 0
        self._waiting = TimerTaskList(TaskCounter())  # with the number of a task's last addition, by which it counts

    def add(self, timer_task: TimerTask) -> None:
        """Run it now, or when its delay is over."""
        if timer_task.delay_ms <= 0:
            timer_task.run()
            return
        timer_task.cancel()
        self._added += 1
        self._waiting.add(timer_task, self._added, 0)
        heapq.heappush(self._heap, (int(self.now_ms) + timer_task.delay_ms, self._added, timer_task))

    def pass_time(self, milliseconds: int) -> bool:
        """Let this time pass and run what has expired. True if something ran."""
        return self.advance_clock(self.now_ms + milliseconds)

    def advance_clock(self, now_ms: float) -> bool:
        """Set the time and run what has expired, in the order of expiration. True if something ran."""
        self.now_ms = max(self.now_ms, now_ms)
        ran = False
        while self._heap and self._heap[0][0] < self.now_ms:
            _, number, timer_task = heapq.heappop(self._heap)
            if self._waiting._expirations_ms.get(timer_task) == number:
                self._waiting.remove(timer_task)
                timer_task.run()
                ran = True
        return ran

    def next_expiration_ms(self) -> float | None:
        """When the earliest task expires."""
        return self._heap[0][0] + 1 if self._heap else None

    def listen(self, wake: Callable[[], None]) -> None:
        """Nobody needs to be woken: time passes by hand."""

    def size(self) -> int:
        """Number of tasks that wait."""
        return len(self._waiting._expirations_ms)

    def close(self) -> None:
        """Forget what waits."""
        self._heap.clear()
