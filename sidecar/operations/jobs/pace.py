"""How fast a redrive may go, and when it must stop. Pure: time is an argument."""

from typing import Final

BURST_S: Final = 0.25  # what could not be sent in time is made up for no faster than this much at once
RAMP_START: Final = 0.1
STOP_SAMPLE: Final = 20  # a run is judged as if it had sent so many: the first failure alone stops nothing


class Pace:
    """Letters that may be sent by now, from a tenth of `rate` a second up to all of it over `ramp_s`. 0: no limit."""

    def __init__(self, rate: float, ramp_s: float, now_s: float) -> None:
        self._rate = rate
        self._ramp_s = ramp_s
        self._start_s = self._last_s = now_s
        self._allowed = 0.0

    def allowed(self, now_s: float, most: int) -> int:
        """How many may be sent now, up to `most`."""
        if not self._rate:
            return most
        speed = self._speed(now_s)
        self._allowed = min(self._allowed + speed * (now_s - self._last_s), max(speed * BURST_S, 1.0))
        self._last_s = now_s
        return min(int(self._allowed), most)

    def sent(self, count: int) -> None:
        """Count records that were sent: they use up what the rate allows."""
        self._allowed -= count

    def _speed(self, now_s: float) -> float:
        if self._ramp_s <= 0:
            return self._rate
        share = RAMP_START + (1 - RAMP_START) * (now_s - self._start_s) / self._ramp_s
        return self._rate * min(share, 1.0)


def must_stop(sent: int, failed_again: int, share: float, is_canary: bool) -> bool:
    """Whether more than `share` of what a leg has sent failed again."""
    return failed_again > share * (sent if is_canary else max(sent, STOP_SAMPLE))
