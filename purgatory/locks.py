"""Locks in Kafka's order, and a check of that order in development mode.

A thread that holds a lock may take only locks that stand further down in `Rank`:

    operation -> shard      watching an operation, from within its own check
    operation -> timer      completing it takes it off the timer
    shard     -> timer      cancel_for_key

Two threads that keep to one order can't wait for each other. Never shard -> operation: check_and_complete gives its
shard back before it tries an operation. Never timer -> operation: tasks run when the timer holds no lock.
Under `python -X dev` each lock checks this whenever it is taken.
"""

import sys
import threading
from enum import IntEnum
from types import TracebackType
from typing import Protocol


class Rank(IntEnum):
    """The order in which one thread may take locks."""

    OPERATION = 1
    SHARD = 2
    TIMER = 3


class Monitor(Protocol):
    """A reentrant lock, as every Java object has one."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OrderedMonitor:
    """A monitor that fails when its thread holds another one of the same or a later rank."""

    _held = threading.local()

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; AssertionError when out of order."""
        held: list[OrderedMonitor] = self._held.__dict__.setdefault("monitors", [])
        if self not in held:
            for other in held:
                assert other.rank < self.rank, f"{self.rank.name} taken under {other.rank.name}"
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            held.append(self)
        return taken

    def release(self) -> None:
        """Give it back."""
        held: list[OrderedMonitor] = self._held.monitors
        held.reverse()
        held.remove(self)
        held.reverse()
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


checked = sys.flags.dev_mode


def monitor(rank: Rank) -> Monitor:
    """A new lock of this rank, which checks the order if this is development mode."""
    return OrderedMonitor(rank) if checked else threading.RLock()


class AtomicInteger:
    """A number that threads add to. Reading it needs no lock."""

    __slots__ = ("_lock", "value")

    def __init__(self, value: int = 0) -> None:
        self._lock = threading.Lock()
        self.value = value

    def add(self, amount: int) -> None:
        """Add `amount`, which may be negative."""
        with self._lock:
            self.value += amount

    def set(self, value: int) -> None:
        """Forget the former value."""
        with self._lock:
            self.value = value
