"""The clock of timers: milliseconds of a monotonic clock with an arbitrary origin, as Kafka's hiResClockMs.

It is the only reading of a clock in this package, and only a default: every timer takes its clock as an argument.
"""

import time


def hi_res_clock_ms() -> float:
    """Monotonic milliseconds with fraction. Not wall-clock time: only differences mean something."""
    return time.monotonic_ns() / 1e6
