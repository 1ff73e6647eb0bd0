"""A change of the overflow that a ledger block carries; and what is known of one that lacks something."""

from dataclasses import dataclass, field
from typing import Final

from sidecar.model.record import Held, Position, Tombstone


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


FOREIGN: Final = -1


@dataclass(slots=True, eq=False)
class Loss:
    """Redis lacks something of a lane: until it is rebuilt (`rebuild.py`), nothing of the lane is put or promoted.

    The rebuild's thread counts up `records_done` and `ledger_read`; others only read them.
    """

    hw: int  # the last change block that is whole, 0: none is known to be; FOREIGN: nothing that is there is the lane's
    detail: str
    records_total: int = 0  # at most: what the overflow should hold
    records_done: int = 0  # written back, or found there
    ledger_read: int = -1  # offsets of the ledger that were read, -1: the rebuild has not begun
    ledger_total: int = 0  # that have to be; some are read twice
    problem: str = ""  # why the rebuild waits
