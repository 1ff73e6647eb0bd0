"""Futures that wait for a number to be reached, an offset for instance, as Kafka's Raft layer has them."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count

from purgatory.timer import Timer, TimerTask


class TimingWheelExpirationService:
    """Gives futures that fail after a time. Completing one takes its task off the timer."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def fail_after(self, timeout_ms: int) -> Future[int]:
        """A future that fails with TimeoutError in `timeout_ms`."""
        future: Future[int] = Future()
        task = _Failure(timeout_ms, future)
        future.add_done_callback(lambda _: task.cancel())
        self._timer.add(task)
        return future


class _Failure(TimerTask):
    def __init__(self, timeout_ms: int, future: Future[int]) -> None:
        super().__init__(timeout_ms)
        self._future = future

    def run(self) -> None:
        with suppress(InvalidStateError):  # done in this very moment: its own result stands
            self._future.set_exception(TimeoutError(f"nothing happened for {self.delay_ms} ms"))


class ThresholdPurgatory:
    """Futures by the threshold they wait for. A future that is done in any way is forgotten. One thread only."""

    def __init__(self, fail_after: Callable[[int], Future[int]]) -> None:
        self._fail_after = fail_after
        self._waiting: dict[tuple[int, int], Future[int]] = {}
        self._identity = count()

    def await_threshold(self, threshold: int, timeout_ms: int) -> Future[int]:
        """A future whose result is the time, in ms, at which the threshold was reached. Fails with TimeoutError."""
        future = self._fail_after(timeout_ms)
        key = (threshold, next(self._identity))
        self._waiting[key] = future
        future.add_done_callback(lambda _: self._waiting.pop(key, None))
        return future

    def maybe_complete(self, value: int, now_ms: int) -> None:
        """`value` is reached: complete all waits up to it, lower thresholds first, equal ones in their order."""
        self._each(value, lambda future: future.set_result(now_ms))

    def complete_all(self, now_ms: int) -> None:
        """Complete all waits."""
        self._each(None, lambda future: future.set_result(now_ms))

    def complete_all_exceptionally(self, error: BaseException) -> None:
        """Fail all waits, since nothing will be reached any more."""
        self._each(None, lambda future: future.set_exception(error))

    @property
    def num_waiting(self) -> int:
        """Number of futures that wait."""
        return len(self._waiting)

    def _each(self, value: int | None, finish: Callable[[Future[int]], None]) -> None:
        for key in sorted(self._waiting):
            if value is not None and key[0] > value:
                break
            future = self._waiting.get(key)
            if future is not None:
                with suppress(InvalidStateError):  # finished by the callback of one before it
                    finish(future)
