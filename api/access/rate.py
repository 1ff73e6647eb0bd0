"""How often one caller may call: the generic cell rate algorithm, one number for each caller.

For each caller the time is kept at which all it has asked for so far would have come evenly spaced, 1/rate apart. Who
is ahead of that by more than the burst allows has to wait for the difference.
"""

from collections import OrderedDict
from typing import Final

CALLERS_MAX: Final = 10_000  # remembered; the one that called longest ago is forgotten first


class RateLimit:
    """`per_s` requests a second (0: no limit) of each caller, `burst` of them at once."""

    def __init__(self, per_s: float, burst: int, callers_max: int = CALLERS_MAX) -> None:
        self._interval_s = 1 / per_s if per_s else 0.0
        self._ahead_max_s = (burst - 1) * self._interval_s
        self._callers_max = callers_max
        self._even_s: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, caller: str, now_s: float) -> float:
        """0.0: go on, and this one is counted; else how many seconds to wait, and it isn't."""
        if not self._interval_s:
            return 0.0
        even_s = max(self._even_s.get(caller, now_s), now_s)
        wait_s = even_s - now_s - self._ahead_max_s
        if wait_s > 0:
            return wait_s
        self._even_s[caller] = even_s + self._interval_s
        self._even_s.move_to_end(caller)
        if len(self._even_s) > self._callers_max:
            self._even_s.popitem(last=False)
        return 0.0
