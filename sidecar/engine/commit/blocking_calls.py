"""The committer: one thread that waits for the brokers in the engine's stead, one job at a time.

A call of the client that doesn't come back can't be interrupted: its thread is left behind and another takes over.
How long a call may take is its own matter (`call_limit.py`): a job of many calls may take as long as all of them.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sidecar.model.call_limit import CallLimit
from sidecar.model.ports import Time

HUNG_MAX: Final = 3  # calls that never came back: more, and the process had better start over


class HungClientError(Exception):
    """Calls of the Kafka client don't come back: the process ends and starts over."""


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    done: Callable[[Any], None]
    limit: CallLimit


class BlockingCallThread:
    """Owned by the engine's thread; only `work` runs elsewhere."""

    def __init__(self, executors: Callable[[], Executor], time: Time) -> None:
        self._executors = executors
        self._time = time
        self._executor: Executor | None = None
        self._job: _Job | None = None
        self._hung: list[Future[Any]] = []

    @property
    def busy(self) -> bool:
        """A job is under way, or its result not taken."""
        return self._job is not None

    @property
    def late(self) -> bool:
        """The job's call does not come back."""
        job = self._job
        return job is not None and not job.future.done() and job.limit.passed

    def renew(self) -> None:
        """Leave behind whatever is under way: its result is not wanted. Raises HungClientError at the last straw."""
        if self._job is not None and not self._job.future.done():
            self._hung = [*(future for future in self._hung if not future.done()), self._job.future]
            if len(self._hung) > HUNG_MAX:
                raise HungClientError(f"{len(self._hung)} calls of the Kafka client did not come back")
        self.stop()
        self._job = None
        self._executor = self._executors()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do `work` over there; `take` will give what it returned to `done`, here."""
        assert self._executor is not None
        limit = CallLimit(self._time)
        self._job = _Job(self._executor.submit(partial(limit.watch, work)), done, limit)

    def take(self) -> None:
        """Take the result, when there is one; what `work` raised is raised here."""
        job = self._job
        if job is not None and job.future.done():
            self._job = None
            job.done(job.future.result())

    def stop(self) -> None:
        """Let the thread end. Twice is harmless."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
