"""How far a source partition has come: its offsets, its windows of promotion, its blocks in the ledger.

`OffsetMap` has which offsets were read and which are done; `PromotionWindows` what Redis was asked for and gave;
`LedgerMarks` which part of the ledger a recovery must read.

offsets     base        low (L)              next
             |1 1 1 1 1 1|0 1 1 0 0 1 1 1 0|          `done`, one byte per offset
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.model.record import Held, Position, Window, just_before

TRIM_BYTES: Final = 1 << 16  # how many done bytes below `low` may stay before they are cut off
NOWHERE: Final = Position(-1, -1)


@dataclass(slots=True)
class OffsetMap:
    """An offset's byte is 1 only when the fact is in the ledger: the record is settled, or the overflow has it."""

    base: int = 0
    done: bytearray = field(default_factory=bytearray)
    low: int = 0  # all below is done
    next: int = 0  # the offset after the last one that was read

    def __post_init__(self) -> None:
        self.low, self.next = max(self.low, self.base), max(self.next, self.base)

    def append(self, offset: int) -> bool:
        """Note that the record at `next` was read; False when it is done already."""
        done, index = self.done, offset - self.base
        self.next = offset + 1
        if index < len(done):
            return not done[index]
        done.append(0)
        return True

    def append_run(self, offsets: Sequence[int]) -> bool:
        """Note records that follow the last one and each other, all new; False, and nothing noted, if they don't."""
        first, count = offsets[0], len(offsets)
        if first != self.next or first - self.base != len(self.done) or offsets != list(range(first, first + count)):
            return False
        self.done += bytes(count)
        self.next = first + count
        return True

    def close_gap(self, until: int) -> None:
        """Count offsets from `next` to `until` as done: the source doesn't have them (control records, compaction)."""
        done, first, index = self.done, self.next - self.base, until - self.base
        known = min(index, len(done))
        if known > first:
            done[first:known] = b"\x01" * (known - first)
        if index > len(done):
            done.extend(b"\x01" * (index - len(done)))

    def is_done(self, offset: int) -> bool:
        """True when the record at an offset that was read is settled, or the overflow has it."""
        return offset < self.base or self.done[offset - self.base] == 1

    def is_open(self, offset: int) -> bool:
        """True while only the source has it: it is not settled, and the overflow hasn't acknowledged it."""
        index = offset - self.base
        return index >= 0 and not (index < len(self.done) and self.done[index])

    @property
    def open_count(self) -> int:
        """How many of the offsets that were read are open."""
        read_to = min(self.next - self.base, len(self.done))
        return self.done.count(0, self.low - self.base, read_to)

    def advance_low(self) -> int:
        """Move `low` over what is done and forget the bytes far below it. Returns `low`."""
        index = self.done.find(0, self.low - self.base)
        self.low = self.base + (index if index >= 0 else len(self.done))
        passed = min(self.low, self.next) - self.base  # after a crash `low` may be ahead of what was read again
        if passed >= TRIM_BYTES:
            del self.done[:passed]
            self.base += passed
        return self.low


@dataclass(slots=True)
class PromotionWindows:
    """Each record at or before `cursor` is in the wheel. What the overflow has at or before `watermark` is settled."""

    cursor: Position
    windows: deque[Window] = field(default_factory=deque)
    vacant: Position = NOWHERE  # nothing in the overflow lies behind the cursor up to here, as promotions have seen
    promised: Position | None = None  # how far a promotion under way will move the cursor
    skip: dict[int, Position] = field(default_factory=dict)  # has an entry, needs no promotion: settled or in the wheel
    struck: set[int] = field(default_factory=set)  # of `skip`: left ahead of their promotion, not settled yet
    overtaken: set[int] = field(default_factory=set)  # of `skip`: taken out on the way to the overflow, not settled yet
    overtaken_sealed: set[int] = field(default_factory=set)  # of these: blocks under way settle them
    passed_over: int = 0  # copies in the overflow that are at an open offset: never promoted

    @property
    def reach(self) -> Position:
        """How far the wheel will have everything: the cursor, or where a promotion under way will move it."""
        return self.promised or self.cursor

    @property
    def watermark(self) -> Position:
        """The watermark: everything in the overflow at or before this position is settled."""
        reached = self.windows[0].start if self.windows else self.cursor
        if self.struck:  # who has left ahead of it stays ahead of it until the ledger says so
            reached = min(reached, just_before(min(map(self.skip.__getitem__, self.struck))))
        return reached

    @property
    def unsettled(self) -> int:
        """How many promoted records are not settled."""
        return sum(window.unsettled for window in self.windows)

    def without_skipped(self, records: Sequence[Held]) -> list[Held]:
        """Records that a promotion copied, less those that need none."""
        skip = self.skip
        return [held for held in records if held.offset not in skip] if skip else list(records)

    def strike(self, held: Held, is_open: bool) -> None:
        """Note that a record leaves ahead of its promotion. `is_open`: the overflow hasn't acknowledged it."""
        self.skip[held.offset] = held.position
        self.struck.add(held.offset)
        if is_open:
            self.overtaken.add(held.offset)

    def overtake(self, records: Iterable[Held]) -> None:
        """Note that records go into the wheel ahead of their promotion: it passes their copies over."""
        for held in records:
            self.skip[held.offset] = held.position
            self.overtaken.add(held.offset)


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
    from_redis: int = 0  # a number that only Redis has said so far: another recovery may find another one there
    marks: deque[LedgerMark] = field(default_factory=deque)
    rebuilds: deque[tuple[int, int]] = field(default_factory=deque)  # (ledger offset, latest due of its entries)

    def committed(self, acknowledged: int) -> None:
        """Note a commit that says so: every recovery would find it, whatever Redis has by then."""
        if acknowledged >= self.from_redis:
            self.from_redis = 0

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
