"""Offsets of a source partition: how far they were read, and which of them are done.

offsets     base        low (L)              next
             |1 1 1 1 1 1|0 1 1 0 0 1 1 1 0|          `done`, one byte per offset
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

TRIM_BYTES: Final = 1 << 16  # how many done bytes below `low` may stay before they are cut off


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
