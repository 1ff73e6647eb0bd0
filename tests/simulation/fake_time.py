"""Time that a test moves: even for all, while the clocks of machines and brokers may be wrong, and be set."""

from collections.abc import Callable

from sidecar.engine.clock import Timekeeper

EPOCH_MS = 1_700_000_000_000
BOOTED_MS = 50_000  # machines were started so long before


class VirtualClock:
    """Epoch milliseconds. Whatever happens by itself as time passes is called from `advance`."""

    def __init__(self, now_ms: int = EPOCH_MS) -> None:
        self.now_ms = now_ms
        self.turn_ms = now_ms  # what the engine whose turn it is was told; waiting within a turn makes it old
        self.brokers_ahead_ms = 0  # of this time
        self.passing: list[Callable[[], None]] = []
        self._began_ms = now_ms

    @property
    def broker_ms(self) -> int:
        """Time that brokers stamp records with, epoch ms."""
        return self.now_ms + self.brokers_ahead_ms

    @property
    def boot_ms(self) -> float:
        """Milliseconds since the machines were started."""
        return float(self.now_ms - self._began_ms + BOOTED_MS)

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        for step in list(self.passing):
            step()


class Machine:
    """Clocks of a machine, as `SystemTime` reads them."""

    def __init__(self, clock: VirtualClock, ahead_ms: float = 0.0) -> None:
        self.clock = clock
        self.ahead_ms = ahead_ms  # its wall clock

    def read(self) -> tuple[float, float]:
        return self.clock.now_ms + self.ahead_ms, self.clock.boot_ms

    def monotonic_s(self) -> float:
        return self.clock.now_ms / 1_000


class FakeTime(Timekeeper):
    """`Time` as it runs, on a machine that a test has made."""

    def __init__(self, clock: VirtualClock, machine: Machine | None = None) -> None:
        super().__init__(machine or Machine(clock))
        self._virtual = clock
        self._latest_ms: float | None = None  # of the brokers' clock less boot time, as last seen

    def observe(self, sent_boot_ms: float, broker_ms: float, acknowledged_boot_ms: float) -> None:
        assert sent_boot_ms <= acknowledged_boot_ms
        super().observe(sent_boot_ms, broker_ms, acknowledged_boot_ms)
        self._latest_ms = broker_ms - sent_boot_ms

    def broker_ms_max(self) -> float:
        """How late it can be by the brokers' clock, as far as its process can know: nothing may be due after."""
        if self._latest_ms is None:
            return self._virtual.broker_ms
        return self._virtual.boot_ms + self._latest_ms
