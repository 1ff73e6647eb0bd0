"""Time that a test moves: one clock for all replicas and the broker."""

from collections.abc import Callable

EPOCH_MS = 1_700_000_000_000


class VirtualClock:
    """Epoch milliseconds. Whatever happens by itself as time passes is called from `advance`."""

    def __init__(self, now_ms: int = EPOCH_MS) -> None:
        self.now_ms = now_ms
        self.turn_ms = now_ms  # what the engine whose turn it is was told; waiting within a turn makes it old
        self.passing: list[Callable[[], None]] = []

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        for step in list(self.passing):
            step()


class FakeTime:
    """`Time` over a virtual clock; the broker's clock is the same, so there is no skew."""

    is_known = True
    skew_ahead_ms = 0.0

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.observed = 0

    def now_ms(self) -> int:
        return self._clock.now_ms

    def boot_ms(self) -> float:
        return float(self._clock.now_ms)

    def observe(self, sent_boot_ms: float, broker_ms: float, acknowledged_boot_ms: float) -> None:
        assert sent_boot_ms <= broker_ms <= acknowledged_boot_ms
        self.observed += 1

    def probe_due(self) -> bool:
        return False

    def monotonic_s(self) -> float:
        return self._clock.now_ms / 1_000
