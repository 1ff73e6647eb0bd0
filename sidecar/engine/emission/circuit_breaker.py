"""A circuit breaker for one target. Pure: time is an argument.

    closed ---- the share of retries that came back as failures is too high ----> open
      ^                                                                            | after `open`, twice as long
      |                                                                            v each time, up to 16 times
      +-- ramping up <-- the probes didn't come back within `open` -- half-open: a few probes go
                                                                          |
                                                                          +-- they did: open again

Counted are retries: what was emitted as one, and what comes to the retry path with an attempt behind it that tickover
emitted. First failures say nothing here, since nobody knows how many records they are of.
"""

from collections import deque
from enum import StrEnum
from typing import Final

from policies.table import BreakerRule
from sidecar.model.ports import is_over

ALL: Final = 1 << 30
SLOTS: Final = 10  # of a window, which moves on by one of them
LONGER_MAX: Final = 16
RAMP_STEP_MS: Final = 1_000
RAMP_STEPS: Final = 10  # twice as many in each, then all


class State(StrEnum):
    """State of a breaker: closed lets retries through, half-open a few as probes, open none."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class CircuitBreaker:
    """Times are epoch milliseconds."""

    __slots__ = ("_emitted", "_failed", "_left", "_longer", "_ramp", "_slots", "_until_ms", "rule", "state")

    def __init__(self, rule: BreakerRule) -> None:
        self.rule = rule
        self.state = State.CLOSED
        self._slots: deque[list[int]] = deque()  # since when, emitted, failed
        self._longer = 1
        self._until_ms = 0  # open, or this step: till then; half-open: when the verdict is due, 0 without a probe yet
        self._left = 0  # half-open: probes; ramping up: records of this step
        self._emitted = self._failed = 0  # half-open
        self._ramp = 0  # the step, 0: not ramping up

    def allowed(self, now_ms: int) -> int:
        """How many retries may go now."""
        self.pass_time(now_ms)
        if self.state is State.HALF_OPEN:
            return self._left
        if self.state is State.OPEN:
            return 0
        if not self._ramp:
            return ALL
        if is_over(now_ms, self._until_ms, RAMP_STEP_MS):
            self._step_up(now_ms)
        return self._left if self._ramp else ALL

    def pass_time(self, now_ms: int) -> None:
        """Come to the state that follows by time alone, whether or not retries wait."""
        if self.state is State.OPEN and is_over(now_ms, self._until_ms, self.rule.open_ms * LONGER_MAX):
            self.state = State.HALF_OPEN
            self._left, self._emitted, self._failed, self._until_ms = self.rule.probes, 0, 0, 0
        elif self.state is State.HALF_OPEN and self._until_ms and is_over(now_ms, self._until_ms, self.rule.open_ms):
            if self._failed >= max(1.0, self.rule.failures * self._emitted):
                self._open(now_ms)
            else:
                self.state = State.CLOSED
                self._step_up(now_ms)

    def try_now(self, now_ms: int) -> None:
        """End the time for which it is open: the next retries go as probes. One that isn't open stays as it is."""
        if self.state is State.OPEN:
            self._until_ms = now_ms
            self.pass_time(now_ms)

    def open_now(self, now_ms: int) -> None:
        """Open it as too many failures would, for longer where it is tried or ramps up. An open one begins anew."""
        if self.state is State.OPEN:
            self._until_ms = now_ms + self.rule.open_ms * self._longer
        else:
            self._open(now_ms)

    def emitted(self, count: int, now_ms: int) -> None:
        """Count retries that went to the target: no more than were allowed."""
        if not count:
            return
        self._left -= count
        if self.state is State.HALF_OPEN:
            self._emitted += count
            self._until_ms = now_ms + self.rule.open_ms
        else:
            self._slot(now_ms)[1] += count

    def failed(self, now_ms: int) -> None:
        """One came back. While half-open that counts for a probe, so none that comes before the first one does."""
        if self.state is State.HALF_OPEN and self._emitted:
            self._failed += 1
            if self._failed >= max(1.0, self.rule.failures * self.rule.probes):
                self._open(now_ms)
        elif self.state is State.CLOSED:
            self._slot(now_ms)[2] += 1
            emitted, failed = (sum(slot[column] for slot in self._slots) for column in (1, 2))
            total = max(emitted, failed)  # what failed may have been emitted before this window
            if total >= self.rule.minimum and failed >= self.rule.failures * total:
                self._open(now_ms)

    def _open(self, now_ms: int) -> None:
        self._longer = 1 if self.state is State.CLOSED and not self._ramp else min(self._longer * 2, LONGER_MAX)
        self.state = State.OPEN
        self._until_ms = now_ms + self.rule.open_ms * self._longer
        self._ramp = self._left = 0
        self._slots.clear()

    def _step_up(self, now_ms: int) -> None:
        self._ramp = (self._ramp + 1) % (RAMP_STEPS + 1)
        self._left = self.rule.probes << self._ramp
        self._until_ms = now_ms + RAMP_STEP_MS

    def _slot(self, now_ms: int) -> list[int]:
        slots, width_ms = self._slots, max(self.rule.window_ms // SLOTS, 1)
        while slots and not now_ms - self.rule.window_ms < slots[0][0] <= now_ms:
            slots.popleft()
        if not slots or now_ms - slots[-1][0] >= width_ms:
            slots.append([now_ms, 0, 0])
        return slots[-1]
