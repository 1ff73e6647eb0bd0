"""How many records a transaction may have: of one that the brokers don't acknowledge in time, all is emitted again.

A client quota makes every record take its time. Without a limit each transaction would have what piled up during the
one before, take too long, and be aborted with all that the brokers had taken of it.
"""

from typing import Final

MOST: Final = 1_000_000  # what the client's queue takes
GROW_S: Final = 5.0  # a quota lets some through at once after a rest: that is no sign of its end
GROW_SLOWLY_S: Final = 30.0  # where brokers take their time for whatever they get


class Fit:
    """`most`: records in a transaction, by what came of the last ones."""

    def __init__(self) -> None:
        self.most = MOST
        self._changed_s = self._slow_s = 0.0

    def learn(self, sent: int, taken: int, at_once: bool, now_s: float) -> None:
        """From a transaction with so many records. `taken`: acknowledged when the others were given up, 0 where that
        says nothing of its size. `at_once`: there was time for more.
        """
        if taken:
            self.most, self._changed_s = max(taken // 2, 1), now_s
            return
        if sent >= self.most and not at_once:
            self._slow_s = now_s
        fits = now_s - max(self._changed_s, self._slow_s) >= GROW_S
        if fits or now_s - self._changed_s >= GROW_SLOWLY_S:
            self.most, self._changed_s = min(2 * self.most, MOST), now_s
