"""How many records a transaction may have: of one that the brokers don't acknowledge in time, all is emitted again.

A client quota makes every record take its time. Without a limit each transaction would have what piled up during the
one before, take too long, and be aborted with all that the brokers had taken of it.
"""

from typing import Final

MOST: Final = 1_000_000  # what the client's queue takes
GROW_S: Final = 5.0  # a quota lets some through at once after a rest: that is no sign of its end
GROW_SLOWLY_S: Final = 30.0  # where brokers take their time for anything, or little is due


class TransactionSizeLimit:
    """`most`: records in a transaction, by what came of the last ones."""

    def __init__(self) -> None:
        self.most = MOST
        self._changed_s = self._slow_s = 0.0

    def learn(self, sent: int, taken: int, at_once: bool, now_s: float) -> None:
        """From a transaction with so many records. `taken`: acknowledged when the others were given up, 0 where that
        says nothing of its size. `at_once`: there was time for more.
        """
        if taken:
            self.most, self._changed_s = max(min(taken // 2, self.most), 1), now_s
            return
        if not at_once:
            self._slow_s = now_s
        if sent >= self.most and now_s - max(self._changed_s, self._slow_s) >= GROW_S:
            self.most, self._changed_s = min(2 * self.most, MOST), now_s
        elif now_s - self._changed_s >= GROW_SLOWLY_S:  # by less than what would be too much for certain
            self.most, self._changed_s = min(self.most + (self.most + 1) // 2, MOST), now_s
