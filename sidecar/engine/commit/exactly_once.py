"""Settlement by transactions: emissions, ledger blocks and source offsets become facts together, or not at all.

    engine      emits into the open transaction ... | next one ...................... | next ...
                                    | serves reports |                                |
    committer                                        | offsets, commit |

1. The engine emits into the open interval, which is a transaction of one of two producers that take turns. Half an
   interval on, it writes a block ahead for each partition of the ledger: what is new to a transaction takes longest.
2. Each interval, when the committer has nothing to do, every lane seals its blocks into it. When the brokers have
   acknowledged all of it, the committer gets it. A busy committer only makes the next one longer: no turn waits for a
   commit. Reports are served here, as each needs the interpreter's lock, which two threads would hand to and fro.
3. Committed: done marks are set, change blocks go to the overflow. Aborted: all of it is emitted again. Unknown
   (neither committed nor aborted for certain): new producers under the same transactional ids end whatever was under
   way, then every lane is recovered from what Kafka has.

The offsets of a transaction are the state before it, with the place of its own blocks: a recovery reads these blocks.
Readers with isolation.level=read_committed see every record once.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any, ClassVar, Final

from sidecar.engine.commit.block_builder import (
    build_block,
    commit_state,
    has_news,
    probe_clock,
    record_block,
    restore_sealed,
    take_sealed,
)
from sidecar.engine.commit.committer import (
    APART,
    ISOLATION,
    RETRY_S,
    SMALL,
    BlockingCallThread,
    IsolationProducerRestart,
    PendingOffsetsFlush,
    make_outputs,
    next_output,
)
from sidecar.engine.commit.interval import NO_OUTPUT, CommitInterval, EmissionApart, Refusals
from sidecar.engine.commit.settlement import RECORDS_MAX, Traces, silence_of
from sidecar.engine.commit.transaction import (
    PUSH_S,
    Aborted,
    Committed,
    Ending,
    OutcomeUnknown,
    SealedBlock,
    Transaction,
    begun,
    cause_of,
    end_transaction,
)
from sidecar.engine.counters import EngineCounters
from sidecar.engine.partition.exits import OF_RECORDS, TRANSACTION_FAILED
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.source_rights import SURE_MS, SourceUnreadable
from sidecar.ledger.topic import LedgerError, LedgerTopic
from sidecar.model.ports import NO_MEMBER, Intake, Member, Time, TransactionalOutput, TransactionalOutputs
from sidecar.model.record import TopicPartition

GROW_S: Final = 5.0  # a quota lets some through at once after a rest: that is no sign of its end
GROW_SLOWLY_S: Final = 30.0  # where brokers take their time for anything, or little is due
PATIENCE_S: Final = 1.0  # without all reports by then, the committer finds out why
USUAL: Final = "usual"
TURNS: Final = (USUAL, *APART)  # each of what waits goes in its turn: none waits for ever
USUAL_MAX_S: Final = 3.0  # so long others may go before the usual one: each of them may take 6 s
SILENCES_MIN: Final = 2  # in a row: one may be what the brokers had too much of
OUTCAST: Final = frozenset({"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID"})
OUTCAST_S: Final = 1.0  # between two tries of whose offsets were refused; with another place it goes on at once

log = logging.getLogger(__name__)


class Filling:
    """Ledger blocks and source offsets of a transaction, and what becomes of them: facts, or news again. Owned by the
    engine's thread.
    """

    def __init__(self, ledger: LedgerTopic, time: Time) -> None:
        self._ledger = ledger
        self._time = time

    def write_ahead(self, transaction: Transaction, lanes: Iterable[SourcePartition], now_ms: int) -> None:
        """A block, an empty one if need be, for each partition of the ledger that will get some: so it joins the
        transaction ahead of its end. The first record for a partition waits until the coordinator knows of it.
        """
        emitting, joined = dict.fromkeys(transaction.interval.owners), set[int]()
        for lane in dict.fromkeys((*emitting, *lanes)):
            partition = self._ledger.partition_of(lane.id)
            if not lane.dropped and partition not in joined and (lane in emitting or has_news(lane)):
                joined.add(partition)
                self._seal(transaction, lane, now_ms)

    def fill(self, transaction: Transaction, lanes: Iterable[SourcePartition], now_ms: int) -> None:
        """Blocks and offsets of every lane that has something to say.

        Without a member's name the brokers can't tell this transaction from one of a lane's next owner. The client has
        lost its place in the group then, and will say so.
        """
        if not transaction.member.is_named:
            transaction.doomed = not transaction.empty
            return
        interval = transaction.interval
        owners = interval.owners + [block.lane for block in transaction.blocks]
        if any(lane.dropped for lane in owners):  # its next owner reads it again
            transaction.doomed = True
            return
        interval.give_to_lanes()
        for lane in dict.fromkeys((*interval.owners, *lanes)):  # what is emitted needs its blocks beside it
            if not lane.dropped:
                self._seal_all(transaction, lane, now_ms)

    def became_fact(self, transaction: Transaction, tally: EngineCounters) -> None:
        """A transaction is committed: what its blocks say is done. It is counted here even when somebody else has the
        lane now, who finds it done.
        """
        self.see_clock(transaction)
        for block in transaction.blocks:
            lane, seal, written = block.lane, block.seal, block.written
            assert written is not None
            record_block(lane, seal, written.offset, tally)
            if (settled := seal.block.settled).offsets:  # else a block would be followed by a commit of nothing
                lane.settle(settled.offsets, settled.dues_ms)
        for lane, state in transaction.states:
            lane.ledger.committed_watermark = state.watermark
            lane.ledger.committed(state.acknowledged)

    def see_clock(self, transaction: Transaction) -> None:
        """Each block that is acknowledged shows the broker's clock, whatever becomes of its transaction."""
        for block in transaction.blocks:
            if (written := block.written) is not None and not block.seen:
                block.seen = True
                self._time.observe(block.sent_boot_ms, written.broker_ms, written.acknowledged_boot_ms)

    def latest_ms(self, transaction: Transaction) -> float:
        """How late it can be by the broker's clock, as its blocks have shown it. On the committer's thread, too."""
        return min(
            (
                self._time.latest_ms(block.sent_boot_ms, block.written.broker_ms)
                for block in transaction.blocks
                if block.written is not None
            ),
            default=inf,
        )

    def take_back(self, transaction: Transaction, ending: Aborted) -> None:
        """A transaction is aborted: lanes have its blocks to write again. Raises LedgerError where that's of no use."""
        self.see_clock(transaction)
        if ending.ledger_refused:
            raise LedgerError(f"no right to write to the ledger topic {self._ledger.name}; `tickover doctor` says more")
        for block in reversed(transaction.blocks):
            if block.error is not None and block.error.name() in OF_RECORDS:
                raise self._ledger.refused(block.lane.id, block.error)
            restore_sealed(block.lane, block.seal)
        for lane, _ in transaction.states:
            lane.owe_commit()

    def _seal_all(self, transaction: Transaction, lane: SourcePartition, now_ms: int) -> None:
        while has_news(lane):
            self._seal(transaction, lane, now_ms)
        if lane.uncommitted:
            lane.uncommitted = False
            lane.advance_low()
            transaction.states.append((lane, commit_state(lane, lane.held_as_found(True), self._ledger)))

    def _seal(self, transaction: Transaction, lane: SourcePartition, now_ms: int) -> None:
        seal = build_block(lane, now_ms, self._ledger)
        block = SealedBlock(self._ledger, lane, seal, self._time.boot_ms)
        self._write(transaction, block)
        transaction.blocks.append(block)
        lane.owe_commit()
        take_sealed(lane, seal)

    def _write(self, transaction: Transaction, block: SealedBlock) -> None:
        """Produce one block; where the producer has no room, the committer does once it has."""
        output, lane = transaction.output, block.lane
        if transaction.failed or (transaction.blocks and not transaction.blocks[-1].sent):
            return  # blocks stay in their order
        try:
            block.send(output)
            block.sent = True
        except BufferError:
            pass
        except output.refused as error:
            if error.args[0].name() not in TRANSACTION_FAILED:
                raise self._ledger.refused(lane.id, error.args[0]) from error
            transaction.failed = True


class TransactionSizeLimit:
    """How many records a transaction may have (`most`), by what came of the last ones: of one that the brokers don't
    acknowledge in time, all is emitted again.

    A client quota makes every record take its time. Without a limit each transaction would have what piled up during
    the one before, take too long, and be aborted with all that the brokers had taken of it.
    """

    def __init__(self) -> None:
        self.most = RECORDS_MAX
        self._changed_s = self._slow_s = 0.0

    def learn(self, sent: int, taken: int, at_once: bool, now_s: float) -> None:
        """From a transaction with so many records. `taken`: acknowledged when the others were given up, 0 where that
        says nothing of its size. `at_once`: there was time for more.
        """
        if taken:
            self.most, self._changed_s = max(min(taken // 2, self.most), 1), now_s
            return
        if not at_once:
            self._slow_s = now_s
        if sent >= self.most and now_s - max(self._changed_s, self._slow_s) >= GROW_S:
            self.most, self._changed_s = min(2 * self.most, RECORDS_MAX), now_s
        elif now_s - self._changed_s >= GROW_SLOWLY_S:  # by less than what would be too much for certain
            self.most, self._changed_s = min(self.most + (self.most + 1) // 2, RECORDS_MAX), now_s


class ExactlyOnce:
    """Owned by the engine's thread; `end_transaction` and the making of producers run on the committer's."""

    shows_at_step: ClassVar = True  # to readers of what is committed

    def __init__(
        self,
        outputs: TransactionalOutputs,
        intake: Intake,
        ledger: LedgerTopic,
        refusals: Refusals,
        tally: EngineCounters,
        time: Time,
    ) -> None:
        self.ready = False
        self.must_start_over = True  # until there are producers, and after something nobody can answer for
        self.problem = ""
        self.traces: Traces | None = None
        self.tally = tally
        self.time = time
        self._makers = outputs
        self._intake = intake
        self._ledger = ledger
        self._refusals = refusals
        self._outputs: dict[str, TransactionalOutput] = {}
        self._filling = Filling(ledger, time)
        self._committer = BlockingCallThread(outputs.executor, time)
        self._remaker = IsolationProducerRestart(outputs, time)
        self._next = begun(NO_OUTPUT, 0.0)  # what is open, with the blocks that are in it already
        self._closing: Transaction | None = None  # complete, and not yet acknowledged
        self._ending: CommitInterval | None = None  # of the transaction that is closing or with the committer
        self._closing_until_s = 0.0
        self._fit = TransactionSizeLimit()
        self._turn = USUAL  # the last transaction's
        self._silences = 0  # transactions in a row whose blocks the ledger didn't acknowledge
        self._outcast: Member = NO_MEMBER  # whose offsets the group has refused
        self._outcast_until_s = 0.0
        self._refused_since_s = inf  # that a source may not be read, in each transaction since
        self._era = 0  # counts `prepare`: what an earlier one left behind must not go on
        self._prepare_at_s = 0.0

    # --- producers ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the producers anew. What former ones of the same ids have under way is over when they are ready."""
        self._prepare(None)

    def sweep(self, lanes: Iterable[SourcePartition]) -> None:
        """See the port. Where there are lanes, the two that take turns end it by their next commits."""
        held = False
        for lane in lanes:
            held = True
            lane.owe_commit()  # if all is quiet, there is a commit now
        if held:
            self._remaker.want()
        else:
            self._prepare(self._sweep())

    def _sweep(self) -> PendingOffsetsFlush:
        return PendingOffsetsFlush(self._intake.member(), TopicPartition(self._ledger.name, 0))

    def _prepare(self, sweep: PendingOffsetsFlush | None) -> None:
        self.must_start_over = self.ready = False
        self._start(NO_OUTPUT)
        former, self._outputs = self._outputs, {}
        self._era = era = self._era + 1
        self._remaker.give_up()
        self._committer.renew()
        make = partial(make_outputs, self._makers, former, lambda: era == self._era, sweep)
        self._committer.submit(make, self._prepared)

    def _prepared(self, outputs: dict[str, TransactionalOutput] | str) -> None:
        if isinstance(outputs, str):
            if self.problem != outputs:
                log.warning("no transactions for now", extra={"problem": outputs})
            self.problem = outputs
            self._prepare_at_s = self.time.monotonic_s() + RETRY_S
            return
        self.problem = ""
        self._outputs = outputs
        self._start(outputs["a"])
        self.ready = True

    def _start(self, output: Any) -> None:
        """Nothing is under way; emissions go into a transaction of this producer."""
        self._closing = self._ending = None
        self._next = begun(output, self.time.monotonic_s())

    @property
    def open(self) -> CommitInterval:
        """See `Settlement`."""
        return self._next.interval

    @property
    def room(self) -> int:
        """See `Settlement`."""
        return self._fit.most - self.open.sent

    @property
    def in_flight(self) -> Sequence[CommitInterval]:
        """See `Settlement`."""
        return (self.open,) if self._ending is None else (self._ending, self.open)

    @property
    def unwritten(self) -> tuple[int, int]:
        """See `Settlement`: their intervals are in flight."""
        return 0, 0

    @property
    def is_pressing(self) -> bool:
        """See `Settlement`. A transaction that waits for its reports is no such thing: `hasten` sees to it."""
        return not self.ready or (self._closing is not None and not self._closing.waits_for_reports)

    @property
    def is_under_way(self) -> bool:
        """See `Settlement`."""
        return self._ending is not None or self._committer.busy or self.open.sent > 0 or bool(self._next.blocks)

    # --- one step -------------------------------------------------------------------------------------------------

    def step(self, lanes: Iterable[SourcePartition], now_ms: int, apart: EmissionApart) -> bool:
        """See `Settlement`: takes in what the committer has done, hands over what is open when it has nothing to do."""
        self._take_result()
        if not self.ready or self._committer.busy or self._closing is not None:
            return False
        self._remaker.step(self._outputs, self._sweep)
        member = self._intake.member()
        if member.metadata == self._outcast.metadata and self.time.monotonic_s() < self._outcast_until_s:
            return False
        probe_clock(lanes, self.time)
        # Who hands partitions over waits for what is theirs, not for all that goes apart.
        self._turn = USUAL if any(lane.leaving for lane in lanes) else self._next_turn()
        transaction = self._next if self._turn == USUAL else self._emit_apart(now_ms, self._turn, apart)
        transaction.member = member
        self._filling.fill(transaction, lanes, now_ms)
        if transaction.empty:
            return True
        if transaction is self._next:
            other = self._outputs["b" if self.open.output is self._outputs["a"] else "a"]
            self._next = begun(other, self.time.monotonic_s())
        self._closing, self._ending = transaction, transaction.interval
        self._closing_until_s = self.time.monotonic_s() + PATIENCE_S
        if not self.hasten(quiet=False):  # sent now: an engine without time to spare may not come to it for a while
            self.poll(0)
        return True

    def write_ahead(self, lanes: Iterable[SourcePartition], now_ms: int) -> bool:
        """See `Settlement`. Blocks stay in their order: nothing before is undecided, no careful transaction between."""
        self._take_result()
        if self._ending is not None:
            return False
        if self.ready and self.open.sent and not self._refusals.isolated and not self._refusals.small:
            self._filling.write_ahead(self._next, lanes, now_ms)
        return True

    def hasten(self, quiet: bool, most_s: float = PUSH_S) -> bool:
        """See `Settlement`."""
        now_s, closing = self.time.monotonic_s(), self._closing
        if not (closing.waits_for_reports if closing else quiet and self.ready and self._next.lingers(now_s)):
            return False
        self._serve(partial((closing or self._next).push, now_s, most_s))
        return True

    def poll(self, seconds: float) -> None:
        """Serve delivery reports."""
        self._serve(partial(self.open.output.poll, seconds))

    def _serve(self, reports: Callable[[], Any]) -> None:
        """Serve reports. A closing transaction that is acknowledged, or won't be by itself, goes to the committer."""
        transaction = self._closing
        try:
            reports()
            if transaction is not None:
                transaction.output.poll(0)
        except self.open.output.refused as error:  # raised for an error that a producer doesn't survive
            self._outcome_unknown(error.args[0].str())
            return
        if transaction is None:
            return
        ends = not transaction.waits_for_reports or self.time.monotonic_s() > self._closing_until_s
        if ends or not self.time.is_known:
            self._filling.see_clock(transaction)
        if ends:
            self._closing = None
            transaction.early = transaction.interval.is_early(self.time.now_ms())
            name = next(name for name, output in self._outputs.items() if output is transaction.output)
            latest_ms = partial(self._filling.latest_ms, transaction)
            self._committer.submit(
                lambda: end_transaction(transaction, partial(next_output, self._makers, name), latest_ms),
                lambda ending: self._finished(transaction, name, ending),
            )

    def unfinished(self, lanes: Iterable[SourcePartition]) -> bool:
        """Something of these lanes is emitted or sealed and not yet a fact, or their offsets aren't committed."""
        if not self.ready:
            return False
        return (
            self._committer.busy
            or self._closing is not None
            or self.open.sent > 0
            or any(lane.settled or lane.departed or lane.uncommitted for lane in lanes)
        )

    def commit(self, lanes: Iterable[SourcePartition], wait: bool) -> None:
        """Nothing to do: transactions carry the offsets."""

    def stop(self) -> None:
        """Let the threads end. Twice is harmless."""
        self._remaker.stop()
        self._committer.stop()

    def _next_turn(self) -> str:
        """Blocks that were written ahead go first, and what might grow older than a transaction may."""
        is_old = self.open.sent > 0 and self.time.monotonic_s() - self._next.begun_s > USUAL_MAX_S
        if self._next.blocks or is_old:
            return USUAL
        waits = {USUAL: self.open.sent > 0, SMALL: bool(self._refusals.small), ISOLATION: bool(self._refusals.isolated)}
        after = TURNS.index(self._turn) + 1
        turns = (*TURNS[after:], *TURNS[:after])
        return next((turn for turn in turns if waits[turn] and (turn == USUAL or turn in self._outputs)), USUAL)

    def _emit_apart(self, now_ms: int, name: str, apart: EmissionApart) -> Transaction:
        """A transaction of records for targets of small batches; or of such as must be tried one by one, all for one
        target.
        """
        usual, output, isolated = self._next, self._outputs[name], name == ISOLATION
        interval = CommitInterval(output, output) if isolated else CommitInterval(output, small_output=output)
        transaction = self._next = Transaction(interval, careful=isolated, paced=True)
        try:
            if isolated:
                apart.emit_isolated(now_ms)
            else:
                apart.emit_small(now_ms)
        finally:
            self._next = usual
        return transaction

    # --- results --------------------------------------------------------------------------------------------------

    def _take_result(self) -> None:
        self._committer.take()
        if self._committer.late and not self.must_start_over:
            self._outcome_unknown("a call of the Kafka client does not come back")
        elif not self.ready and 0 < self._prepare_at_s <= self.time.monotonic_s():
            self._prepare_at_s = 0.0
            self.must_start_over = True  # another try

    def _finished(self, transaction: Transaction, name: str, ending: Ending) -> None:
        self._ending = None
        if name not in APART:
            at_once = isinstance(ending, Committed) and self.time.monotonic_s() <= self._closing_until_s
            self._fit.learn(transaction.interval.sent, transaction.taken, at_once, self.time.monotonic_s())
        if isinstance(ending, Committed):
            self._committed(transaction, name)
        elif isinstance(ending, Aborted):
            if ending.successor is not None:
                self._outputs[name] = ending.successor
                self._makers.let_go(transaction.output)
            self._aborted(transaction, ending)
        else:
            assert isinstance(ending, OutcomeUnknown)
            if transaction.stuck:
                self._refusals.given_up(transaction.interval)
            self._outcome_unknown(ending.reason)

    def _outcome_unknown(self, reason: str) -> None:
        """Nobody knows whether a transaction is a fact: `Assignment` sees `must_start_over`, and does so."""
        log.warning("a transaction's end is unknown: starting over from what Kafka has", extra={"problem": reason})
        self.problem = reason
        self.must_start_over, self.ready = True, False
        self._start(NO_OUTPUT)

    def _committed(self, transaction: Transaction, name: str) -> None:
        self.problem, self._silences, self._refused_since_s = "", 0, inf
        if self.traces is not None:
            self.traces.put(transaction.interval, self.time.now_ms())
        self._filling.became_fact(transaction, self.tally)
        if transaction.careful:
            self._refusals.passed_isolated(transaction.interval)
        elif name == SMALL:
            self._refusals.passed_small()

    def _aborted(self, transaction: Transaction, ending: Aborted) -> None:
        """As if it had never been: the lanes have their blocks to write again, the emitter its records to emit."""
        interval = transaction.interval
        self._filling.take_back(transaction, ending)
        silent = transaction.stuck and any(block.sent and block.written is None for block in transaction.blocks)
        self._silences = self._silences + 1 if silent else 0
        if words := ending.source_refused:
            self._doubt(words)
        if not transaction.member.is_named or words or (ending.cause is not None and ending.cause.name() in OUTCAST):
            self._outcast, self._outcast_until_s = transaction.member, self.time.monotonic_s() + OUTCAST_S
        if self._silences >= SILENCES_MIN:
            self.problem = silence_of(self._ledger)
        if not transaction.doomed:
            log.warning("a transaction was aborted", extra={"cause": cause_of(transaction, ending)})
        if transaction.stuck:
            self._refusals.given_up(interval)
        if interval.failures:
            self._refusals.refused(interval)
        elif ending.of_records and ending.cause is not None and ending.cause.name() in OF_RECORDS:
            self._refusals.suspect(interval, ending.cause, transaction.careful)
        self._refusals.take_back(interval, transaction.careful)

    def _doubt(self, words: str) -> None:
        """A source may not be read, for now: the next transactions ask again, until it is certain."""
        now_s = self.time.monotonic_s()
        self._refused_since_s = min(self._refused_since_s, now_s)
        self.problem = f"no right to read a source: {words}"
        if now_s - self._refused_since_s >= SURE_MS / 1_000:
            raise SourceUnreadable(f"{self.problem}; `tickover doctor` says more")
