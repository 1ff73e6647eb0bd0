"""One assigned source partition: its wheel, its cursor, and which of its offsets are done.

    offsets     base        low (L)              next
                 |1 1 1 1 1 1|0 1 1 0 0 1 1 1 0|          `OffsetMap.done`, one byte per offset
    due times        W ........ C ........>               `PromotionWindows`: watermark, cursor
                     [windows ]                           promoted and not yet all settled
    ledger           |...|.......|                        `LedgerMarks`: blocks that a recovery must read

What must hold (docs/ARCHITECTURE.md, invariants):
* every record with position <= the cursor is in the wheel; every later one is in the overflow or on its way there
  (`puts`, then `changes`), and its offset stays open until the overflow has acknowledged it;
* an offset's byte is 1 only when the fact is in the ledger;
* everything in the overflow at or before the watermark is settled, so recovery starts with the cursor there.
Offsets are the lane's own: those of the source's log, until that is cut back (`log_cuts.py`).
No clock, no client, no lock: the engine's thread owns it.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter
from typing import Final

from policies.headers import OFFSET_MAX
from sidecar.engine.partition.agenda import Agenda
from sidecar.engine.partition.change_block import FOREIGN, ChangeBlock, Loss
from sidecar.engine.partition.key_order import Order
from sidecar.engine.partition.progress import NOWHERE, LedgerMarks, OffsetMap, PromotionWindows
from sidecar.engine.partition.quota import Quota
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.log_cuts import NO_CUTS, Cuts, Marks, ReadMark, below, noted
from sidecar.model.record import (
    Diverted,
    Held,
    Position,
    TopicPartition,
    Window,
    due_of,
    held_id,
    just_before,
    place_of,
    settle_promoted,
)

RUNS_MAX: Final = 8_192  # of the policy table, above `low`: each block has them all
NOT_DECIDED: Final = 0  # in a block's runs, in place of a table version: from here on nothing was read
_offset: Final = attrgetter("offset")
NEVER: Final = Position(OFFSET_MAX, OFFSET_MAX)

log = logging.getLogger(__name__)


class Identities:
    """The latest record of each id in memory, where a partition's actions look first.

    Known are the records that can still be acted on: in the wheel, or on their way to the overflow. What has fired is
    only leaving, until it is settled. What the overflow has is in its own index (`overflow/keys.py`).
    """

    __slots__ = ("_held", "leaving")

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self.leaving: dict[int, Held] = {}  # by offset: fired and not settled, too late to be acted on

    def __len__(self) -> int:
        return len(self._held)

    def get(self, message_id: str) -> Held | None:
        """The latest record with this id; None: there is none in memory."""
        return self._held.get(message_id)

    def know(self, records: Iterable[Held]) -> None:
        """Add records that are in memory now, perhaps again; those without an id don't matter."""
        for held in records:
            if held.trailer and (message_id := held_id(held)) is not None:
                self.leaving.pop(held.offset, None)
                known = self._held.get(message_id)
                if known is None or known.offset <= held.offset:
                    self._held[message_id] = held

    def forget(self, records: Iterable[Held]) -> None:
        """Take out records that can't be acted on in memory any more."""
        for held in records:
            if held.trailer and (message_id := held_id(held)) is not None:
                known = self._held.get(message_id)
                if known is not None and known.offset == held.offset:
                    del self._held[message_id]

    def fired(self, records: Sequence[Held]) -> None:
        """Take out records that have fired: they are leaving, too late to be acted on."""
        self.forget(records)
        for held in records:
            if held.trailer and held_id(held) is not None:
                self.leaving[held.offset] = held

    def settled(self, offsets: Iterable[int]) -> None:
        """Forget records that were leaving and have left, by their offsets."""
        if self.leaving:
            for offset in offsets:
                self.leaving.pop(offset, None)


class HeldIn(Enum):
    """Where a held record was."""

    PUTS = auto()  # about to go to the overflow
    OVERFLOW = auto()  # there, or in a change block on its way there
    WHEEL = auto()


@dataclass(slots=True, eq=False)
class SourcePartition:
    """State of one assigned partition. Times are epoch milliseconds."""

    id: TopicPartition
    wheel: Wheel
    promotion: PromotionWindows
    offsets: OffsetMap = field(default_factory=OffsetMap)
    ledger: LedgerMarks = field(default_factory=LedgerMarks)
    ids: Identities = field(default_factory=Identities)
    quota: Quota | None = None  # a policy limits what is held here
    order: Order | None = None  # a policy releases records in order of their keys here
    entries: dict[int, Held] = field(default_factory=dict)  # decided before a crash: redone when read
    puts: list[Held] = field(default_factory=list)
    puts_due_ms: int = OFFSET_MAX  # none of `puts` is due before; it may be later
    changes: deque[ChangeBlock] = field(default_factory=deque)
    number: int = 0
    acknowledged: int = 0
    first_change: int = 0  # before the first number of this source: what Redis has below is of a former topic
    overflow_held: int = 0  # in the overflow's care and not settled, promoted ones included
    overflow_sealed: int = 0  # the same, less what blocks under way settle: this is what a block records
    blocks_in_flight: int = 0
    overflow_used: bool = False  # a change block was written once: promotion must look there
    runs: list[tuple[int, int]] = field(default_factory=list)
    recovered_runs: list[tuple[int, int]] = field(default_factory=list)
    recovered_until: int = -1  # offsets below were read before a crash: decided by the table of then
    settled: list[Held] = field(default_factory=list)  # emitted and acknowledged, not yet in a block
    departed: list[Diverted] = field(default_factory=list)
    leaving: bool = False  # revoked: what is in flight is settled, nothing new begins
    dropped: bool = False  # gone: nothing about it may be written any more
    touched: bool = False  # something for a block
    uncommitted: bool = False  # something for an offset commit
    tidy_asked: bool = False
    loss: Loss | None = None  # Redis lacks something: no puts, no promotion until it is rebuilt
    source_partitions: int = 0  # how many the source had when it was new to the group; 0: not known
    intake_held: bool = False  # intake of this lane waits: for its rebuild, its order, or `low`
    cuts: Cuts = NO_CUTS  # where the source's log was cut back
    read_marks: Marks = ()  # records of it that were read, by its own offsets
    topic_id: str = ""  # Kafka's id of the source: a topic created anew under the same name is another one
    accepted: int = 0
    settled_count: int = 0
    held_at_start: int = 0
    found: int = 0  # in the overflow, beyond what its count said when the lane came: see `_count_found`
    vanished: list[int] = field(default_factory=list)  # offsets of records that were held and are gone from the source
    lost: int = 0  # given up after a rebuild, since neither source nor ledger has them any more
    agenda: Agenda = field(default_factory=Agenda)  # of those that it is served with
    here: bytes = b""

    def __post_init__(self) -> None:
        self.here, self.held_at_start = f"{self.id.topic}/{self.id.partition}/".encode(), self.overflow_held

    # --- news ---------------------------------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """Whether it has nothing to do until a record comes or falls due, or somebody asks for something."""
        has_news = self.touched or self.uncommitted or self.settled or self.departed or self.puts or self.changes
        waits = self.loss is not None or self.intake_held or self.tidy_asked or self.vanished or self.crowded_by_runs
        return not (has_news or waits or (self.order is not None and self.order.is_restless))

    def touch(self) -> None:
        """Have it write a block, be it an empty one."""
        self.touched = True
        self.agenda.stir(self)

    def owe_commit(self) -> None:
        """Have it commit where it is."""
        self.uncommitted = True
        self.agenda.stir(self)

    def emitted(self, records: Sequence[Held]) -> None:
        """Records are handed over for good: the next block settles them."""
        self.settled += records
        self.agenda.stir(self)

    def depart(self, departures: Sequence[Diverted]) -> None:
        """Records have left another way: the next block says so."""
        self.departed += departures
        self.agenda.stir(self)

    # --- intake -------------------------------------------------------------------------------------------------

    def accept(self, offset: int) -> bool:
        """Note that `offset` was read; False when it is done already or was read before."""
        if offset < self.offsets.next:
            return False
        if offset > self.offsets.next:
            self._close_gap(offset)
        return self.offsets.append(offset)

    def read_up_to(self, offset: int) -> None:
        """Note that the source was read up to here, where no record follows the last one that was given out."""
        if offset > self.offsets.next:
            self._close_gap(offset)
            self.offsets.next = offset
            self.touch()

    @property
    def read_until(self) -> int:
        """Behind the highest offset that was ever read."""
        return max(self.offsets.next, self.recovered_until)

    def note_read(self, mark: ReadMark) -> None:
        """Note a record of the source as the one that was read last."""
        self.read_marks = noted(self.read_marks, mark)

    def cut_back(self, log_offset: int) -> None:
        """The source's log was cut back: what it has from there on was never read. What was, is held on."""
        self.cuts = self.cuts.then(log_offset, self.read_until)
        self.read_marks = below(self.read_marks, log_offset)
        self.touch()
        self.owe_commit()

    def _close_gap(self, until: int) -> None:
        """Offsets that the source doesn't have (control records, compaction) count as done."""
        self.offsets.close_gap(until)
        self.owe_commit()
        for offset in [offset for offset in self.entries if offset < until]:
            self._give_up(offset)

    def _give_up(self, offset: int) -> None:
        """A record with an overflow entry that is gone from the source: its change block goes on without it."""
        del self.entries[offset]
        self.vanished.append(offset)
        for change in self.changes:
            change.missing.discard(offset)

    def note_table(self, offset: int, version: int) -> None:
        """From this offset on, records are decided by this version of the policy table."""
        if not self.runs or self.runs[-1][1] != version:
            self.runs.append((offset, version))
            self.touch()

    def redo(self, held: Held) -> bool:
        """A record whose overflow entry is known from before a crash was read again: its change block can have it.

        False when no change block waits for it: the overflow has it, but the watermark has passed it, so it is held
        here.
        """
        for change in self.changes:
            if held.offset in change.missing:
                change.missing.discard(held.offset)
                change.records[held.offset] = held
                self.ids.know((held,))
                if self.order is not None:
                    self.order.redone(held)
                return True
        return False

    def held_now(self) -> int:
        """Records that this lane holds, counted from its marks: open offsets that were read, and the overflow's."""
        return self.offsets.open_count + self.overflow_held

    @property
    def crowded_by_runs(self) -> bool:
        """Whether RUNS_MAX policy tables have decided what is open here: intake waits until `low` has passed some.

        Not before all that was read before a crash is read again: `low` passes nothing of it until then.
        """
        return len(self.runs) >= RUNS_MAX and self.offsets.next >= self.recovered_until

    @property
    def on_the_way(self) -> int:
        """Records on their way to the overflow."""
        return len(self.puts) + sum(len(change.records) for change in self.changes)

    @property
    def imbalance(self) -> int:
        """Held at assignment + accepted - settled - lost since - held now: 0, or a record is unaccounted for."""
        return self.held_at_start + self.found + self.accepted - self.settled_count - self.lost - self.held_now()

    def put(self, records: Sequence[Held]) -> None:
        """Put records on their way to the overflow: they go there with the next blocks."""
        self.puts += records
        self.agenda.stir(self)
        self.puts_due_ms = min(self.puts_due_ms, min(map(due_of, records), default=OFFSET_MAX))

    # --- cursor -------------------------------------------------------------------------------------------------

    def earliest_put(self) -> Position:
        """The earliest position that is only on its way to the overflow: the cursor stays below it."""
        earliest = Position(*min(map(place_of, self.puts), default=NEVER))
        for change in self.changes:
            earliest = min(earliest, change.earliest)
        return earliest

    def promoted(self, start: Position, records: Sequence[Held], cursor: Position) -> list[Held]:
        """Take in what a promotion copied from the overflow; returns what goes into the wheel."""
        self.agenda.stir(self)
        fresh = self.promotion.without_skipped(records)
        if fresh and max(map(_offset, fresh)) >= self.offsets.low:
            fresh = self._without_open(fresh)
        if fresh:
            self.promotion.windows.append(Window(start, len(fresh)))
            self._count_found()
            if self.quota is not None:
                self.quota.found(fresh)
            if self.order is not None:
                self.order.found(fresh, False, cursor)
        self.promotion.cursor, self.promotion.promised = cursor, None
        return fresh

    def _count_found(self) -> None:
        """Count what was taken out of the overflow beyond what it was thought to hold: earlier versions wrote counts
        into the ledger without what they had overtaken on the way, and these would end below zero.
        """
        more = self.promotion.unsettled - self.overflow_held
        if more > 0:
            self.overflow_held += more
            self.overflow_sealed += more
            self.found += more

    def _without_open(self, records: list[Held]) -> list[Held]:
        """An open offset's record comes from the source, or has come: its copy in the overflow is none that we know of.

        It is of a ledger that was lost, or somebody else's. To settle it would find no place for its mark.
        """
        base, done, known = self.offsets.base, self.offsets.done, len(self.offsets.done)
        kept = [  # hot: `OffsetMap.is_open`, written out
            held for held in records
            if (index := held.offset - base) < 0 or (index < known and done[index])
        ]  # fmt: skip
        self.promotion.passed_over += len(records) - len(kept)
        return kept

    def held_as_found(self, sealed: bool, settled: Collection[int] = ()) -> int:
        """How many records a recovery from here finds in the overflow's care: more than are there for this partition.

        A recovery counts the copies of overtaken records that are ahead of the watermark, too: it can't know which of
        them were promoted.
        `sealed`: less what blocks under way settle, and `settled`.
        """
        count, promotion = self.overflow_sealed if sealed else self.overflow_held, self.promotion
        if promotion.overtaken:
            left = promotion.overtaken.difference(settled, promotion.overtaken_sealed if sealed else ())
            left.difference_update(*(change.records for change in self.changes))
            watermark, skip, is_open = promotion.watermark, promotion.skip, self.offsets.is_open
            count += sum(is_open(offset) and skip.get(offset, NOWHERE) > watermark for offset in left)
        return count

    def take_out(self, held: Held, in_memory: bool) -> HeldIn:
        """Take a held record out; where it was in the wheel, that is left to the caller."""
        if not in_memory or self._is_on_the_way(held.offset):
            self.promotion.strike(held, self.offsets.is_open(held.offset))
            return HeldIn.OVERFLOW
        return HeldIn.PUTS if self._take_put(held) else HeldIn.WHEEL

    def _is_on_the_way(self, offset: int) -> bool:
        """A change block has this record, and the wheel hasn't."""
        return offset not in self.promotion.skip and any(offset in change.records for change in self.changes)

    def _take_put(self, held: Held) -> bool:
        if held.due_ms < self.puts_due_ms:
            return False
        kept = [put for put in self.puts if put.offset != held.offset]
        taken = len(kept) < len(self.puts)
        self.puts = kept
        return taken

    def lose(self, offset: int) -> None:
        """Give up a record that was read and can't be put together any more."""
        self.offsets.done[offset - self.offsets.base] = 1
        self.lost += 1
        self.owe_commit()
        for change in self.changes:
            change.missing.discard(offset)

    def forget_passed(self) -> None:
        """Drop what the watermark has passed from the copies to skip, unless its change block is still here."""
        watermark, skip = self.promotion.watermark, self.promotion.skip
        passed = [offset for offset, position in skip.items() if position <= watermark]
        for offset in passed:
            if self.offsets.is_done(offset) and not any(offset in change.records for change in self.changes):
                del skip[offset]

    def overtake(self, due_ms: int) -> list[Held]:
        """Take out what is on its way to the overflow and falls due too soon to wait for it: it goes into the wheel.

        Records of a change block will reach the overflow all the same: their offsets stay open, and promotion skips the
        copies. Records in the order of their keys stay: the overflow may have one that must fire before. But not those
        that the cursor has passed, which were overtaken before a crash: nothing would ever bring them back, be they far
        from due because the clock was set back since, or is another machine's.
        """
        stay = self.order.on_the_way if self.order is not None else ()
        cursor, skip = self.promotion.cursor, self.promotion.skip
        soon: list[Held] = []
        if self.puts_due_ms <= due_ms:
            puts, self.puts, self.puts_due_ms = self.puts, [], OFFSET_MAX
            soon = [held for held in puts if held.due_ms <= due_ms and held.offset not in stay]
            self.put([held for held in puts if held.due_ms > due_ms or held.offset in stay])
        for change in self.changes:
            if change.earliest.due_ms <= due_ms or change.earliest <= cursor:
                waiting = [held for held in change.records.values() if held.offset not in skip]
                late = [
                    held
                    for held in waiting
                    if held.position <= cursor or (held.due_ms <= due_ms and held.offset not in stay)
                ]
                self.promotion.overtake(late)
                soon += late
                if not change.missing:
                    change.earliest = min((held.position for held in waiting if held.offset not in skip), default=NEVER)
        return soon

    # --- settlement ---------------------------------------------------------------------------------------------

    def settle(self, offsets: Sequence[int], dues_ms: Sequence[int]) -> None:
        """Settle records that are in the ledger now: done marks for open offsets, less in their windows for others."""
        base, done, promotion = self.offsets.base, self.offsets.done, self.promotion
        windows, struck = promotion.windows, promotion.struck
        if windows or struck:
            promoted: list[tuple[int, int]] = []
            for offset, due_ms in zip(offsets, dues_ms, strict=True):
                index = offset - base
                if index >= 0 and not done[index]:
                    done[index] = 1
                elif offset in struck:
                    self.overflow_held -= 1
                else:
                    promoted.append((due_ms, offset))
            struck.difference_update(offsets)
            settle_promoted(windows, sorted(promoted))
            self.overflow_held -= len(promoted)
            self._count_found()
            while windows and windows[0].unsettled == 0:
                windows.popleft()
        else:
            for offset in offsets:
                done[offset - base] = 1
        if promotion.overtaken:
            promotion.overtaken.difference_update(offsets)
            promotion.overtaken_sealed.difference_update(offsets)
        self.ids.settled(offsets)
        if self.order is not None:
            self.order.settled(offsets)
        self.settled_count += len(offsets)
        self.owe_commit()

    def applied(self, change: ChangeBlock) -> None:
        """The overflow has acknowledged a change block: its records are in its care, their offsets are done."""
        self.acknowledged = change.number
        self.promotion.vacant = min(self.promotion.vacant, just_before(change.earliest))
        base, done, skip = self.offsets.base, self.offsets.done, self.promotion.skip
        for offset in change.records:
            index = offset - base
            if offset not in skip and index >= 0 and not done[index]:
                done[index] = 1
                self.overflow_held += 1
                self.overflow_sealed += 1
        for copy in change.struck:  # the overflow itself passes them over from now on
            skip.pop(copy.position.offset, None)
        self.ids.forget(held for held in change.records.values() if held.offset not in skip)
        if self.order is not None:
            self.order.on_the_way.difference_update(change.records)
        self.owe_commit()

    def advance_low(self) -> int:
        """Move `low` over what is done; returns it."""
        low = self.offsets.advance_low()
        while len(self.runs) > 1 and self.runs[1][0] <= low:
            self.runs.pop(0)
        return low

    # --- ledger -------------------------------------------------------------------------------------------------

    def repeat_state(self, now_ms: int, interval_ms: int) -> None:
        """Without news for so long, it says again where it is: blocks and commits expire."""
        if now_ms - self.ledger.block_ms >= interval_ms:
            self.touch()
            self.owe_commit()

    def recovery_pointer(self) -> int:
        """See `LedgerMarks`."""
        return self.ledger.recovery_pointer(self.offsets.low, self.promotion.watermark, self.acknowledged)

    def rebuild_pointer(self) -> int:
        """First ledger offset with an overflow entry that a rebuild needs, else as `recovery_pointer`."""
        pointer = self.ledger.rebuild_pointer()
        return self.recovery_pointer() if pointer is None else pointer

    def note_loss(self, hw: int, detail: str) -> None:
        """Redis lacks something of this lane: from now on its puts and promotions wait until it is rebuilt."""
        if self.loss is None:
            log.error("Redis lost data of a partition", extra={"source_partition": str(self.id), "detail": detail})
            self.loss = self.loss_of(hw, detail)
            self.promotion.vacant = NOWHERE
            self.agenda.stir(self)

    def loss_of(self, hw: int, detail: str) -> Loss:
        """Numbers from before the lane's first are of a former topic of this name: an old copy may bring them back."""
        return Loss(hw if hw >= self.first_change else FOREIGN, detail)
