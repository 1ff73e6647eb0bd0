"""The overflow with a stopwatch: how long each call took goes to the metrics."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TypeVar

from sidecar.model.record import Held, LaneId, Position
from sidecar.overflow.interface import Change, Overflow, Promotion

Answer = TypeVar("Answer")
Observe = Callable[[str, float], None]


class TimedOverflow:
    """Passes every call on and observes its seconds under the call's name."""

    def __init__(self, overflow: Overflow, observe: Observe) -> None:
        self._overflow = overflow
        self._observe = observe

    def watermark(self, lane: LaneId) -> int:
        """As `Overflow.watermark`."""
        return self._timed("watermark", lambda: self._overflow.watermark(lane))

    def apply(self, changes: Sequence[Change], now_ms: int) -> None:
        """As `Overflow.apply`."""
        self._timed("apply", lambda: self._overflow.apply(changes, now_ms))

    def promote(self, lane: LaneId, after: Position, until: Position, records_max: int, acknowledged: int) -> Promotion:
        """As `Overflow.promote`."""
        return self._timed("promote", lambda: self._overflow.promote(lane, after, until, records_max, acknowledged))

    def find(self, lane: LaneId, ids: Sequence[str], after: Position, acknowledged: int) -> Mapping[str, Held]:
        """As `Overflow.find`."""
        return self._timed("find", lambda: self._overflow.find(lane, ids, after, acknowledged))

    def tidy(self, lane: LaneId, settled: Position, now_ms: int) -> int:
        """As `Overflow.tidy`."""
        return self._timed("tidy", lambda: self._overflow.tidy(lane, settled, now_ms))

    def _timed(self, call: str, work: Callable[[], Answer]) -> Answer:
        started_s = perf_counter()
        try:
            return work()
        finally:
            self._observe(call, perf_counter() - started_s)
