"""Noticing that Redis has lost something: each partition's number is asked for, before anybody asks for its records.

What one of Redis' scripts finds missing comes as `OverflowLoss` from whatever was asked (`overflow_worker.py`); both
end in `SourcePartition.note_loss`, and the partition is rebuilt (`rebuild_worker.py`). A recovery begins with the same
question (`recovery.py`).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import NOWHERE
from sidecar.model.ports import is_over
from sidecar.overflow.interface import Overflow, OverflowLoss

CHECK_MS: Final = 1_000
LANES_PER_CALL: Final = 256  # a server answers so many within some milliseconds, and others wait no longer

Asked = Sequence[tuple[SourcePartition, int]]  # and how many change blocks Redis has acknowledged


class LossCheck:
    """One question at a time about all partitions. `ask` runs on Redis' thread, all else on the engine's.

    Redis may have lost data that nobody would ask for in a long time.
    """

    def __init__(self, overflow: Overflow) -> None:
        self.under_way = False
        self._overflow = overflow
        self._due_ms = 0

    def hasten(self) -> None:
        """Ask as soon as may be: a server that was away may have forgotten."""
        self._due_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time for a question, and none is under way."""
        return not self.under_way and is_over(now_ms, self._due_ms, CHECK_MS)

    def begin(self, lanes: Iterable[SourcePartition], now_ms: int) -> Asked:
        """Partitions to ask about: those that have something in Redis, as far as known. Empty: nothing is under way."""
        asked = [(lane, lane.acknowledged) for lane in lanes if lane.overflow_used and lane.loss is None]
        self._due_ms = now_ms + CHECK_MS
        self.under_way = bool(asked)
        return asked

    def ask(self, asked: Asked) -> list[int | OverflowLoss]:
        """Number of the last change block that Redis has of each, or what is missing."""
        lanes, found = [lane.id for lane, _ in asked], list[int | OverflowLoss]()
        for start in range(0, len(lanes), LANES_PER_CALL):
            found += self._overflow.last_applied_of(lanes[start : start + LANES_PER_CALL])
        return found

    def note(self, asked: Asked, answers: Sequence[int | OverflowLoss]) -> None:
        """Note the loss of each partition of which Redis has less than it acknowledged."""
        self.under_way = False
        for (lane, acknowledged), answer in zip(asked, answers, strict=True):
            if lane.dropped:
                continue
            if isinstance(answer, OverflowLoss):
                lane.note_loss(answer.hw, str(answer))
            elif answer < acknowledged:
                lane.note_loss(answer, f"{acknowledged} change blocks were acknowledged, {answer} are there")
            elif answer > acknowledged:  # of ours, on its way when this was asked, or of a stranger: to be looked at
                lane.promotion.vacant = NOWHERE

    def give_up(self) -> None:
        """Ask again as soon as may be: there was no answer."""
        self.under_way = False
        self.hasten()
