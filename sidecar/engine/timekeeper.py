"""The engine's clock as it runs: `Clock` fed with the machine's readings."""

from math import inf
from typing import Final, Protocol

from sidecar.engine.clock import Clock, SystemTime

EARLIEST_MS: Final = 946_684_800_000  # the year 2000: what is stamped earlier has no clock (the mock says 1234)


class Readings(Protocol):
    """A machine's clocks (`SystemTime`)."""

    def read(self) -> tuple[float, float]: ...

    def monotonic_s(self) -> float: ...


class Timekeeper:
    """Owned by the engine's thread."""

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
