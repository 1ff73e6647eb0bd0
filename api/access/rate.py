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
        self._callers_max = callers_max
        self._even_s: OrderedDict[str, float] = OrderedDict()
        self.resize(per_s, burst)

    def resize(self, per_s: float, burst: int) -> None:
        """Another rate and burst from now on; who is ahead stays ahead. Any thread may call it."""
        interval_s = 1 / per_s if per_s else 0.0
        self._pace = interval_s, (burst - 1) * interval_s  # (interval, how far a caller may be ahead), swapped at once

    def wait_s(self, caller: str, now_s: float) -> float:
        """0.0: go on, and this one is counted; else how many seconds to wait, and it isn't."""
        interval_s, ahead_max_s = self._pace
        if not interval_s:
            return 0.0
        even_s = max(self._even_s.get(caller, now_s), now_s)
        wait_s = even_s - now_s - ahead_max_s
        if wait_s > 0:
            return wait_s
        self._even_s[caller] = even_s + interval_s
        self._even_s.move_to_end(caller)
        if len(self._even_s) > self._callers_max:
            self._even_s.popitem(last=False)
        return 0.0
