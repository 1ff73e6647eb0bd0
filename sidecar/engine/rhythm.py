"""When the settlement takes its steps: once an interval. Half an interval before a step it may prepare the next one.

After a turn, records that wait in the client may be flushed: a quiet engine has the time, a busy one takes it seldom.
"""

from collections.abc import Collection
from typing import Final

from sidecar.engine.commit.interval import EmissionApart
from sidecar.engine.commit.settlement import Settlement
from sidecar.engine.partition.partition import SourcePartition

QUIET: Final = 100  # records in a turn of the engine: with fewer, it has time to wait
BUSY_MS: Final = 10  # between two times that an engine waits that has none to spare


class Rhythm:
    """Owned by the engine's thread."""

    def __init__(self, settlement: Settlement, apart: EmissionApart, interval_ms: int) -> None:
        self._settlement = settlement
        self._apart = apart
        self._interval_ms = interval_ms
        self._has_begun = False
        self._settled_ms = 0
        self._is_ahead = False  # the next step is prepared
        self._now_ms = 0
        self._hastened_ms = 0

    def step(self, lanes: Collection[SourcePartition], now_ms: int) -> None:
        """Let the settlement take its step, or prepare the next one, if it is time for that in this turn."""
        self._now_ms = now_ms
        rested_ms = now_ms - self._settled_ms
        begins = bool(lanes) and not self._has_begun  # with the block that shows the broker's clock: all wait for it
        if begins or rested_ms >= self._interval_ms or rested_ms < 0:
            if self._settlement.step(lanes, now_ms, self._apart):
                self._settled_ms = now_ms
                self._is_ahead = False
                self._has_begun = bool(lanes)
        elif not self._is_ahead and rested_ms >= self._interval_ms // 2:
            self._is_ahead = self._settlement.write_ahead(lanes, now_ms)

    def hasten(self, done: int) -> bool:
        """After a turn in which so much was done. True: some time was used."""
        quiet = done < QUIET
        if not quiet and 0 <= self._now_ms - self._hastened_ms < BUSY_MS:
            return False
        hastened = self._settlement.hasten(quiet)
        if hastened:
            self._hastened_ms = self._now_ms
        return hastened
