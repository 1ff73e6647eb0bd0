"""One record's line in a ledger block, with the names it has in answers."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from sidecar.ledger.block import Block
from sidecar.model.record import Outcome, Place

_ACTIONS: Final = frozenset((Outcome.CANCELLED, Outcome.REPLACED, Outcome.APPLIED, Outcome.MOVED))


class LedgerPlace(NamedTuple):
    """Where a block lies in the ledger, and when the broker appended it (epoch ms; -1: not known)."""

    partition: int
    offset: int
    appended_ms: int = -1


class Settlement(NamedTuple):
    """How one record left. `id` is None and `reason` empty where the ledger has none; times are epoch ms.

    `related` is the offset of the record that this one acted on, or that acted on it, as the ledger has it
    (`sidecar/ledger/block.py`), -1 for none. `due_ms` is the due time it had in the end; `settled_ms` when its
    block was written, by its replica's clock.
    """

    place: Place
    outcome: Outcome
    due_ms: int
    settled_ms: int
    policy: str
    target: str
    attempt: int
    id: str | None
    reason: str
    related: int
    ledger: LedgerPlace
    in_overflow: bool = False  # the overflow had an entry for it

    @property
    def is_move(self) -> bool:
        """The record goes on under another offset."""
        return self.outcome is Outcome.MOVED and self.related >= 0

    @property
    def fact_ms(self) -> int:
        """When it was a fact in the ledger: by the broker's clock where that is known."""
        return max(self.settled_ms, self.ledger.appended_ms)


class Entry(NamedTuple):
    """A record that went to the overflow, by this block; times are epoch ms."""

    place: Place
    due_ms: int
    written_ms: int
    policy: str
    target: str
    attempt: int
    id: str | None
    ledger: LedgerPlace


def action_offsets(block: Block) -> tuple[int, ...]:
    """Offsets of records that a control record settled or moved, or that are control records."""
    settled = block.settled
    if _ACTIONS.isdisjoint(settled.outcomes):
        return ()
    acted = (offset for offset, outcome in zip(settled.offsets, settled.outcomes, strict=True) if outcome in _ACTIONS)
    return (*acted, *block.carried.offsets)


def row_of(block: Block, offset: int) -> int:
    """The row of this settled record, -1 when it isn't in the block."""
    offsets = block.settled.offsets
    row = bisect_left(offsets, offset)
    return row if row < len(offsets) and offsets[row] == offset else -1


def settled_row(ledger: LedgerPlace, block: Block, row: int) -> Settlement:
    """One line of the block's settled columns."""
    settled = block.settled
    offset = settled.offsets[row]
    return Settlement(
        place=Place(block.topic, block.partition, offset),
        outcome=Outcome(settled.outcomes[row]),
        due_ms=settled.dues_ms[row],
        settled_ms=block.written_ms,
        policy=settled.policies[row],
        target=settled.targets[row],
        attempt=settled.attempts[row],
        id=settled.ids.get(offset),
        reason=settled.reasons.get(offset, ""),
        related=settled.related.get(offset, -1),
        ledger=ledger,
        in_overflow=bool(settled.in_overflow[row]),
    )


def receipt_row(ledger: LedgerPlace, block: Block, offset: int) -> Settlement | None:
    """Read what this block says of the record at `offset`; None: nothing.

    A control record that moved another carries it on: its receipt is the other's settlement as moved, with the new due
    time.
    """
    if (row := row_of(block, offset)) >= 0:
        return settled_row(ledger, block, row)
    carried = block.carried
    place = bisect_left(carried.offsets, offset)
    if place == len(carried.offsets) or carried.offsets[place] != offset:
        return None
    moved = next(one for one, by in block.settled.related.items() if by == offset and row_of(block, one) >= 0)
    return settled_row(ledger, block, row_of(block, moved))._replace(due_ms=carried.dues_ms[place])


def settled_rows(ledger: LedgerPlace, block: Block, id: str) -> Iterator[Settlement]:
    """The settled records with this id."""
    for offset, of_record in block.settled.ids.items():
        if of_record == id:
            yield settled_row(ledger, block, row_of(block, offset))


def entry_rows(ledger: LedgerPlace, block: Block, id: str) -> Iterator[Entry]:
    """The records with this id that went to the overflow."""
    entries = block.entries
    for offset, of_record in entries.ids.items():
        if of_record == id:
            row = bisect_left(entries.offsets, offset)
            yield Entry(
                place=Place(block.topic, block.partition, offset),
                due_ms=entries.dues_ms[row],
                written_ms=block.written_ms,
                policy=entries.policies[row],
                target=entries.targets[row],
                attempt=entries.attempts[row],
                id=id,
                ledger=ledger,
            )
