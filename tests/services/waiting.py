"""Waiting for what gives no signal: a condition of another process, looked at until a deadline."""

import time
from collections.abc import Callable

POLL_S = 0.01  # between two looks, at first
POLL_MAX_S = 0.1
POLL_SHARE = 0.05  # of the time that was waited already: a look costs both processes something
WAIT_S = 60.0  # for what takes no time worth asserting: a busy machine has it


def wait_until(
    true: Callable[[], bool],
    timeout_s: float = WAIT_S,
    otherwise: Callable[[], str] = lambda: "the condition did not come true in time",
) -> None:
    """Return when the condition holds; AssertionError with `otherwise()` when it doesn't in time."""
    began_s = time.monotonic()
    while not true():
        waited_s = time.monotonic() - began_s
        if waited_s > timeout_s:
            raise AssertionError(otherwise())
        time.sleep(min(max(POLL_S, POLL_SHARE * waited_s), POLL_MAX_S))
