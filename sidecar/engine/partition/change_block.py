"""Effects of a ledger block on a lane: a change of the overflow, and a mark of what the block pins.

Also what is known of a lane whose overflow lacks something.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from sidecar.model.record import Held, Position, Tombstone

REBUILD_SPAN_MS: Final = 3_600_000  # blocks whose entries end within one hour share one rebuild candidate


@dataclass(slots=True)
class ChangeBlock:
    """One numbered change of the overflow: committed to the ledger first, then written to Redis.

    After a crash the entries are known from the ledger before the records are: `records` fills up as the source is
    read again, and the block is written once `missing` is empty.
    """

    number: int
    records: dict[int, Held]  # by offset
    missing: set[int]
    earliest: Position
    latest_due_ms: int
    committed: bool = False
    struck: list[Tombstone] = field(default_factory=list)  # copies to be struck out: cancelled, replaced or moved
    sealed: bool = True  # False: its block was in a transaction that was aborted, and must be written again

    @property
    def ready(self) -> bool:
        """Committed, and every record at hand."""
        return self.committed and not self.missing


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """Mark of a written block, with what it still pins: see `Lane.recovery_pointer`."""

    ledger_offset: int
    offset_max: int  # highest offset settled or put to the overflow, -1 when none
    number: int  # change block, 0 when none
    promoted_max: Position  # highest settled position that has an overflow entry
    acknowledged: int  # A when it was written: its count of what the overflow has knows of no later change


FOREIGN: Final = -1


@dataclass(slots=True, eq=False)
class Loss:
    """Redis lacks something of a lane: until it is rebuilt (`rebuild.py`), nothing of the lane is put or promoted.

    The rebuild's thread counts up `records_done`; others only read it.
    """

    hw: int  # the last change block that is whole, 0: none is known to be; FOREIGN: nothing that is there is the lane's
    detail: str
    records_total: int = 0  # at most: what the overflow should hold
    records_done: int = 0
    problem: str = ""  # why the rebuild waits


def note_rebuild(rebuilds: deque[tuple[int, int]], ledger_offset: int, latest_due_ms: int) -> None:
    """Note that the block at this offset has overflow entries, the last of them due then."""
    if not rebuilds or latest_due_ms > rebuilds[-1][1] + REBUILD_SPAN_MS:
        rebuilds.append((ledger_offset, latest_due_ms))
    elif latest_due_ms > rebuilds[-1][1]:
        rebuilds[-1] = (rebuilds[-1][0], latest_due_ms)
