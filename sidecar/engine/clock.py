"""The time that the engine goes by: never early by the broker's clock, never standing still.

Three clocks take part. *Boot* time counts evenly from the machine's start, through a suspend too, and nobody
can set it. *Wall* time is what the machine believes, and may be set to anything at any moment. *Broker* time
stamps the records that are emitted: early or late is judged by it. It is seen only through ledger blocks: a
block sent at boot time s, stamped b by the broker (LogAppendTime) and acknowledged at boot time a was stamped
between s and a, so broker time minus boot time lies within [b - a, b - s]. That is one observation.

    time = boot + min(anchor, limit)

* The *anchor* is wall minus boot. A small difference between the two is slewed away. A large one is a step of
  the wall clock, and is followed at once as far as the last observation surely says the same, no further.
  Without that, time goes on evenly as if nothing had happened: nothing fires early, nothing stalls. Only back it is
  slewed, too, where an observation is too wide to tell.
* The *limit* is how far the broker's clock can be ahead of boot time at most. Every observation may lower it
  at once. It rises only when all observations of `RECOVERY_MS` say that it is too low, because the ledger's
  leaders are several machines and the slowest of them is the one that must not see a record early.

Example: anchor 1,000; a block is sent at boot 50, stamped 1,030, acknowledged at 54: the broker is 976 to 980
ahead of boot time, so the limit becomes 980, time is boot + 980, and `skew_ahead_ms` is 20.

Time steps back in two cases: an observation lowers the limit, or a step back of the wall clock is confirmed. What has
fired by then is looked at again (`engine/emission/emitter.py`), and no wait gets much longer (`is_over`).
"""

import time
from math import inf
from typing import Final, Protocol

STEP_MS: Final = 100.0
"""A wall clock this far off has been set, not adjusted."""

SLEW: Final = 0.005
"""How much faster or slower than boot time ours may run: five times what NTP does to a machine's clock."""

RECOVERY_MS: Final = 5_000.0
"""How long all observations must say that the limit is too low."""

PROBE_MS: Final = 1_000.0
"""How often `probe_due` asks for an observation."""

_JITTER_MS: Final = 0.5  # two readings of the same clocks differ by the time between them
_SLEW_GAP_MS: Final = 1_000.0  # after a pause, slew as if only this much had passed: a small step is no jump
_BOOT_MS_AHEAD_MAX: Final = 86_400_000.0
_READINGS_MAX: Final = 4
_READING_NS_MAX: Final = 200_000
_NS_PER_MS: Final = 1e6


class Clock:
    """Time in epoch milliseconds, from readings of wall and boot time and observations of the broker's.

    Pure: it reads no clock itself. One thread's own.
    """

    __slots__ = (
        "_anchor",
        "_boot_ms",
        "_ceiling",
        "_contradicted_ms",
        "_floor",
        "_gap",
        "_limit",
        "_probe_ms",
        "_rise",
    )

    def __init__(self, wall_ms: float, boot_ms: float) -> None:
        self._anchor = wall_ms - boot_ms
        self._boot_ms = boot_ms
        self._gap = 0.0
        self._limit = inf
        self._floor = -inf  # the last observation: broker minus boot is at least this
        self._ceiling = inf  # and at most this
        self._rise = inf  # where the limit goes when nothing speaks for it any more; inf: something does
        self._contradicted_ms = boot_ms
        self._probe_ms = boot_ms

    def read(self, wall_ms: float, boot_ms: float) -> float:
        """The time. On the hot path: every turn of the engine begins with it."""
        anchor = self._anchor
        self._gap = gap = wall_ms - boot_ms - anchor
        if gap > _JITTER_MS or gap < -_JITTER_MS:
            anchor = self._anchor = anchor + self._correction(gap, boot_ms - self._boot_ms)
        self._boot_ms = boot_ms
        return boot_ms + (anchor if anchor < self._limit else self._limit)

    def observe(self, sent_boot_ms: float, broker_ms: float, acknowledged_boot_ms: float) -> None:
        """A block's append time, and the *boot* times before it was sent and after it was acknowledged.

        Boot times, because a block may be on its way while our own time steps. Raises ValueError when they
        cannot be boot times. An append time that is not known (-1) is no observation.
        """
        if acknowledged_boot_ms > self._boot_ms + _BOOT_MS_AHEAD_MAX:
            raise ValueError(f"{acknowledged_boot_ms} is no boot time: it is {self._boot_ms} now")
        if broker_ms <= 0:
            return
        self._probe_ms = max(self._probe_ms, acknowledged_boot_ms + PROBE_MS)
        self._ceiling = ceiling = broker_ms - sent_boot_ms
        self._floor = floor = min(broker_ms - acknowledged_boot_ms, ceiling)
        if ceiling < self._limit:
            self._limit = ceiling
            self._rise = inf
        elif floor <= self._limit:
            self._rise = inf
        elif self._rise == inf:
            self._rise = floor
            self._contradicted_ms = acknowledged_boot_ms
        else:
            self._rise = min(self._rise, floor)
            if acknowledged_boot_ms - self._contradicted_ms >= RECOVERY_MS:
                self._limit = self._rise
                self._rise = inf

    def probe_due(self, boot_ms: float) -> bool:
        """Whether to write a ledger block, an empty one if need be, only for the sake of its append time.

        True at most once a second, while time hangs on the broker's: nothing was observed yet, the wall clock
        has made a step that is not confirmed, or we are ahead. Without it, a broker wrong only for a moment
        could hold back the very emissions that would show that it is right again.
        """
        settled = self._anchor <= self._limit < inf and not self.unconfirmed_step_ms
        if settled or boot_ms < self._probe_ms:
            return False
        self._probe_ms = boot_ms + PROBE_MS
        return True

    @property
    def skew_ahead_ms(self) -> float:
        """How far our time would certainly be ahead of the broker's: what `read` holds back."""
        return max(0.0, self._anchor - self._limit)

    @property
    def unconfirmed_step_ms(self) -> float:
        """The step of the wall clock, seen at the last reading, that no observation confirms; 0 when none."""
        return self._gap if abs(self._gap) > STEP_MS else 0.0

    def _correction(self, gap: float, passed_ms: float) -> float:
        """How much of the gap between wall time and ours to close now."""
        if abs(gap) > STEP_MS:
            confirmed = self._confirmed(gap)
            if confirmed:
                self._gap = gap - confirmed
                if confirmed > 0:
                    # Wall and broker agree against the old limit: no need to wait for more observations.
                    self._limit = self._ceiling
                return confirmed
            if gap > 0 or not self._floor <= self._anchor + gap <= self._ceiling < inf:
                return 0.0
            # The broker's time is not known well enough to tell the two apart: go back slowly, which is never early.
        room = SLEW * min(passed_ms, _SLEW_GAP_MS)
        return max(-room, min(room, gap))

    def _confirmed(self, step: float) -> float:
        """How much of a step the last observation confirms: none unless we are certainly off that way."""
        if step > 0 and self._floor > self._anchor:  # not to the ceiling: the broker may be behind it
            return min(step, self._floor - self._anchor)
        if step < 0 and self._ceiling < self._anchor:
            return max(step, self._floor - self._anchor)
        return 0.0


class SystemTime:
    """The machine's clocks. Nothing else in the sidecar's engine reads one."""

    __slots__ = ("_boot_clock",)

    def __init__(self) -> None:
        self._boot_clock = _boot_clock()

    def read(self) -> tuple[float, float]:
        """Wall and boot time of one moment, in milliseconds."""
        wall, boot, between = self._reading()
        for _ in range(_READINGS_MAX):
            # A thread switch between the two clocks would look like a step of the wall clock.
            if between <= _READING_NS_MAX:
                break
            wall, boot, between = self._reading()
        return wall / _NS_PER_MS, boot / _NS_PER_MS

    def boot_ms(self) -> float:
        """Boot time alone, for `Clock.observe`."""
        return time.clock_gettime_ns(self._boot_clock) / _NS_PER_MS

    def monotonic_s(self) -> float:
        """Seconds, as other threads measure how long ago something was."""
        return time.monotonic()

    def _reading(self) -> tuple[int, int, int]:
        before = time.clock_gettime_ns(self._boot_clock)
        wall = time.time_ns()
        boot = time.clock_gettime_ns(self._boot_clock)
        return wall, boot, boot - before


def _boot_clock() -> int:
    """CLOCK_BOOTTIME; where there is none CLOCK_MONOTONIC, to which a suspend is a step of the wall clock."""
    clock: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    try:
        time.clock_gettime_ns(clock)
    except OSError:
        return time.CLOCK_MONOTONIC
    return clock


EARLIEST_MS: Final = 946_684_800_000  # the year 2000: what is stamped earlier has no clock (the mock says 1234)


class Readings(Protocol):
    """A machine's clocks (`SystemTime`)."""

    def read(self) -> tuple[float, float]: ...

    def monotonic_s(self) -> float: ...


class Timekeeper:
    """The engine's clock as it runs: `Clock` fed with the machine's readings. Owned by the engine's thread."""

    def __init__(self, system: Readings | None = None) -> None:
        self._system = system or SystemTime()
        self._clock = Clock(*self._system.read())
        self.is_known = False

    def now_ms(self) -> int:
        """Epoch milliseconds, rounded down, never ahead of the broker's once that `is_known`: due here is due there."""
        return int(self._clock.read(*self._system.read()))

    def boot_ms(self) -> float:
        """Time since the machine's start, which nobody can set."""
        return self._system.read()[1]

    def observe(self, sent_boot_ms: float, broker_ms: float, acknowledged_boot_ms: float) -> None:
        """A ledger block's append time, between two boot times of ours."""
        self.is_known = True
        if broker_ms >= EARLIEST_MS:
            self._clock.observe(sent_boot_ms, broker_ms, acknowledged_boot_ms)

    def latest_ms(self, sent_boot_ms: float, broker_ms: float) -> float:
        """How late it can be by the broker's clock, which stamped a block that was sent then. On any thread."""
        return self.boot_ms() + broker_ms - sent_boot_ms if broker_ms >= EARLIEST_MS else inf

    def probe_due(self) -> bool:
        """Whether a block should be written only to see the broker's clock."""
        return self._clock.probe_due(self.boot_ms())

    def monotonic_s(self) -> float:
        """As other threads measure how long ago something was."""
        return self._system.monotonic_s()

    @property
    def skew_ahead_ms(self) -> float:
        """How far this machine's clock is ahead of the broker's."""
        return self._clock.skew_ahead_ms
