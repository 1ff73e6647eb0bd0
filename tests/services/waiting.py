"""Waiting for what gives no signal: a condition of another process, looked at until a deadline."""

import time
from collections.abc import Callable

POLL_S = 0.01
WAIT_S = 60.0  # for what takes no time worth asserting: a busy machine has it


def wait_until(
    true: Callable[[], bool],
    timeout_s: float = WAIT_S,
    otherwise: Callable[[], str] = lambda: "the condition did not come true in time",
) -> None:
    """Return when the condition holds; AssertionError with `otherwise()` when it doesn't in time."""
    deadline_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline_s:
            raise AssertionError(otherwise())
        time.sleep(POLL_S)
