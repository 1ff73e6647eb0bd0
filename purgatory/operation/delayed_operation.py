"""An operation that waits for a condition, for as long as its timeout.

    try_complete      checks; if the condition holds, calls force_complete       under the operation's lock
    force_complete    wins once: off the timer, then on_complete                 by try_complete, run or anybody
    run               the timer's: force_complete, and on_expiration if it won

`on_complete` runs exactly once, whoever comes first, and before `on_expiration`: the answer goes out, then the expiry
is counted. Up to Kafka 4.0 the winner is found by compare-and-set, so `on_complete` may overlap another thread's
`try_complete`; from 4.1 on completion takes the operation's lock. An error in `on_complete` leaves the operation
completed.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable

from purgatory.locks import Monitor, Rank, monitor
from purgatory.timer.timer import TimerTask
from purgatory.versions import LATEST, KafkaVersion


class DelayedOperation(TimerTask):
    """Complete when the condition holds, at the latest after `delay_ms`.

    `lock` may be one that also guards the state which the condition looks at (Kafka's group lock, up to 3.9): then the
    two can't be taken in opposite orders. It must be reentrant.
    """

    def __init__(self, delay_ms: int, lock: Monitor | None = None, version: KafkaVersion = LATEST) -> None:
        super().__init__(delay_ms)
        self.lock: Monitor = monitor(Rank.OPERATION) if lock is None else lock
        self._completed = False
        self._completes_under_lock = version.completes_under_lock
        self._claim = threading.Lock()  # taken once and never given back: compare-and-set

    @abstractmethod
    def try_complete(self) -> bool:
        """Check; when the condition holds, return what `force_complete` returns, otherwise False."""

    @abstractmethod
    def on_complete(self) -> None:
        """Give the answer. Called exactly once."""

    @abstractmethod
    def on_expiration(self) -> None:
        """Called after `on_complete`, without the lock, if it was the timeout that completed it."""

    def is_completed(self) -> bool:
        """Whether somebody has won. `on_complete` may still be running."""
        return self._completed

    def force_complete(self) -> bool:
        """Complete it, whatever its condition. False if it was completed before."""
        if self._completed:
            return False
        if not self._completes_under_lock:
            return self._complete()
        with self.lock:
            return self._complete()

    def safe_try_complete(self) -> bool:
        """`try_complete` under the lock. False if it was completed before."""
        with self.lock:
            return False if self._completed else self.try_complete()

    def safe_try_complete_or_else(self, otherwise: Callable[[], None]) -> bool:
        """Try; if that fails call `otherwise` and try again, all under the lock. What changed before `otherwise`
        had registered the operation would else be seen by nobody."""
        with self.lock:
            if self.try_complete():
                return True
            otherwise()
            return self.try_complete()

    def run(self) -> None:
        """The timeout is over."""
        if self.force_complete():
            self.on_expiration()

    def _complete(self) -> bool:
        if not self._claim.acquire(blocking=False):
            return False
        self._completed = True
        self.cancel()
        self.on_complete()
        return True
