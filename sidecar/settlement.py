"""Settlement: the only exit. What was emitted becomes a fact in the ledger, and only then a done mark and a commit.

`AtLeastOnce`, in the order things happen:

1. The engine emits into the open generation; each delivery report counts up.
2. Each interval the generation is closed and a new one opened. Generations whose records are all acknowledged give
   them to their lanes. One slow target delays only its own generation's records.
3. Each touched lane seals a block (settled records, entries for the overflow) and produces it to the ledger.
4. The block's own delivery report marks its offsets done and lets its change block go to the overflow.
5. Lanes that moved commit their low watermark, with what a recovery needs as metadata, without waiting.

A crash between 1 and 4 repeats what was emitted since the last block, and never loses a record.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from sidecar.block import Block, Entries, Settled, encode
from sidecar.commit import CommitState, encode_metadata
from sidecar.lane import NEVER, NOT_DECIDED, NOWHERE, ChangeBlock, Lane, LedgerMark
from sidecar.ledger import LedgerError, LedgerTopic
from sidecar.ports import Intake, Output, Time
from sidecar.record import Departure, Held, LaneId, Outcome, Position
from sidecar.tally import Tally

SETTLED_PER_BLOCK_MAX: Final = 20_000
ENTRIES_PER_BLOCK_MAX: Final = 2_000
ENTRY_BYTES_PER_BLOCK_MAX: Final = 1 << 20
SETTLED_WITH_IDS_MAX: Final = 500  # an id may have 1,024 bytes, and a block must fit into a Kafka record
_offset: Final = attrgetter("offset")


class Failure(NamedTuple):
    """A delivery that Kafka refused: the client's error and message, and whether the record was alone in its batch."""

    error: Any
    message: Any
    alone: bool


class Generation:
    """Records handed to the producer within one interval, and how many of them Kafka has acknowledged."""

    __slots__ = ("acknowledged", "batches", "departures", "failures", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.batches: list[tuple[Lane, list[Held]]] = []
        self.departures: list[tuple[Lane, Departure]] = []
        self.failures: list[Failure] = []

    def report(self, error: Any, message: Any) -> None:
        """Delivery report of any record of this generation: one shared bound method, as it runs once a record."""
        self.acknowledged += 1
        if error is not None:
            self.failures.append(Failure(error, message, alone=False))

    def report_alone(self, error: Any, message: Any) -> None:
        """Delivery report of a record that was sent in a batch of its own."""
        self.acknowledged += 1
        if error is not None:
            self.failures.append(Failure(error, message, alone=True))

    @property
    def complete(self) -> bool:
        """Every record has its report."""
        return self.acknowledged == self.sent


class Refusals(Protocol):
    """Where a generation's failed deliveries go: they are emitted again or leave another way."""

    def refused(self, generation: Generation) -> None:
        """Take the failed records out of the generation and see to them."""


class Settlement(Protocol):
    """The strategy that makes emissions facts. The engine emits into `open` and calls `step` once a settle interval."""

    open: Generation

    def step(self, lanes: Iterable[Lane], now_ms: int) -> None: ...

    def unfinished(self, lanes: Iterable[Lane]) -> bool: ...

    def commit(self, lanes: Iterable[Lane], wait: bool) -> None: ...


class BlockReport:
    """One block on its way to the ledger; its delivery report makes its content a fact."""

    __slots__ = ("change", "lane", "owner", "sent_boot_ms", "settled")

    def __init__(self, owner: "AtLeastOnce", lane: Lane, settled: Settled, change: ChangeBlock | None) -> None:
        self.owner = owner
        self.lane = lane
        self.settled = settled
        self.change = change
        self.sent_boot_ms = owner.time.boot_ms()

    def report(self, error: Any, message: Any) -> None:
        """Delivery report of the block."""
        if error is not None:
            self.owner.failure = LedgerError(f"the ledger refused a block of {self.lane.id}: {error}")
            return
        self.owner.time.observe(self.sent_boot_ms, message.timestamp()[1], self.owner.time.boot_ms())
        lane = self.lane
        lane.blocks_in_flight -= 1
        if not lane.dropped:
            self._take_effect(lane, message.offset())

    def _take_effect(self, lane: Lane, ledger_offset: int) -> None:
        settled, change = self.settled, self.change
        promoted = [
            Position(due, offset)
            for due, offset, held in zip(settled.dues_ms, settled.offsets, settled.in_overflow, strict=True)
            if held
        ]
        mark = LedgerMark(
            ledger_offset,
            max(settled.offsets, default=-1),
            change.number if change else 0,
            max(promoted, default=NOWHERE),
        )
        lane.written(mark, change.latest_due_ms if change else -1)
        lane.settle(zip(settled.offsets, settled.dues_ms, strict=True))
        if change is not None:
            change.committed = True
        self.owner.tally.settled(lane.id.topic, settled.outcomes, settled.reasons, settled.offsets)


class AtLeastOnce:
    """Delivery reports, then the ledger block and its report, then the commit."""

    def __init__(
        self,
        group: str,
        output: Output,
        intake: Intake,
        ledger: LedgerTopic,
        refusals: Refusals,
        tally: Tally,
        time: Time,
    ) -> None:
        self.open = Generation()
        self.tally = tally
        self.time = time
        self.failure: LedgerError | None = None
        self._group = group
        self._output = output
        self._intake = intake
        self._ledger = ledger
        self._refusals = refusals
        self._closed: list[Generation] = []

    def step(self, lanes: Iterable[Lane], now_ms: int) -> None:
        """One settle interval."""
        if self.failure is not None:
            raise self.failure
        if self.open.sent:
            self._closed.append(self.open)
            self.open = Generation()
        self._collect()
        if self.time.probe_due():
            for lane in lanes:
                lane.touched = True  # a block, even an empty one, shows the broker's clock
                break
        for lane in lanes:
            if not self._seal_all(lane, now_ms):
                break  # the producer's queue is full: the rest waits for the next interval
        self.commit(lanes, wait=False)

    def unfinished(self, lanes: Iterable[Lane]) -> bool:
        """Something of these lanes is emitted or sealed and not yet a fact."""
        return (
            self.open.sent > 0
            or bool(self._closed)
            or any(lane.blocks_in_flight or lane.settled or lane.departed for lane in lanes)
        )

    def commit(self, lanes: Iterable[Lane], wait: bool) -> None:
        """Commit the lanes that moved."""
        offsets: Mapping[LaneId, tuple[int, str]] = {
            lane.id: (lane.advance_low(), encode_metadata(commit_state(lane)))
            for lane in lanes
            if lane.uncommitted and not lane.dropped
        }
        if not offsets:
            return
        self._intake.commit(offsets, wait)
        for lane in lanes:
            lane.uncommitted = False

    def _collect(self) -> None:
        """Give the records of acknowledged generations to their lanes."""
        if not self._closed:
            return
        waiting: list[Generation] = []
        for generation in self._closed:
            if not generation.complete:
                waiting.append(generation)
                continue
            if generation.failures:
                self._refusals.refused(generation)
            for lane, batch in generation.batches:
                lane.settled += batch
            for lane, departure in generation.departures:
                lane.departed.append(departure)
        self._closed = waiting

    def _seal_all(self, lane: Lane, now_ms: int) -> bool:
        while lane.settled or lane.departed or lane.puts or lane.touched:
            try:
                self._seal(lane, now_ms)
            except BufferError:
                return False
        return True

    def _seal(self, lane: Lane, now_ms: int) -> None:
        """Produce one block; the lane's lists lose what is in it only when the producer has taken it."""
        batch = lane.settled[:SETTLED_PER_BLOCK_MAX]
        if any(held.trailer for held in batch):
            batch = batch[:SETTLED_WITH_IDS_MAX]
        departed = lane.departed[:SETTLED_WITH_IDS_MAX]
        lane.puts.sort(key=_offset)  # almost always sorted already: only what waited for its target isn't
        puts = _bounded(lane.puts)
        settled = settled_columns(lane, batch, departed)
        promoted = sum(
            1
            for offset, held in zip(settled.offsets, settled.in_overflow, strict=True)
            if held and not lane.is_open(offset)
        )
        change = _change_block(lane.number + 1, puts) if puts else None
        block = Block(
            group=self._group,
            topic=lane.id.topic,
            partition=lane.id.partition,
            written_ms=now_ms,
            low=lane.low,
            watermark=lane.watermark,
            acknowledged=lane.acknowledged,
            overflow_held=lane.overflow_sealed - promoted,
            runs=(*lane.runs, (max(lane.next, lane.recovered_until), NOT_DECIDED)),
            number=change.number if change else 0,
            settled=settled,
            entries=entry_columns(puts),
        )
        report = BlockReport(self, lane, settled, change)
        self._ledger.append(self._output, lane.id, encode(block), report.report)
        lane.blocks_in_flight += 1
        lane.overflow_sealed -= promoted
        del lane.settled[: len(batch)]
        del lane.departed[: len(departed)]
        lane.touched = False
        if change is not None:
            lane.puts = lane.puts[len(puts) :]
            lane.number = change.number
            lane.changes.append(change)


def commit_state(lane: Lane) -> CommitState:
    """What a recovery of this lane needs beside its offset."""
    return CommitState(
        low=lane.low,
        watermark=lane.watermark,
        acknowledged=lane.acknowledged,
        block_offset=lane.block_offset,
        recovery_pointer=lane.recovery_pointer(),
        rebuild_pointer=lane.rebuild_pointer(),
        overflow_held=lane.overflow_held,
        topic_id=lane.topic_id,
        leader_epoch=-1,
    )


def settled_columns(lane: Lane, batch: list[Held], departed: list[Departure]) -> Settled:
    """The columns of a block's settled records, sorted by offset."""
    emitted = int(Outcome.EMITTED)
    rows = [(h.offset, h.due_ms, emitted, h.policy, h.target, h.attempt) for h in batch]
    rows += [(d.offset, d.due_ms, int(d.outcome), d.policy, d.topic, d.attempt) for d in departed]
    rows.sort()
    offsets, dues, outcomes, policies, targets, attempts = map(list, zip(*rows, strict=True)) if rows else ([],) * 6
    ids = {h.offset: text for h in batch if h.trailer and (text := held_id(h)) is not None}
    ids |= {d.offset: d.id for d in departed if d.id is not None}
    if lane.windows or lane.skip:
        is_open, skip = lane.is_open, lane.skip
        in_overflow = [0 if is_open(offset) and offset not in skip else 1 for offset in offsets]
    else:
        in_overflow = [0] * len(offsets)
    return Settled(
        offsets,
        dues,
        outcomes,
        in_overflow,
        policies,
        targets,
        attempts,
        ids,
        {d.offset: d.reason for d in departed},
    )


def entry_columns(puts: list[Held]) -> Entries:
    """The columns of a block's overflow entries: enough to redo each decision without deciding again."""
    return Entries(
        offsets=[held.offset for held in puts],
        dues_ms=[held.due_ms for held in puts],
        policies=[held.policy for held in puts],
        targets=[held.target for held in puts],
        target_partitions=[held.target_partition for held in puts],
        attempts=[held.attempt for held in puts],
        first_failures_ms=[held.first_failure_ms for held in puts],
        expires_ms=[held.expires_ms for held in puts],
        dead_letters=[held.dead_letter for held in puts],
        ids={held.offset: text for held in puts if held.trailer and (text := held_id(held)) is not None},
    )


def held_id(held: Held) -> str | None:
    """The user's id of a held record, None when it has none."""
    for name, value in held.trailer:
        if name == "tickover-id" and value is not None:
            return value.decode(errors="replace")
    return None


def _change_block(number: int, puts: list[Held]) -> ChangeBlock:
    return ChangeBlock(
        number=number,
        records={held.offset: held for held in puts},
        missing=set(),
        earliest=min((held.position for held in puts), default=NEVER),
        latest_due_ms=max(held.due_ms for held in puts),
    )


def _bounded(puts: list[Held]) -> list[Held]:
    """The first puts, at most as many and as large as one script may write."""
    size = 0
    for count, held in enumerate(puts[:ENTRIES_PER_BLOCK_MAX]):
        size += held.size
        if size > ENTRY_BYTES_PER_BLOCK_MAX and count:
            return puts[:count]
    return puts[:ENTRIES_PER_BLOCK_MAX]
