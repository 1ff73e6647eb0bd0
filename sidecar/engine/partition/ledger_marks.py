"""Marks of written ledger blocks: the part of the ledger that a recovery of a source partition must read."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from sidecar.model.record import Position

NOWHERE: Final = Position(-1, -1)
REBUILD_SPAN_MS: Final = 3_600_000  # blocks whose entries end within one hour share one rebuild candidate


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """Mark of a written block, with what it still pins: see `LedgerMarks.recovery_pointer`."""

    ledger_offset: int
    offset_max: int  # highest offset settled or put to the overflow, -1 when none
    number: int  # change block, 0 when none
    promoted_max: Position  # highest settled position that has an overflow entry
    acknowledged: (
        int  # the partition's when it was written: its count of what the overflow has knows of no later change
    )


@dataclass(slots=True)
class LedgerMarks:
    """Ledger offsets are those of the partition of the ledger that has this source partition's blocks."""

    start: int = 0  # recovery pointer while no block pins an earlier one: "the ledger's end" as last seen
    block_offset: int = -1  # of the last block
    block_ms: int = 0  # when the last block was written, epoch milliseconds: retention counts from there
    counted: int = 0  # the `acknowledged` of the last written block: those under way have that at least
    committed_watermark: Position = NOWHERE  # as a recovery would find it: up to here the overflow needs nothing
    marks: deque[LedgerMark] = field(default_factory=deque)
    rebuilds: deque[tuple[int, int]] = field(default_factory=deque)  # (ledger offset, latest due of its entries)

    def written(self, mark: LedgerMark, entries_latest_due_ms: int) -> None:
        """Note a block that is in the ledger. `entries_latest_due_ms`: of its overflow entries, -1 without any."""
        self.block_offset = mark.ledger_offset
        self.counted = max(self.counted, mark.acknowledged)
        self.marks.append(mark)
        if entries_latest_due_ms >= 0:
            self._note_rebuild(mark.ledger_offset, entries_latest_due_ms)

    def _note_rebuild(self, ledger_offset: int, latest_due_ms: int) -> None:
        rebuilds = self.rebuilds
        if not rebuilds or latest_due_ms > rebuilds[-1][1] + REBUILD_SPAN_MS:
            rebuilds.append((ledger_offset, latest_due_ms))
        elif latest_due_ms > rebuilds[-1][1]:
            rebuilds[-1] = (rebuilds[-1][0], latest_due_ms)

    def recovery_pointer(self, low: int, watermark: Position, acknowledged: int) -> int:
        """First ledger offset that a recovery must replay: of a block with an offset >= `low`, a change >
        `acknowledged`, or a promoted record > `watermark`.

        A change that only this partition knows to be acknowledged counts as one that isn't: a block under way may be
        the last, and say so.
        """
        marks, acknowledged = self.marks, min(acknowledged, self.counted)
        while marks:
            mark = marks[0]
            if mark.offset_max >= low or mark.number > acknowledged or mark.promoted_max > watermark:
                return mark.ledger_offset
            self.start = mark.ledger_offset + 1
            marks.popleft()
        return self.start

    def rebuild_pointer(self) -> int | None:
        """First ledger offset with an overflow entry that is still ahead of the watermark, as a recovery would find it;
        None: there is none.
        """
        rebuilds, due_ms = self.rebuilds, self.committed_watermark.due_ms
        while rebuilds and rebuilds[0][1] < due_ms:
            rebuilds.popleft()
        return rebuilds[0][0] if rebuilds else None
