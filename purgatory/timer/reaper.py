"""The two who bring timers forward: a thread, as in Kafka, or the event loop of whoever owns them."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from purgatory.timer.clock import hi_res_clock_ms
from purgatory.timer.timer import Driven, DrivenTimer, TimerTask

# The longest wait between two looks, when nothing is due. It bounds how late a purge or a stop is noticed; expiry
# wakes whoever waits.
WORK_TIMEOUT_MS = 200

_log = logging.getLogger(__name__)


class SystemTimerReaper:
    """A timer brought forward by a thread of its own. An error of a task is logged, and the thread goes on."""

    def __init__(self, name: str, timer: DrivenTimer, clock: Callable[[], float] = hi_res_clock_ms) -> None:
        self._timer = timer
        self._clock = clock
        self._woken = threading.Event()
        self._closing = False
        timer.listen(self._woken.set)
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def add(self, timer_task: TimerTask) -> None:
        """Run this task when its delay is over, in the reaper's thread."""
        self._timer.add(timer_task)

    def size(self) -> int:
        """Number of tasks that wait."""
        return self._timer.size()

    def close(self) -> None:
        """End the thread, then close the timer. Harmless when repeated."""
        if self._closing:
            return
        self._closing = True
        self._woken.set()
        self.thread.join()
        self._timer.close()

    def _work(self) -> None:
        while not self._closing:
            self._woken.clear()  # before looking, so that what comes during the look is looked at again
            try:
                self._timer.advance_clock(self._clock())
            except Exception:  # noqa: BLE001 - a task's; the tasks behind it run in the next turn
                _log.exception("a timer task failed")
            self._woken.wait(_wait_ms(self._timer, self._clock()) / 1000)


class Handle(Protocol):
    """A call that is arranged and can be taken back: asyncio's TimerHandle."""

    def cancel(self) -> None: ...


class TimerDriver:
    """Brings any number of timers and purgatories forward from one event loop.

    `call_later(seconds, function)` is the loop's. Everything happens in the loop's thread: timers given to `drive`
    must be added to from there only.
    """

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], Handle], clock: Callable[[], float] = hi_res_clock_ms
    ) -> None:
        self._call_later = call_later
        self._clock = clock
        self._driven: list[Driven] = []
        self._handle: Handle | None = None
        self._armed_ms = 0.0
        self._stepping = False

    def drive(self, driven: Driven) -> None:
        """Bring this forward from now on."""
        self._driven.append(driven)
        driven.listen(self._arm)
        self._arm()

    def step(self) -> None:
        """Bring everything to the present and arrange the next step. Called by the loop; may be called by hand.

        An error of a task is raised to the loop after the next step is arranged.
        """
        self._stepping = True
        try:
            for driven in self._driven:
                driven.advance_clock(self._clock())
        finally:
            self._stepping = False
            self._disarm()
            self._arm()

    def stop(self) -> None:
        """Let go of everything that is driven. Harmless when repeated."""
        self._driven.clear()
        self._disarm()

    def _arm(self) -> None:
        if self._stepping or not self._driven:
            return
        now_ms = self._clock()
        wait_ms = min(_wait_ms(driven, now_ms) for driven in self._driven)
        if self._handle is not None:
            if self._armed_ms <= now_ms + wait_ms:
                return
            self._handle.cancel()
        self._armed_ms = now_ms + wait_ms
        self._handle = self._call_later(wait_ms / 1000, self.step)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def _wait_ms(driven: Driven, now_ms: float) -> float:
    next_ms = driven.next_expiration_ms()
    return WORK_TIMEOUT_MS if next_ms is None else min(max(next_ms - now_ms, 0.0), WORK_TIMEOUT_MS)
