"""Settlement: the only exit. What was emitted becomes a fact in the ledger, and only then a done mark and a commit.

`AtLeastOnce`, in the order things happen:

1. The engine emits into the open interval; each delivery report counts up.
2. At its end the interval is closed and a new one opened. Intervals whose records are all acknowledged give them to
   their lanes. One slow target delays only its own interval's records.
3. Each touched lane seals a block (settled records, entries for the overflow) and produces it to the ledger.
4. The block's own delivery report marks its offsets done and lets its change block go to the overflow.
5. Lanes that moved commit their low watermark, with what a recovery needs as metadata, without waiting.

A crash between 1 and 4 repeats what was emitted since the last block, and never loses a record.

Partitions that don't acknowledge (`InFlight`) are found, and given nothing more until they do. Kafka's client goes
on trying for ever, and says only that some reports of an interval are missing, not whose.

    an interval is silent -----> its topics are watched: reports are counted by partition, and no record is sent
         for SILENCE_S           without its partition being known here
    a watched one is silent ---> partitions with reports missing are suspended: what is for them waits
    they answer ---------------> it goes on, in order

Without this, every interval with one record for such a partition would wait with all of its records.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Final

from sidecar.engine.commit.block_builder import (
    PendingBlock,
    build_block,
    commit_state,
    has_news,
    probe_clock,
    record_block,
    take_sealed,
)
from sidecar.engine.commit.interval import CommitInterval, EmissionApart, Refusals
from sidecar.engine.commit.settlement import RECORDS_MAX, Traces, silence_of
from sidecar.engine.counters import EngineCounters
from sidecar.engine.partition.partition import SourcePartition
from sidecar.ledger.commit_metadata import encode_metadata
from sidecar.ledger.topic import LedgerError, LedgerTopic
from sidecar.model.ports import Intake, Output, Time, refusal
from sidecar.model.record import ANY_PARTITION, TargetPartition, TopicPartition

SILENCE_S: Final = 5.0
WATCH_S: Final = 2 * SILENCE_S  # from the first silence on: what was sent meanwhile has had its time, too
SILENCE_MS: Final = 5_000  # a ledger that takes longer is a problem


class Watched(CommitInterval):
    """Counts the records of some topics, and all reports, by partition: that costs a good deal more than counting."""

    __slots__ = ("answered", "expected", "watched")

    def __init__(self, outputs: tuple[Any, ...], watched: Collection[str]) -> None:
        super().__init__(*outputs)
        self.watched = watched
        self.expected: Counter[TargetPartition] = Counter()
        self.answered: Counter[TargetPartition] = Counter()

    def handed_over(self, place: TargetPartition) -> None:
        """See `CommitInterval`. Not known later: what has no key goes by what was well at that moment."""
        if place.topic in self.watched:
            self.expected[place] += 1

    def report(self, error: Any, message: Any) -> None:
        """See `CommitInterval`."""
        self.answered[TargetPartition(message.topic(), message.partition())] += 1
        super().report(error, message)

    def report_isolated(self, error: Any, message: Any) -> None:
        """See `CommitInterval`."""
        self.answered[TargetPartition(message.topic(), message.partition())] += 1
        super().report_isolated(error, message)

    def report_small(self, error: Any, message: Any) -> None:
        """See `CommitInterval`."""
        self.answered[TargetPartition(message.topic(), message.partition())] += 1
        super().report_small(error, message)


@dataclass(slots=True)
class _Closed:
    interval: CommitInterval
    closed_s: float
    judged: bool = False
    suspended: set[TargetPartition] = field(default_factory=set)

    @property
    def counts(self) -> tuple[Counter[TargetPartition], Counter[TargetPartition]]:
        """Records expected and answered by partition, as far as they were watched."""
        watched = self.interval
        return (watched.expected, watched.answered) if isinstance(watched, Watched) else (Counter(), Counter())

    def missing(self, place: TargetPartition) -> bool:
        """Whether reports of this partition are missing.

        The report of a topic that is gone names no partition and counts for all of them. Once the interval is complete
        none is missing, though a topic may have grown unnoticed and its records went to other partitions than expected.
        """
        if self.interval.complete:
            return False
        expected, answered = self.counts
        return answered[place] < expected[place] and not answered[TargetPartition(place.topic, ANY_PARTITION)]


class InFlight:
    """Closed intervals whose reports aren't all in, oldest first. Time is an argument: seconds that never go back."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._closed: list[_Closed] = []
        self._watched: set[str] = set()
        self._watched_until_s = 0.0

    def __len__(self) -> int:
        return len(self._closed)

    def __iter__(self) -> Iterator[CommitInterval]:
        return (closed.interval for closed in self._closed)

    def close(self, interval: CommitInterval, now_s: float) -> None:
        """All of it is handed over."""
        self._closed.append(_Closed(interval, now_s))

    def open(self, outputs: tuple[Any, ...]) -> CommitInterval:
        """The next one."""
        return Watched(outputs, frozenset(self._watched)) if self._watched else CommitInterval(*outputs)

    def completed(self, now_s: float) -> list[CommitInterval]:
        """Take out those of which every record has its report; see to those that take too long."""
        complete = [closed.interval for closed in self._closed if closed.interval.complete]
        for closed in self._closed:
            if closed.suspended:
                self._release(closed)
            elif not (closed.judged or closed.interval.complete) and now_s - closed.closed_s > SILENCE_S:
                self._judge(closed, now_s)
        if complete:
            self._closed = [closed for closed in self._closed if not closed.interval.complete]
        if self._watched and now_s > self._watched_until_s:
            self._watched = set()
            self._refusals.watch(self._watched)
        return complete

    def _judge(self, closed: _Closed, now_s: float) -> None:
        closed.judged = True
        expected, _ = closed.counts
        closed.suspended = {place for place in expected if closed.missing(place)}
        if closed.suspended:
            self._refusals.silent(closed.suspended)
        known = {place.topic for place in expected}
        if unknown := closed.interval.topics - known:
            self._watched |= unknown
            self._watched_until_s = now_s + WATCH_S
            self._refusals.watch(self._watched)

    def _release(self, closed: _Closed) -> None:
        if answering := {place for place in closed.suspended if not closed.missing(place)}:
            closed.suspended -= answering
            self._refusals.answering(answering)


class BlockReport:
    """One block on its way to the ledger; its delivery report makes its content a fact."""

    __slots__ = ("bytes", "lane", "owner", "records", "seal", "sent_boot_ms")

    def __init__(self, owner: "AtLeastOnce", lane: SourcePartition, seal: PendingBlock) -> None:
        self.owner = owner
        self.lane = lane
        self.seal = seal
        self.records = seal.emitted + seal.departed
        self.bytes = len(seal.value)
        self.sent_boot_ms = owner.time.boot_ms()

    def report(self, error: Any, message: Any) -> None:
        """Delivery report of the block."""
        error = refusal(error, message)
        if error is not None:
            self.owner.refused(self, error)
            return
        self.owner.time.observe(self.sent_boot_ms, message.timestamp()[1], self.owner.time.boot_ms())
        self.owner.acknowledged(self)
        lane, seal = self.lane, self.seal
        lane.blocks_in_flight -= 1
        if lane.dropped:
            return
        record_block(lane, seal, message.offset(), self.owner.tally)
        lane.settle(seal.block.settled.offsets, seal.block.settled.dues_ms)


class AtLeastOnce:
    """Delivery reports, then the ledger block and its report, then the commit.

    `outputs`: the producer, one that sends every record in a batch of its own, and one of small batches.
    """

    shows_at_step: ClassVar = False  # brokers show each record at once

    def __init__(
        self,
        outputs: tuple[Output, Output, Output],
        intake: Intake,
        ledger: LedgerTopic,
        refusals: Refusals,
        tally: EngineCounters,
        time: Time,
    ) -> None:
        self.open = CommitInterval(*outputs)
        self.room = RECORDS_MAX  # a interval that takes long holds up no other
        self.ready = True
        self.must_start_over = False
        self.problem = ""
        self.traces: Traces | None = None
        self.tally = tally
        self.time = time
        self.failure: LedgerError | None = None
        self.waiting: dict[BlockReport, None] = {}  # blocks in the order in which they were sent
        self._outputs = outputs
        self._intake = intake
        self._ledger = ledger
        self._refusals = refusals
        self._closed = InFlight(refusals)
        self._unwritten = self._unwritten_bytes = 0

    @property
    def in_flight(self) -> Sequence[CommitInterval]:
        """See the port."""
        return self.open, *self._closed

    @property
    def unwritten(self) -> tuple[int, int]:
        """See the port."""
        return self._unwritten, self._unwritten_bytes

    @property
    def is_pressing(self) -> bool:
        """See the port: reports are counted, and what they say is looked at by the next step."""
        return False

    @property
    def is_under_way(self) -> bool:
        """See the port."""
        return self.open.sent > 0 or bool(self._closed) or bool(self.waiting)

    def prepare(self) -> None:
        """Nothing to prepare."""

    def sweep(self, lanes: Iterable[SourcePartition]) -> None:
        """No transactions of ours: somebody else's hides them."""

    def stop(self) -> None:
        """No thread to let go of."""

    def step(self, lanes: Iterable[SourcePartition], now_ms: int, apart: EmissionApart) -> bool:
        """One settle interval. Nothing goes apart: three producers take what is emitted into each interval."""
        if self.failure is not None:
            raise self.failure
        closing, self.open = self.open, self._closed.open(self._outputs)
        if closing.sent:
            self._closed.close(closing, self.time.monotonic_s())
        self._collect()
        sent_boot_ms = next((report.sent_boot_ms for report in self.waiting), inf)
        self.problem = silence_of(self._ledger) if self.time.boot_ms() - sent_boot_ms > SILENCE_MS else ""
        probe_clock(lanes, self.time)
        for lane in lanes:
            if not self._seal_all(lane, now_ms):
                break  # the producer's queue is full: the rest waits for the next interval
        self.commit(lanes, wait=False)
        return True

    def write_ahead(self, lanes: Iterable[SourcePartition], now_ms: int) -> bool:
        """Readers have what is emitted before it is settled."""
        return True

    def poll(self, seconds: float) -> None:
        """Serve the delivery reports of all intervals: they share the producers."""
        output, *others = self._outputs
        output.poll(seconds)
        for other in others:
            other.poll(0)

    def hasten(self, quiet: bool, most_s: float = 0.0) -> bool:
        """Readers have what is emitted before it is settled."""
        return False

    def unfinished(self, lanes: Iterable[SourcePartition]) -> bool:
        """Something of these lanes is emitted or sealed and not yet a fact."""
        return (
            self.open.sent > 0
            or bool(self._closed)
            or any(lane.blocks_in_flight or lane.settled or lane.departed for lane in lanes)
        )

    def commit(self, lanes: Iterable[SourcePartition], wait: bool) -> None:
        """Commit the lanes that moved."""
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        for lane in lanes:
            if lane.uncommitted and not lane.dropped:
                lane.advance_low()
                state = commit_state(lane, lane.held_as_found(False), self._ledger)
                offsets[lane.id] = (state.low, encode_metadata(state))
                lane.uncommitted = False
        if offsets:
            self._intake.commit(offsets, wait)

    def acknowledged(self, report: BlockReport) -> None:
        """The ledger has this block."""
        del self.waiting[report]
        self._unwritten -= report.records
        self._unwritten_bytes -= report.bytes

    def refused(self, report: BlockReport, error: Any) -> None:
        """The ledger will never have this block: the next step raises that."""
        self.failure = self._ledger.refused(report.lane.id, error)

    def _collect(self) -> None:
        """Give the records of acknowledged intervals to their lanes."""
        for interval in self._closed.completed(self.time.monotonic_s()):
            if interval.failures:
                self._refusals.refused(interval)
            if self.traces is not None:
                self.traces.put(interval, self.time.now_ms())
            interval.give_to_lanes()

    def _seal_all(self, lane: SourcePartition, now_ms: int) -> bool:
        while has_news(lane):
            try:
                self._seal(lane, now_ms)
            except BufferError:
                return False
        return True

    def _seal(self, lane: SourcePartition, now_ms: int) -> None:
        """Produce one block; the lane's lists lose what is in it only when the producer has taken it."""
        seal = build_block(lane, now_ms, self._ledger)
        report = BlockReport(self, lane, seal)
        self._ledger.append(self._outputs[0], lane.id, seal.value, report.report)
        self.waiting[report] = None
        self._unwritten += report.records
        self._unwritten_bytes += report.bytes
        lane.blocks_in_flight += 1
        take_sealed(lane, seal)
