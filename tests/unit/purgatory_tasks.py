"""Timer tasks and delayed operations that say what happened to them."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.timer.timer import TimerTask, TimerTaskList
from purgatory.versions import KafkaVersion

VERSIONS = pytest.mark.parametrize("version", list(KafkaVersion), ids=lambda version: version.name)


class Recorded(TimerTask):
    """Appends its name to a list when it runs."""

    def __init__(self, delay_ms: int, ran: list[Any], name: object = "task") -> None:
        super().__init__(delay_ms)
        self.ran = ran
        self.name = name

    def run(self) -> None:
        self.ran.append(self.name)


class Hook(TimerTask):
    """Calls a function when it runs."""

    def __init__(self, delay_ms: int, function: Callable[[], object]) -> None:
        super().__init__(delay_ms)
        self._function = function

    def run(self) -> None:
        self._function()


class Operation(DelayedOperation):
    """Completes once `completable` is set; counts what happens."""

    def __init__(self, delay_ms: int = 100_000, **options: Any) -> None:
        super().__init__(delay_ms, **options)
        self.completable = False
        self.tried = 0
        self.completions = 0
        self.expirations = 0

    def try_complete(self) -> bool:
        self.tried += 1
        return self.completable and self.force_complete()

    def on_complete(self) -> None:
        self.completions += 1

    def on_expiration(self) -> None:
        self.expirations += 1


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now_ms: float = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> float:
        return self.now_ms


def tasks_of(bucket: TimerTaskList) -> list[TimerTask]:
    """Tasks of a bucket, in the order in which they came."""
    return list(bucket._expirations_ms)


def is_held_by_this_thread(lock: Any) -> bool:
    """Whether another thread can't take it."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(blocking=False))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return not taken[0]
