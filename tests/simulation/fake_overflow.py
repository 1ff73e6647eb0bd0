"""The overflow as a dict: the same answers as `RedisOverflow` (test_fake_overflow.py), without a server.

What a server can do to a caller is done by `failing`: refuse, or do as asked and lose the answer.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence

from sidecar.overflow import Change, OverflowLoss, Promotion
from sidecar.record import Held, LaneId, Position

Failing = Callable[[str, bool], None]  # (method, before or after its effect): raises what the caller is to see


def _never(method: str, after: bool) -> None:
    """All is well."""


class FakeOverflow:
    """Shared by all replicas, as a server is; outlives them."""

    def __init__(self, failing: Failing = _never) -> None:
        self.hw: dict[LaneId, int] = defaultdict(int)
        self.records: dict[LaneId, list[Held]] = defaultdict(list)  # sorted by position
        self.failing = failing

    def watermark(self, lane: LaneId) -> int:
        """See `Overflow.watermark`."""
        self.failing("watermark", False)
        return self.hw[lane]

    def apply(self, changes: Sequence[Change], now_ms: int) -> None:
        """See `Overflow.apply`."""
        self.failing("apply", False)
        for change in changes:
            hw = self.hw[change.lane]
            if hw < change.number - 1:
                raise OverflowLoss(change.lane, hw, f"block {change.number} comes next, but only {hw} are there")
            if hw == change.number - 1:
                self.hw[change.lane] = change.number
                records = self.records[change.lane]
                records += change.records
                records.sort(key=lambda held: held.position)
            self.failing("apply", True)

    def promote(self, lane: LaneId, after: Position, until: Position, records_max: int, acknowledged: int) -> Promotion:
        """See `Overflow.promote`."""
        self.failing("promote", False)
        if self.hw[lane] < acknowledged:
            raise OverflowLoss(lane, self.hw[lane], f"{acknowledged} blocks were acknowledged")
        records = self.records[lane]
        first = bisect_right(records, after, key=lambda held: held.position)
        last = bisect_right(records, until, key=lambda held: held.position)
        found = records[first : min(last, first + records_max)]
        cursor = until if last - first <= records_max else found[-1].position
        self.failing("promote", True)
        return Promotion(found, cursor, sum(held.size for held in found))

    def tidy(self, lane: LaneId, settled: Position, now_ms: int) -> int:
        """See `Overflow.tidy`. Slots are not modelled: everything settled goes at once."""
        self.failing("tidy", False)
        self.records[lane] = [held for held in self.records[lane] if held.position > settled]
        self.failing("tidy", True)
        return 0
