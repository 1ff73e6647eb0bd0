"""How long a call that waits for brokers may take, seen by a thread that watches the one that makes it.

A job makes many calls, each with a limit of its own. So what is watched is the call under way, not the job: `within`
renews the job's `CallLimit` with each.
"""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from sidecar.model.ports import Time

SILENT_MAX_S: Final = 10.0  # for a job that makes no call, or whose thread doesn't begin
GRACE_S: Final = 5.0  # a call that has not come back so long after its own limit hardly ever does ...
SHORT_GRACE_S: Final = 0.5  # ... nor so long after it one that is known to keep none

T = TypeVar("T")
_thread = threading.local()  # its `limit`: of the job that this thread does


class CallLimit:
    """Until when something must be heard of a job. Written by the thread that does it, read by the one that watches."""

    __slots__ = ("_time", "_until_s")

    def __init__(self, time: Time) -> None:
        self._time = time
        self.renew(SILENT_MAX_S)

    def renew(self, seconds: float) -> None:
        """Something is heard of it within so many seconds, or it hangs."""
        self._until_s = self._time.monotonic_s() + seconds

    @property
    def passed(self) -> bool:
        """Nothing was heard of it for too long."""
        return self._time.monotonic_s() > self._until_s

    def watch(self, work: Callable[[], T]) -> T:
        """Do all of it under this limit, on the thread that calls."""
        _thread.limit = self
        try:
            return work()
        finally:
            _thread.limit = None


def within(seconds: float, call: Callable[..., T], *arguments: object, grace_s: float = GRACE_S) -> T:
    """Make a call that takes its own limit last. Where a job makes it, that job may be silent for so long.

    librdkafka's `send_offsets_to_transaction` is known not to keep its limit once the group's coordinator has moved:
    the client looks for the new one when one of its connections comes up, and not before (its issues 5456 and 5511).
    Each second that nobody leaves it behind is a second in which nothing is committed.
    """
    limit: CallLimit | None = getattr(_thread, "limit", None)
    if limit is None:
        return call(*arguments, seconds)
    limit.renew(seconds + grace_s)
    try:
        return call(*arguments, seconds)
    finally:
        limit.renew(SILENT_MAX_S)
