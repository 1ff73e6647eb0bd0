"""A thread that runs when it is told to."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class StepExecutor(Executor):
    """Runs what was submitted, in order, one piece for each `step`."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    @property
    def waits(self) -> bool:
        """Something is to be run."""
        return bool(self._waiting)

    def step(self) -> bool:
        """Run the next piece; False when there is none."""
        if not self._waiting:
            return False
        future, work = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - as a real executor: it is raised where the result is asked for
                future.set_exception(error)
        return True

    def run(self) -> None:
        """Run everything."""
        while self.step():
            pass

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._waiting.clear()
