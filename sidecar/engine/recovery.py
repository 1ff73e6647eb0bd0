"""Recovery of a partition: from its commit and the ledger back to the lane that was lost.

Pure: `Replay` is fed the lane's blocks in ledger order and gives the lane. Reading them is `recovery_reader.py`.

What each part of the ledger says (docs/ledger-format.md):
* a settled offset at or above `low` is done; a settled record that has an overflow entry ahead of the watermark is
  skipped when promotion meets its copy;
* an entry whose change block Redis has (`number <= hw`) is in the overflow's care: done for Kafka;
* an entry whose change block Redis hasn't is redone: its source offset is still open, so the record will be read
  again, is held as it was decided, and the change block is applied when its records are complete. Where its offset
  lies below `low` it was acknowledged, whatever the blocks say: Redis has lost it.
"""

from bisect import bisect_right
from collections.abc import Sequence

from sidecar.engine.commit.block_builder import mark_of, struck_out
from sidecar.engine.partition.change_block import ChangeBlock, Loss
from sidecar.engine.partition.partition import NEVER, NOT_DECIDED, SourcePartition
from sidecar.engine.partition.progress import NOWHERE, LedgerMarks, OffsetMap, PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.ledger.block import Block, Entries
from sidecar.ledger.commit_metadata import CommitState
from sidecar.model.log_cuts import NO_CUTS, Cuts, Marks, below, noted
from sidecar.model.ports import Start
from sidecar.model.record import NO_HEADERS, Held, Position, Tombstone, TopicPartition, as_held


def _behind_last(offset: int, marks: Marks, cuts: Cuts, log_start: int) -> int:
    """Where to read on, by what was committed and the record that was read last.

    What follows that one was passed as it had no record: it was marks of transactions. In a log that was cut back since
    there may be some now. What lies before the last cut was read before that.
    """
    if not marks:
        return offset
    known = max(marks[-1].offset + 1, cuts.pairs[-1][1] if cuts else 0)
    return max(min(offset, known), log_start)


def _settled_below(block: Block) -> int:
    """Below which of the lane's offsets all is settled, by a block: no further than behind the record read last, as in
    `_behind_last`.
    """
    if block.read is None:
        return block.low
    behind = block.cuts.lane_offset(block.read.offset) + 1
    return min(block.low, max(behind, block.cuts.pairs[-1][0] if block.cuts else 0))


class Replay:
    """One lane being recovered. `whole`: no block is missing between its commit, or its very first one, and the end."""

    def __init__(
        self, lane: TopicPartition, start: Start, commit: CommitState | None, hw: int, *, whole: bool = False
    ) -> None:
        self.id = lane
        self._whole = whole
        self.cuts: Cuts = commit.cuts if commit else NO_CUTS
        self.marks: Marks = commit.read if commit else ()
        self.low = self.cuts.lane_offset(_behind_last(start.offset, self.marks, self.cuts, start.log_start))
        self._log_from = -1 if commit else start.offset  # where it begins, by the log as it is now
        self._earliest = start.earliest
        self._log_start = start.log_start
        self._is_anew = start.made_anew
        self._topic_id = start.topic_id
        self._partitions = start.partitions
        self._settled_below = self.low
        self.hw = hw
        self._trusted = False
        self._begun = commit is not None  # there is a state of this source
        self._former = 0  # the highest number of a former topic of this name
        self.first_change = commit.first_change if commit else 0
        self._is_of_redis = False  # `acknowledged`: another recovery may find another number there
        self.watermark = commit.watermark if commit else NOWHERE
        self.acknowledged = commit.acknowledged if commit else 0
        self.overflow_held = commit.overflow_held if commit else 0
        self.block_offset = commit.block_offset if commit else -1
        self._committed_block = self.block_offset  # blocks up to here are in the commit's counts
        self._highest = self.acknowledged  # number of a change that is known of
        self._counted_to = self.acknowledged  # change blocks up to this number are in overflow_held
        self._known_in_care = 0  # of the entries in these blocks
        self._counted_from = self.watermark  # and of their entries those ahead of this watermark
        self._rebuild_pointer = commit.rebuild_pointer if commit else -1
        self._rebuild_due_ms = commit.rebuild_due_ms if commit else -1
        self._done = bytearray()
        self._settled_ahead: dict[int, Position] = {}  # settled, with an overflow entry
        self._blocks: list[tuple[int, Block]] = []
        self._changes: list[tuple[int, Entries, list[Tombstone]]] = []
        self._carried: list[Held] = []  # under the offset of the control record that moved them
        self._runs: tuple[tuple[int, int], ...] = ()
        self._written_ms = -1  # of the last block
        self.read_to = -1  # `low` as the last block has it
        self.known_id = commit.topic_id if commit else ""  # Kafka's id of the source, as it was said last
        self._is_news = False  # a cut that no block says yet
        self.met = False  # the ledger has blocks of this name, be it of an earlier topic

    def trust_overflow(self) -> None:
        """The ledger has lost blocks of this lane: what Redis has is the lane's own although no block says so."""
        self._trusted = True

    def block(self, ledger_offset: int, block: Block) -> None:
        """The lane's next block. Those of an earlier topic of the same name say nothing about this one."""
        self.met = True
        another = block.topic_id and self._topic_id and block.topic_id != self._topic_id
        if another:
            self._is_anew = True
            self._former = max(self._former, block.number, block.acknowledged)
        if another or (self._blocks and ledger_offset <= self._blocks[-1][0]):
            return
        if not self._blocks and self._earliest >= 0:  # it was read before: the ledger knows better than the setting
            self.low = self._settled_below = max(min(self.low, block.low), self._earliest)
            self._log_from = self._earliest
        self._blocks.append((ledger_offset, block))
        if self._whole and block.acknowledged > self._highest:  # it says that it goes on from somebody else's number
            self.first_change = max(self.first_change, block.acknowledged)
        self.known_id = block.topic_id or self.known_id
        self._highest = max(self._highest, block.acknowledged, block.number)
        self._written_ms, self.read_to = block.written_ms, block.low
        self.block_offset = max(self.block_offset, ledger_offset)
        self.watermark = max(self.watermark, block.watermark)
        self.acknowledged = max(self.acknowledged, block.acknowledged)
        self._settled_below = max(self._settled_below, _settled_below(block))
        self._runs = block.runs
        if ledger_offset > self._committed_block:
            self.overflow_held = block.overflow_held
            self._counted_to = block.acknowledged
            self._note_log(block)
            self._counted_from = block.watermark
        for offset, due_ms, held in zip(
            block.settled.offsets, block.settled.dues_ms, block.settled.in_overflow, strict=True
        ):
            self._mark_done(offset)
            if held:
                self._settled_ahead[offset] = Position(due_ms, offset)
        if block.number:
            self._changes.append((block.number, block.entries, struck_out(block.settled)))
        self._carried += decided(block.carried)

    def _note_log(self, block: Block) -> None:
        """How the source's log was when this block was written. It may have been written before the commit's cuts."""
        if self.cuts and (not block.cuts or block.cuts.pairs[-1][0] < self.cuts.pairs[-1][0]):
            return
        if block.cuts != self.cuts:
            self.cuts = block.cuts
            self.marks = below(self.marks, block.cuts.pairs[-1][1] if block.cuts else 0)
        if block.read is not None:
            self.marks = noted(self.marks, block.read)

    @property
    def read_until(self) -> int:
        """Behind the highest offset that anything is known of."""
        read_to = max((start for start, _ in self._runs), default=-1)
        entries = max((block.entries.offsets[-1] for _, block in self._blocks if block.entries.offsets), default=-1)
        carried = max((block.carried.offsets[-1] for _, block in self._blocks if block.carried.offsets), default=-1)
        return max(read_to, self._settled_below, self.low + len(self._done), entries + 1, carried + 1)

    def cut_back(self, log_offset: int) -> None:
        """The source's log was cut back to this offset since. Raises TooManyCuts.

        Nothing that is known is about the records that it has from there on. What was lost of it is given up, but for
        what the overflow has.
        """
        self.cuts = self.cuts.then(log_offset, self.read_until)
        self.marks = below(self.marks, log_offset)
        self._is_news = True

    def lane(self, now_ms: int, tick_ms: int, ledger_end: int) -> SourcePartition:
        """The lane as it was, as if Redis had all that it acknowledged; else with a loss to be made up for."""
        if self._is_anew and not self._begun and not self._blocks:
            # An offset that somebody set, without a word of ours, may have been meant for the former topic.
            self.low = self._settled_below = self._log_start
        elif self._log_from > self._log_start:
            self._begin_at(self.cuts.lane_offset(self._log_from))
        if not self._begun and self.marks and self.low > self.cuts.lane_offset(self.marks[-1].offset) + 1:
            self.marks = ()  # somebody has passed over what follows it
        self._number_from_former()
        loss = self._loss()
        if loss is not None:
            self.hw = self.acknowledged
        elif self._trusted:
            self._is_of_redis = self.hw > self.acknowledged
            self.acknowledged = self._counted_to = self.hw
        below = self._settled_below - self.low
        self._done[:below] = b"\x01" * below
        overtaken = [
            held for number, entries, _ in self._changes if number <= self.hw for held in self._in_care(number, entries)
        ]
        vanished = self._give_up_lost()
        overtaken = [held for held in overtaken if not self._is_done(held.offset)]
        # A former owner did not count what it had overtaken on the way, by whose source offsets it held it.
        self.overflow_held = max(self.overflow_held, self._known_in_care)
        lane = SourcePartition(
            self.id, Wheel(now_ms, tick_ms), PromotionWindows(self.watermark), OffsetMap(self.low, self._done),
            LedgerMarks(ledger_end, self.block_offset, committed_watermark=self.watermark,
                        from_redis=self.acknowledged if self._is_of_redis else 0),
            number=max([self.hw, *(number for number, _, _ in self._changes)]), acknowledged=self.hw,
            overflow_held=self.overflow_held, overflow_sealed=self.overflow_held, overflow_used=self.hw > 0,
        )  # fmt: skip
        lane.topic_id, lane.source_partitions = self._topic_id, self._partitions
        lane.first_change = self.first_change
        lane.cuts, lane.read_marks, lane.vanished = self.cuts, self.marks, vanished
        lane.touched = self._is_news
        lane.ledger.block_ms = self._written_ms if self._blocks else now_ms
        if loss is not None:
            lane.note_loss(loss.hw, loss.detail)
        lane.promotion.skip = {offset: place for offset, place in self._settled_ahead.items() if place > self.watermark}
        lane.runs = [run for run in self._runs if run[1] != NOT_DECIDED]
        lane.recovered_runs = list(self._runs)
        lane.recovered_until = self.read_until
        lane.entries = {held.offset: held for held in overtaken}
        self._redo(lane)
        for held in self._carried:
            if not self._is_done(held.offset):
                lane.entries.setdefault(held.offset, held)
        self._pointers(lane)
        lane.advance_low()
        lane.uncommitted = True
        return lane

    def _begin_at(self, offset: int) -> None:
        """Nothing below this offset is read any more."""
        if offset > self.low:
            del self._done[: offset - self.low]
            self.low = offset
            self._settled_below = max(self._settled_below, offset)

    def _give_up_lost(self) -> list[int]:
        """Mark records done that the log lost while open: nobody can read them again. Returns their offsets."""
        lost = [
            offset
            for first, stop in self.cuts.lost()
            for offset in range(max(first, self.low), stop)
            if not self._is_done(offset)
        ]
        for offset in lost:
            self._mark_done(offset)
        return lost

    def _number_from_former(self) -> None:
        """Changes of a topic that was made anew are numbered on from the former one's. So whatever Redis has of that,
        now or in an older copy, shows as a number below the first.
        """
        if self._begun or not self._former:
            return
        if self._blocks:
            self.first_change = max(self._former + 1, self._blocks[0][1].acknowledged)
        else:
            self.first_change = self.acknowledged = self._counted_to = max(self._former, self.hw) + 1
            self._is_of_redis = True

    def _loss(self) -> Loss | None:
        """Loss that Redis's number shows: less than the ledger says was acknowledged, or more than was ever written."""
        self.acknowledged = max(self.acknowledged, self._acknowledged_by_low())
        written = max([self.acknowledged, *(number for number, _, _ in self._changes)])
        if self.hw < 0:
            return Loss(0, "records are there without their number: they were being cleared away")
        if self.hw < self.acknowledged:
            return Loss(self.hw, f"{self.acknowledged} change blocks were acknowledged, {self.hw} are there")
        if self.hw > written and not self._trusted:
            detail = (
                f"{self.hw} change blocks are there, of a topic or cluster of the same name: the ledger has {written}"
            )
            # Numbers go on from there: until all of it is cleared away, it must not be taken for this lane's.
            self.first_change = self.acknowledged = self.hw + 1
            self._is_of_redis = True
            return Loss(self.hw, detail)
        return None

    def _acknowledged_by_low(self) -> int:
        """The highest change with an unsettled entry below `low`, 0 without: `low` passes what Redis has."""
        return max(
            (
                number
                for number, entries, _ in self._changes
                if number > self.hw
                for offset, due_ms in zip(entries.offsets, entries.dues_ms, strict=True)
                if offset < self.low and offset not in self._settled_ahead and (due_ms, offset) > self.watermark
            ),
            default=0,
        )

    def _mark_done(self, offset: int) -> None:
        index = offset - self.low
        if index >= len(self._done):
            self._done.extend(bytes(index + 1 - len(self._done)))
        if index >= 0:
            self._done[index] = 1

    def _in_care(self, number: int, entries: Entries) -> list[Held]:
        """Mark what the overflow has as done; returns those that it has and that the watermark has passed.

        The watermark passes only what is settled or was overtaken: held by its open source offset, its copy never to be
        promoted.
        """
        overtaken = []
        for held in decided(entries):
            if self._is_done(held.offset):
                continue
            if held.position <= self.watermark:
                overtaken.append(held)
                self.overflow_held -= number <= self._counted_to and held.position > self._counted_from
                continue
            if number > self._counted_to:
                self.overflow_held += 1
            self._known_in_care += 1
            self._mark_done(held.offset)
        return overtaken

    def _redo(self, lane: SourcePartition) -> None:
        """Change blocks that Redis hasn't: known entries, records to be read again. Settled ones need no redoing."""
        for number, entries, struck in self._changes:
            if number <= self.hw:
                continue
            wanted = [held for held in decided(entries) if not self._is_done(held.offset)]
            lane.entries.update((held.offset, held) for held in wanted)
            lane.changes.append(
                ChangeBlock(
                    number,
                    {},
                    {held.offset for held in wanted},
                    min((held.position for held in wanted), default=NEVER),
                    max(entries.dues_ms, default=-1),
                    committed=True,
                    struck=struck,
                )
            )

    def _is_done(self, offset: int) -> bool:
        index = offset - self.low
        return index < 0 or (index < len(self._done) and self._done[index] == 1)

    def _pointers(self, lane: SourcePartition) -> None:
        """Pin the ledger by the same marks that the lane had when it wrote these blocks."""
        if self._rebuild_pointer >= 0 and self._rebuild_due_ms >= 0:
            lane.ledger.rebuilds.append((self._rebuild_pointer, self._rebuild_due_ms))
        for ledger_offset, block in self._blocks:
            lane.ledger.written(mark_of(block, ledger_offset), max(block.entries.dues_ms, default=-1))


def decided(entries: Entries) -> list[Held]:
    """The entries of a change block as held records without their payload, which is in the source topic."""
    count = len(entries.offsets)
    nothing, no_headers, sources = [None] * count, [NO_HEADERS] * count, [-1] * count
    if entries.sources:
        sources = [entries.sources.get(offset, -1) for offset in entries.offsets]
    columns = (
        entries.dues_ms, entries.offsets, entries.targets, entries.target_partitions, nothing, nothing, no_headers,
        entries.policies, nothing, entries.attempts, entries.first_failures_ms, no_headers, entries.expires_ms,
        entries.dead_letters, [0] * count, sources,
    )  # fmt: skip
    return list(map(as_held, zip(*columns, strict=True)))


def table_version_at(runs: Sequence[tuple[int, int]], offset: int) -> int:
    """The policy table version that decided the record at `offset`, NOT_DECIDED when no run says."""
    index = bisect_right(runs, (offset, 1 << 62)) - 1
    return runs[index][1] if index >= 0 else NOT_DECIDED
