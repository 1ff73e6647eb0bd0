"""Rebuilding what Redis has lost of one lane: entries from the ledger, payloads from the source, by offset.

    ledger   |..s..|e1 e2|s  e3|..e4.|s    |e5 ..|        e: entries of a change block, s: settled
                    ^rebuild pointer        ^recovery pointer
    source   |r r r r r r r r r r r r r r r r r r|        the records of entries still held, read by offset
    Redis    |blocks 1 to hw|          ......... A        redone in order: hw + 1 to A, hw rising with them

1. Look how much is there. If hw is gone, or content is missing though hw says that all is there, clear the lane's keys
   and begin with nothing.
2. Read from the recovery pointer which records above the watermark are settled: they are not written again.
3. Read from the rebuild pointer the entries of all blocks up to `acknowledged`; what is at or before the watermark is
   settled. Those of blocks above hw are written with the payloads of the source, a bounded bunch at a time.
4. Read back all that Redis has ahead of the watermark and compare count and digest with the ledger's. A difference that
   hw didn't show begins everything once more with nothing.

Each `step` is one bounded piece and may be repeated: what is written twice is written to the same place. Blocking:
it runs in a thread of its own, driven by `rebuild_worker.py`.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from policies.headers import OFFSET_MAX
from sidecar.engine.commit.block_builder import struck_out
from sidecar.engine.partition.change_block import FOREIGN, Loss
from sidecar.engine.recovery import decided
from sidecar.ledger.block import decode, lane_key
from sidecar.ledger.topic import LedgerLog, LedgerRecord, LedgerTopic
from sidecar.model.header_codec import complete, headers_of, split
from sidecar.model.log_cuts import NO_CUTS, Cuts
from sidecar.model.ports import SourceLog, SourceRecord
from sidecar.model.record import Held, Position, Tombstone, TopicPartition
from sidecar.overflow.interface import RebuildStore, Redo

DIGEST_MASK: Final = (1 << 64) - 1
BUNCH_RECORDS_MAX: Final = 16_384  # of one step: so many fill chunks, which a few of each slot don't
BUNCH_BLOCKS_MAX: Final = 128  # each of at most 1 MB: what a step may take in memory
LEDGER_RECORDS_PER_STEP_MAX: Final = 5_000  # of a step that finds nothing to write
READ_BACK_RECORDS_MAX: Final = 32_768
TRIES_MAX: Final = 3  # a copy that comes back meanwhile, be it of a former topic, shows in the comparison
_place: Final = itemgetter(0, 1)

log = logging.getLogger(__name__)


def fetch(source: SourceLog, lane: TopicPartition, cuts: Cuts, offsets: Sequence[int]) -> dict[int, SourceRecord]:
    """`SourceLog.fetch` by the lane's own offsets. What a log lost that was cut back is left out."""
    if not cuts:
        return source.fetch(lane, offsets)
    own = {cuts.log_offset(offset): offset for offset in offsets if not cuts.is_lost(offset)}
    return {own[at]: record for at, record in source.fetch(lane, sorted(own)).items()} if own else {}


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """A lane as it was when its loss was found; all that the rebuild needs to know of it."""

    lane: TopicPartition
    topic_id: str
    hw: int  # see `Loss`
    acknowledged: int
    watermark: Position
    cursor: Position
    skip: frozenset[int]  # settled ahead of the watermark, or in the wheel with their offsets open
    held: int  # records beyond the cursor that the overflow should have
    recovery_pointer: int
    rebuild_pointer: int
    block_offset: int
    first_change: int = 0  # see `SourcePartition`
    cuts: Cuts = NO_CUTS


@dataclass(slots=True)
class RebuildChecksum:
    """Records found and written; the digest is a sum, so that order doesn't matter."""

    records: int = 0
    beyond: int = 0  # behind the cursor and not in `skip`: in the overflow's care alone
    digest: int = 0

    def add(self, places: Sequence[tuple[int, int]], plan: RebuildPlan) -> None:
        """Count these (due, offset)."""
        cursor, skip = plan.cursor, plan.skip
        self.records += len(places)
        if skip or min(places, default=cursor) <= cursor:
            self.beyond += sum(place > cursor and place[1] not in skip for place in places)
        else:
            self.beyond += len(places)
        self.digest = (self.digest + sum(map(hash, places))) & DIGEST_MASK  # of integers: the same in each process

    def agrees(self, other: "RebuildChecksum") -> bool:
        return self.records == other.records and self.digest == other.digest


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """The outcome. `held`: records beyond the cursor that the overflow has now."""

    held: int
    written: int
    lost_to_source: int
    lost_to_ledger: int
    first_lost_offset: int  # -1: none
    blocks_missing: int  # ledger offsets below its start
    reconciled: bool


class Sources(NamedTuple):
    """Where a rebuild reads and writes."""

    ledger: LedgerTopic
    ledger_log: LedgerLog
    source: SourceLog
    store: RebuildStore


@dataclass(slots=True)
class RebuildBatch:
    """Entries taken from the ledger and not yet written."""

    # Number, entries, the offsets under which their records came, strikes.
    blocks: list[tuple[int, list[Held], list[int], list[Tombstone]]] = field(default_factory=list)
    records: int = 0  # and strikes

    def is_full(self) -> bool:
        return self.records >= BUNCH_RECORDS_MAX or len(self.blocks) >= BUNCH_BLOCKS_MAX


class LaneRebuild:
    """One lane's rebuild. `loss` shows its progress to other threads: plain numbers that only grow."""

    def __init__(self, plan: RebuildPlan, sources: Sources, loss: Loss) -> None:
        self.plan = plan
        self.result: RebuildResult | None = None
        self._loss = loss
        self._sources = sources
        self._store = sources.store
        self._partition = sources.ledger.partition_of(plan.lane)
        self._key = lane_key(plan.lane.topic, plan.lane.partition)
        self._settled: set[int] = set()
        self._blocks: Iterator[LedgerRecord] | None = None
        self._tries = 0  # from nothing, since something didn't agree
        self._next: Callable[[int], int]
        self._begin()

    def step(self, now_ms: int) -> int:
        """One piece of work; returns how many records it wrote. `result` is there when it was the last."""
        return self._next(now_ms)

    def close(self) -> None:
        """Let go of what is read. Twice is harmless."""
        self._sources.source.release()
        self._close_ledger()

    def _close_ledger(self) -> None:
        if isinstance(self._blocks, Generator):
            self._blocks.close()
        self._blocks = None

    def _begin(self, from_nothing: bool = False) -> None:
        self._close_ledger()
        self._hw = 0
        self._from_nothing = from_nothing
        self._clearing = self._cleared = False
        self._blocks_next = self.plan.rebuild_pointer
        self._ended = False
        self._bunch = RebuildBatch()
        self._written = 0
        self._wanted, self._there = RebuildChecksum(), RebuildChecksum()
        self._gone: list[tuple[int, int]] = []
        self._loss.records_done = self._loss.ledger_read = self._loss.ledger_total = 0
        self._read_to = self.plan.watermark
        self._next = self._look

    # --- what is there --------------------------------------------------------------------------------------------

    def _look(self, now_ms: int) -> int:
        """How much is there. A number below A is what a loss, or a rebuild before this one, has left: go on from it."""
        place, plan = self._store.place(self.plan.lane), self.plan
        damaged = plan.hw == 0 and place >= max(plan.acknowledged, 1)  # whoever found it saw less than the number says
        foreign = 0 < place < plan.first_change  # also what a copy has brought back since it was cleared
        if foreign or (not self._cleared and (place < 0 or damaged or self._from_nothing or plan.hw == FOREIGN)):
            self._next = self._clear
        else:
            self._hw = max(place, 0)
            self._next = self._learn_settled
        return 0

    def _clear(self, now_ms: int) -> int:
        more = self._store.reset(self.plan.lane, begin=not self._clearing)
        self._clearing = more
        if not more:
            self._cleared = True  # what is there from now on counts
            self._next = self._look
        return 0

    def _learn_settled(self, now_ms: int) -> int:
        plan, log_ = self.plan, self._sources.ledger_log
        first, end = log_.bounds(self._partition)
        settled: set[int] = set()
        # What is struck pins no block for recovery: it is found from its entry on.
        start = max(min(plan.recovery_pointer, plan.rebuild_pointer), first)
        self._blocks_next = max(plan.rebuild_pointer, first)
        self._loss.ledger_total = max(end - start, 0) + max(end - self._blocks_next, 0)
        for record in log_.read({self._partition: start}, {self._partition: plan.block_offset}):
            self._loss.ledger_read = record.offset - start
            # What was settled after the plan was made is held by its count.
            if record.key == self._key and record.offset <= plan.block_offset:
                columns = decode(record.value).settled
                if any(columns.in_overflow):
                    pairs = zip(columns.offsets, columns.in_overflow, strict=True)
                    settled.update(offset for offset, held in pairs if held)
        self._settled = settled
        self._missing = max(first - plan.rebuild_pointer, 0)
        self._loss.ledger_read = max(end - start, 0)
        self._next = self._redo
        return 0

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _redo(self, now_ms: int) -> int:
        """Take a bunch of entries from the ledger, their payloads from the source, and write them."""
        if not self._ended:
            self._collect()
        bunch, plan = self._bunch, self.plan
        wanted = [offset for _, _, came_at, _ in bunch.blocks for offset in came_at]
        offsets = sorted(set(wanted))
        found = fetch(self._sources.source, plan.lane, plan.cuts, offsets) if offsets else {}
        # Let go of each as soon as it is used: freed later, out of memory that has gone cold, it costs as much again.
        take = found.pop if len(offsets) == len(wanted) else found.get
        redos, gone = self._redos(bunch, take)
        if self._ended:
            redos.append(Redo(redos[-1].last if redos else self._hw, plan.acknowledged, ()))
        self._store.redo(plan.lane, redos, now_ms)
        written = sum(len(redo.records) for redo in redos)
        self._gone += gone
        self._written += written
        self._loss.records_done += written
        if redos:
            self._hw = max(self._hw, redos[-1].last)
        self._bunch = RebuildBatch()
        if self._ended:
            self._next = self._read_back
        return written

    def _collect(self) -> None:
        """Fill the bunch with entries that are still held; those of blocks that are there are only counted."""
        bunch = self._bunch
        if bunch.is_full():
            return
        if self._blocks is None:
            starts, ends = {self._partition: self._blocks_next}, {self._partition: self.plan.block_offset}
            self._blocks = self._sources.ledger_log.read(starts, ends)
        passed, began = 0, self._blocks_next
        try:
            for record in self._blocks:
                self._blocks_next = record.offset + 1
                passed += 1
                if record.key == self._key:
                    self._take(record.value)
                if bunch.is_full() or passed >= LEDGER_RECORDS_PER_STEP_MAX:
                    return
        except BaseException:
            self._blocks = None  # read on from where it was
            raise
        finally:
            self._loss.ledger_read += self._blocks_next - began
        self._ended = True
        self._loss.ledger_read = self._loss.ledger_total

    def _take(self, value: bytes) -> None:
        plan, settled = self.plan, self._settled
        block = decode(value)
        if block.topic_id and plan.topic_id and block.topic_id != plan.topic_id:
            return
        if not 0 < block.number <= plan.acknowledged:
            return
        watermark = plan.watermark
        held = [one for one in decided(block.entries) if one[:2] > watermark and one.offset not in settled]
        self._wanted.add(list(map(_place, held)), plan)
        if block.number <= self._hw:
            self._loss.records_done += len(held)
        # Copies of blocks that are there may have been struck out by one that isn't.
        struck = struck_out(block.settled) if block.number > self._hw else []
        if block.number > self._hw and (held or struck):
            self._bunch.blocks.append((block.number, held, [entry.came_at for entry in held], struck))
            self._bunch.records += len(held) + len(struck)

    def _redos(
        self, bunch: RebuildBatch, take: Callable[[int, None], SourceRecord | None]
    ) -> tuple[list[Redo], list[tuple[int, int]]]:
        """The bunch with its payloads; and places whose records are gone."""
        redos: list[Redo] = []
        gone: list[tuple[int, int]] = []
        before = self._hw
        for number, entries, came_at, struck in bunch.blocks:
            fresh = []
            for entry, offset in zip(entries, came_at, strict=True):
                record = take(offset, None)
                if record is None:
                    gone.append(entry[:2])
                else:
                    fresh.append(complete(entry, record, split(headers_of(record))))
            redos.append(Redo(before, number, fresh, struck))
            before = number
        return redos, gone

    # --- accounts -------------------------------------------------------------------------------------------------

    def _read_back(self, now_ms: int) -> int:
        """Count what Redis has now."""
        plan, settled = self.plan, self._settled
        page = self._store.places(plan.lane, self._read_to, READ_BACK_RECORDS_MAX, plan.acknowledged)
        places = list(map(_place, page.records))
        self._there.add([place for place in places if place[1] not in settled] if settled else places, plan)
        self._read_to = page.cursor
        if page.cursor.offset == OFFSET_MAX:
            self._reconcile()
        return 0

    def _reconcile(self) -> None:
        plan, wanted = self.plan, self._wanted
        missing = RebuildChecksum()
        missing.add(self._gone, plan)
        left = RebuildChecksum(
            wanted.records - missing.records,
            wanted.beyond - missing.beyond,
            (wanted.digest - missing.digest) & DIGEST_MASK,
        )
        reconciled = left.agrees(self._there)
        if not reconciled and (not self._cleared or self._tries < TRIES_MAX):
            self._tries += 1
            log.warning(
                "the overflow lacks more than its number shows: it is rebuilt from nothing",
                extra={"source_partition": str(plan.lane), "in_ledger": left.records, "in_redis": self._there.records},
            )
            self._begin(from_nothing=True)
            return
        self.result = RebuildResult(
            held=left.beyond,
            written=self._written,
            lost_to_source=missing.beyond,
            lost_to_ledger=max(plan.held - wanted.beyond, 0),
            first_lost_offset=min((offset for _, offset in self._gone), default=-1),
            blocks_missing=self._missing,
            reconciled=reconciled,
        )
