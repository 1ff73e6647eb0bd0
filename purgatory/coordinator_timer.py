"""Timers by name, as Kafka's group coordinator has them since 4.0: an expired one only leaves an event.

A timer that has fired can't be taken back, so its task does nothing but `enqueue` an event for the thread that owns the
state. When the event runs it looks whether its timer still stands: one that was replaced or cancelled in between is
dropped. That closes the race between expiry and cancelling.
"""

from collections.abc import Callable

from purgatory.timer import Timer, TimerTask

RETRY_BACKOFF_MS = 500


class CoordinatorTimer:
    """At most one timer per key. All methods, and the events, belong to one thread; expiry may come from another.

    `expire` functions that fail are set again in `RETRY_BACKOFF_MS` when scheduled with `retry`; otherwise the error
    goes to whoever runs the event.
    """

    def __init__(self, timer: Timer, enqueue: Callable[[Callable[[], None]], object]) -> None:
        self._timer = timer
        self._enqueue = enqueue
        self._tasks: dict[str, _Expiry] = {}

    def schedule(self, key: str, delay_ms: int, expire: Callable[[], None], *, retry: bool = False) -> None:
        """Call `expire` in `delay_ms`; a former timer of this key is cancelled."""
        self.cancel(key)
        task = _Expiry(delay_ms, lambda fired: self._enqueue(lambda: self._run(key, fired, expire, retry)))
        self._tasks[key] = task
        self._timer.add(task)

    def schedule_if_absent(self, key: str, delay_ms: int, expire: Callable[[], None], *, retry: bool = False) -> None:
        """As `schedule`, unless this key has a timer."""
        if key not in self._tasks:
            self.schedule(key, delay_ms, expire, retry=retry)

    def is_scheduled(self, key: str) -> bool:
        """Whether this key has a timer, or one whose event has not run yet."""
        return key in self._tasks

    def cancel(self, key: str) -> None:
        """Forget the timer of this key, its event included."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Forget all timers."""
        for key in list(self._tasks):
            self.cancel(key)

    def __len__(self) -> int:
        return len(self._tasks)

    def _run(self, key: str, task: "_Expiry", expire: Callable[[], None], retry: bool) -> None:
        if self._tasks.get(key) is not task:
            return  # replaced or cancelled since it fired: not a failure, its reason is gone
        del self._tasks[key]
        try:
            expire()
        except Exception:
            if not retry:
                raise
            self.schedule(key, RETRY_BACKOFF_MS, expire, retry=True)


class _Expiry(TimerTask):
    def __init__(self, delay_ms: int, fire: Callable[["_Expiry"], object]) -> None:
        super().__init__(delay_ms)
        self._fire = fire

    def run(self) -> None:
        self._fire(self)
