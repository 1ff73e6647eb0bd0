"""Sealing: what a lane has to say since its last block, as one block for the ledger.

Works column by column: a block has thousands of records, and one call into C for a whole column costs a fraction of
a step per record.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, compress
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sidecar.engine.counters import EngineCounters
from sidecar.engine.partition.change_block import ChangeBlock
from sidecar.engine.partition.partition import NEVER, NOT_DECIDED, SourcePartition
from sidecar.engine.partition.progress import NOWHERE, LedgerMark
from sidecar.engine.partition.quota import Left
from sidecar.ledger.block import NO_ENTRIES, PROMOTED, STRUCK, Block, Entries, Settled, body_of, pack_frame
from sidecar.ledger.commit_metadata import CommitState
from sidecar.ledger.topic import LedgerTopic
from sidecar.model.ports import Time
from sidecar.model.record import NEVER_HELD, Diverted, Held, Outcome, Position, Tombstone, held_id, place_of

SETTLED_PER_BLOCK_MAX: Final = 20_000
SETTLED_WITH_IDS_MAX: Final = 500  # an id may have 1,024 bytes: so many fit, as a rule, with all that is beside them
ENTRIES_PER_BLOCK_MAX: Final = 2_000
ENTRY_BYTES_PER_BLOCK_MAX: Final = 1 << 20

_EMITTED: Final = int(Outcome.EMITTED)
_FIELDS: Final = Held._fields
_offset_of_held: Final = itemgetter(_FIELDS.index("offset"))
_due_ms: Final = itemgetter(_FIELDS.index("due_ms"))
_size: Final = itemgetter(_FIELDS.index("size"))
_policy: Final = itemgetter(_FIELDS.index("policy"))
_target: Final = itemgetter(_FIELDS.index("target"))
_attempt: Final = itemgetter(_FIELDS.index("attempt"))
_trailer: Final = itemgetter(_FIELDS.index("trailer"))


@dataclass(frozen=True, slots=True)
class PendingBlock:
    """A block, and how much of the lane's lists is in it. `value`: the block encoded."""

    block: Block
    value: bytes
    change: ChangeBlock | None
    emitted: int
    departed: int
    promoted: int  # settled records that were in the overflow's care
    silent: list[Diverted]  # of the departed, those that nothing is produced for
    left: Left  # what of its settled records policies with a quota held


class _Rows(NamedTuple):
    """Rows of a lane's lists that go into one block. `again`: the change block that is written again, whole."""

    again: ChangeBlock | None
    batch: list[Held]
    departed: list[Diverted]
    puts: list[Held]

    @property
    def divisible(self) -> bool:
        """A smaller block can be made of some of them."""
        return self.again is None and max(len(self.batch), len(self.departed), len(self.puts)) > 1


def unsealed(lane: SourcePartition) -> ChangeBlock | None:
    """The lane's first change block that has to be written to the ledger again."""
    return next((change for change in lane.changes if not change.sealed), None)


def has_news(lane: SourcePartition) -> bool:
    """The lane has something to say to the ledger."""
    return bool(lane.settled or lane.departed or lane.puts or lane.touched or unsealed(lane))


def probe_clock(lanes: Iterable[SourcePartition], time: Time) -> None:
    """Now and then a block, even an empty one, has to show the broker's clock."""
    lane = next(iter(lanes), None)
    if lane is not None and time.probe_due():
        lane.touch()


def build_block(lane: SourcePartition, now_ms: int, ledger: LedgerTopic) -> PendingBlock:
    """The lane's next block, of as much as `ledger.block_bytes_max` allows.

    The lane stays as it is until `take_sealed`; only the order of its puts may change.
    """
    lane.puts.sort(key=_offset_of_held)  # almost always sorted already: only what waited for its target isn't
    halvings = 0
    while True:
        rows = _rows(lane, halvings)
        block, change, promoted = _block(lane, rows, now_ms, ledger.group)
        body = body_of(block)
        excess = len(body) // ledger.block_bytes_max
        if not excess or not rows.divisible:
            break
        halvings += excess.bit_length()
    silent = [departure for departure in rows.departed if not departure.topic]
    left = _left(rows.batch, rows.departed) if lane.quota is not None else []
    return PendingBlock(block, pack_frame(body), change, len(rows.batch), len(rows.departed), promoted, silent, left)


def _rows(lane: SourcePartition, halvings: int) -> _Rows:
    """Rows for the next block: of each list as many as a block may have, halved so often, but one at least."""
    again = unsealed(lane)
    if again:
        # A record of a change that is written again may have overtaken it: its entry stands before its settlement.
        return _Rows(again, [], [], list(again.records.values()))
    departed = _halved(lane.departed[:SETTLED_WITH_IDS_MAX], halvings)
    if len(departed) < len(lane.departed):
        # A record that was moved must not be settled, or put, in a block before the one that says so.
        return _Rows(None, [], departed, [])
    batch = lane.settled[:SETTLED_PER_BLOCK_MAX]
    if any(map(_trailer, batch)):
        batch = batch[:SETTLED_WITH_IDS_MAX]
    return _Rows(None, _halved(batch, halvings), departed, _halved(_bounded(lane.puts), halvings))


def _halved(rows: list[Any], halvings: int) -> list[Any]:
    return rows[: max(len(rows) >> halvings, 1)] if halvings else rows


def _block(lane: SourcePartition, rows: _Rows, now_ms: int, group: str) -> tuple[Block, ChangeBlock | None, int]:
    """Block of these rows, its change, and how many of its settled records were in the overflow's care."""
    settled = settled_columns(lane, rows.batch, rows.departed)
    promoted = sum(map(lane.offsets.is_done, settled.offsets)) if any(settled.in_overflow) else 0
    struck = struck_out(settled) if lane.promotion.struck else []
    change = rows.again or (_change_block(lane.number + 1, rows.puts, struck) if rows.puts or struck else None)
    carried = sorted((d.carried for d in rows.departed if d.carried is not None), key=_offset_of_held)
    block = Block(
        group=group,
        topic=lane.id.topic,
        topic_id=lane.topic_id,
        partition=lane.id.partition,
        written_ms=now_ms,
        low=lane.offsets.low,
        watermark=lane.promotion.watermark,
        acknowledged=lane.acknowledged,
        overflow_held=lane.held_as_found(True, settled.offsets) - promoted,
        runs=(*lane.runs, (lane.read_until, NOT_DECIDED)),
        number=change.number if change else 0,
        settled=settled,
        entries=entry_columns(rows.puts),
        carried=entry_columns(carried),
        read=lane.read_marks[-1] if lane.read_marks else None,
        cuts=lane.cuts,
    )
    return block, change, promoted


def _left(batch: list[Held], departed: list[Diverted]) -> Left:
    """Policy and bytes of records held no more. A moved one still is: it goes on under its control record's offset."""
    gone = [d for d in departed if d.held_bytes != NEVER_HELD and d.outcome is not Outcome.MOVED]
    return [(held.policy, held.size) for held in batch] + [(d.policy, d.held_bytes) for d in gone]


def take_sealed(lane: SourcePartition, seal: PendingBlock) -> None:
    """The producer has the block: what is in it leaves the lane's lists."""
    lane.overflow_sealed -= seal.promoted
    if lane.promotion.overtaken:
        lane.promotion.overtaken_sealed |= lane.promotion.overtaken.intersection(seal.block.settled.offsets)
    del lane.settled[: seal.emitted]
    del lane.departed[: seal.departed]
    lane.touched = False
    lane.ledger.block_ms = seal.block.written_ms
    if seal.change is not None and not seal.change.sealed:
        seal.change.sealed = True
    elif seal.change is not None:
        del lane.puts[: len(seal.change.records)]
        lane.number = seal.change.number
        lane.changes.append(seal.change)


def restore_sealed(lane: SourcePartition, seal: PendingBlock) -> None:
    """The transaction with this block was aborted. What it settled is emitted anew; its change keeps its number."""
    lane.overflow_sealed += seal.promoted
    lane.promotion.overtaken_sealed.difference_update(seal.block.settled.offsets)
    lane.touch()
    lane.departed[:0] = seal.silent  # the others are produced again
    if seal.change is not None:
        seal.change.sealed = False
        seal.change.struck = []  # these go with their records' settlement, in another change


def record_block(lane: SourcePartition, seal: PendingBlock, ledger_offset: int, tally: EngineCounters) -> None:
    """The block is a fact at this offset of the ledger. Its settled records' done marks are the caller's."""
    settled = seal.block.settled
    lane.ledger.written(mark_of(seal.block, ledger_offset), seal.change.latest_due_ms if seal.change else -1)
    if seal.change is not None:
        seal.change.committed = True
    if lane.quota is not None:
        lane.quota.left(seal.left)
    tally.settled(lane.id.topic, settled)


def mark_of(block: Block, ledger_offset: int) -> LedgerMark:
    """Mark of what the block pins, now that it is at this offset of the ledger.

    Entries count as settled records do: while `low` is below one, only the block says that it isn't to be put again.
    """
    settled, entries = block.settled, block.entries
    ahead = NOWHERE
    if any(settled.in_overflow):
        places = zip(settled.dues_ms, settled.offsets, strict=True)
        # What is struck is in a change, and pins the block by its number until the overflow has it.
        promoted = map(PROMOTED.__eq__, settled.in_overflow)
        ahead = Position(*max(compress(places, promoted), default=NOWHERE))
    highest = max(
        columns[-1] if columns else -1 for columns in (settled.offsets, entries.offsets, block.carried.offsets)
    )
    return LedgerMark(ledger_offset, highest, block.number, ahead, block.acknowledged)


def struck_out(settled: Settled) -> list[Tombstone]:
    """The copies that a change block strikes out."""
    if STRUCK not in settled.in_overflow:
        return []
    rows = zip(settled.offsets, settled.dues_ms, settled.in_overflow, strict=True)
    ids = settled.ids
    return [Tombstone(Position(due_ms, offset), ids.get(offset)) for offset, due_ms, held in rows if held == STRUCK]


def settled_columns(lane: SourcePartition, batch: list[Held], departed: list[Diverted]) -> Settled:
    """The columns of a block's settled records, sorted by offset."""
    if departed:
        return _mixed_columns(lane, batch, departed)
    batch.sort(key=_offset_of_held)
    offsets = list(map(_offset_of_held, batch))
    return Settled(
        offsets,
        list(map(_due_ms, batch)),
        [_EMITTED] * len(batch),
        _in_overflow(lane, offsets),
        list(map(_policy, batch)),
        list(map(_target, batch)),
        list(map(_attempt, batch)),
        _ids(batch),
        {},
        _sources(batch),
    )


def _mixed_columns(lane: SourcePartition, batch: list[Held], departed: list[Diverted]) -> Settled:
    rows = [(h.offset, h.due_ms, _EMITTED, h.policy, h.target, h.attempt) for h in batch]
    rows += [(d.offset, d.due_ms, int(d.outcome), d.policy, d.topic, d.attempt) for d in departed]
    rows.sort()
    offsets, dues, outcomes, policies, targets, attempts = map(list, zip(*rows, strict=True))
    ids = _ids(batch) | {d.offset: d.id for d in departed if d.id is not None}
    reasons = {d.offset: d.reason for d in departed if d.reason}
    related = _sources(batch) | {d.offset: d.related for d in departed if d.related >= 0}
    held_in = _in_overflow(lane, offsets)
    return Settled(offsets, dues, outcomes, held_in, policies, targets, attempts, ids, reasons, related)


def _in_overflow(lane: SourcePartition, offsets: list[int]) -> list[int]:
    """Where the overflow has an entry: promoted from there, or overtaken on the way; or struck out."""
    if not lane.promotion.windows and not lane.promotion.skip:
        return [0] * len(offsets)
    base, done, skip, struck = lane.offsets.base, lane.offsets.done, lane.promotion.skip, lane.promotion.struck
    if offsets and offsets[-1] < base and not struck:  # sorted: all were promoted
        return [PROMOTED] * len(offsets)
    return [
        STRUCK if offset in struck else PROMOTED if offset < base or done[offset - base] or offset in skip else 0
        for offset in offsets
    ]


def _ids(batch: list[Held]) -> dict[int, str]:
    if not any(map(_trailer, batch)):
        return {}
    return {held.offset: text for held in batch if held.trailer and (text := held_id(held)) is not None}


def _sources(batch: list[Held]) -> dict[int, int]:
    if not any(map(_trailer, batch)):  # who was moved has an id
        return {}
    return {held.offset: held.source for held in batch if held.source >= 0}


def entry_columns(puts: list[Held]) -> Entries:
    """The columns of a block's overflow entries: enough to redo each decision without deciding again."""
    if not puts:  # as nearly always where many partitions have a record or two each
        return NO_ENTRIES
    columns = dict(zip(_FIELDS, zip(*puts, strict=True), strict=False))
    return Entries(
        offsets=columns["offset"],
        dues_ms=columns["due_ms"],
        policies=columns["policy"],
        targets=columns["target"],
        target_partitions=columns["target_partition"],
        attempts=columns["attempt"],
        first_failures_ms=columns["first_failure_ms"],
        expires_ms=columns["expires_ms"],
        dead_letters=columns["dead_letter"],
        ids=_ids(puts),
        sources=_sources(puts),
    )


def _change_block(number: int, puts: list[Held], struck: list[Tombstone]) -> ChangeBlock:
    return ChangeBlock(
        number=number,
        records=dict(zip(map(_offset_of_held, puts), puts, strict=True)),
        missing=set(),
        earliest=Position(*min(map(place_of, puts), default=NEVER)),
        latest_due_ms=max(map(_due_ms, puts), default=-1),
        struck=struck,
    )


def _bounded(puts: list[Held]) -> list[Held]:
    """The first puts, at most as many and as large as one script may write."""
    sizes = list(accumulate(map(_size, puts[:ENTRIES_PER_BLOCK_MAX])))
    return puts[: max(bisect_right(sizes, ENTRY_BYTES_PER_BLOCK_MAX), 1)]


def commit_state(lane: SourcePartition, overflow_held: int, ledger: LedgerTopic) -> CommitState:
    """State for a recovery of this lane, beside its offset. `overflow_held`: as of the commit's own last block."""
    return CommitState(
        low=lane.cuts.log_offset(lane.offsets.low),
        watermark=lane.promotion.watermark,
        acknowledged=lane.acknowledged,
        block_offset=lane.ledger.block_offset,
        recovery_pointer=lane.recovery_pointer(),
        rebuild_pointer=lane.rebuild_pointer(),
        rebuild_due_ms=max((due_ms for _, due_ms in lane.ledger.rebuilds), default=-1),
        overflow_held=overflow_held,
        topic_id=lane.topic_id,
        leader_epoch=-1,
        partitions=lane.source_partitions,
        ledger_id=ledger.id,
        ledger_partitions=ledger.partitions,
        first_change=lane.first_change,
        read=lane.read_marks,
        cuts=lane.cuts,
    )
