"""One Kafka transaction of exactly-once settlement: its content, and how it is committed or ended otherwise.

`end_transaction` runs on the committer's thread and owns the transaction while it does: all emissions and blocks are
sent, then the offsets, then the commit. The engine's thread takes what follows from the way in which it ended:

Committed    everything in it is a fact
Aborted      nothing in it has happened: all of it is emitted again, but for what the brokers refused
OutcomeUnknown       nobody knows: the producers are made anew, which settles the matter, and the lanes are recovered
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from sidecar.engine.commit.block_builder import PendingBlock
from sidecar.engine.commit.interval import CommitInterval
from sidecar.engine.partition.exits import GIVEN_UP, REFUSED_TOPIC
from sidecar.engine.partition.partition import SourcePartition
from sidecar.ledger.commit_metadata import CommitState, encode_metadata
from sidecar.ledger.topic import LedgerTopic
from sidecar.model.ports import NO_MEMBER, Member, TransactionalOutput, refusal
from sidecar.model.record import TopicPartition

LINGER_S: Final = 0.01  # how long records wait for others before they are sent
PUSH_S: Final = 0.001  # the least that the client can wait
PUSH_AGAIN_S: Final = 0.01  # where nothing came of the last
FLUSH_S: Final = 5.0  # a target that takes longer to acknowledge must not hold up the others
CAREFUL_FLUSH_S: Final = 3.0  # for few records of one target, which may be tried in vain many times
PROBE_S: Final = 1.0
NOT_BEGUN: Final = "INVALID_TXN_STATE"  # before its commit was asked for: the brokers took none of its partitions
ANSWER_S: Final = 5.0
TAKEN_MIN: Final = 200  # with fewer records it isn't these that were too much for the ledger


@dataclass(frozen=True, slots=True)
class Written:
    """A block's place in the ledger, and the broker's clock as its acknowledgement showed it."""

    offset: int
    broker_ms: int
    acknowledged_boot_ms: float


class SealedBlock:
    """One block on its way to the ledger within a transaction."""

    __slots__ = ("_boot_ms", "_ledger", "error", "lane", "seal", "seen", "sent", "sent_boot_ms", "written")

    def __init__(
        self, ledger: LedgerTopic, lane: SourcePartition, seal: PendingBlock, boot_ms: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self.lane = lane
        self.seal = seal
        self.sent_boot_ms = boot_ms()
        self.written: Written | None = None
        self.error: Any = None
        self.sent = False
        self.seen = False  # the broker's clock, by its acknowledgement
        self._boot_ms = boot_ms

    def send(self, output: TransactionalOutput) -> None:
        """Hand it to the producer. Raises BufferError where that has no room.

        Its report is made for the call and isn't kept: a block that refers to itself, with all that it moves to the
        overflow, would wait for the garbage collector, which rests while much is held.
        """
        self._ledger.append(output, self.lane.id, self.seal.value, self.report)

    def report(self, error: Any, message: Any) -> None:
        """Delivery report, on the engine's thread or the committer's: only notes what it says."""
        self.error = refusal(error, message)
        if self.error is None:
            self.written = Written(message.offset(), message.timestamp()[1], self._boot_ms())


class Push(NamedTuple):
    """When the client was last asked to send what lingers, and how much was handed over and acknowledged by then."""

    at_s: float
    sent: int = 0
    acknowledged: int = 0


NEVER: Final = Push(0.0)


@dataclass(slots=True)
class Transaction:
    """A producer's transaction, and what is in it.

    `doomed`: it must not be committed, because a lane in it isn't ours any more, or may not be. `early`: because
    something in it isn't due by the broker's clock as it is known now. `failed`: the client takes nothing more into it.
    `stuck`: something in it was not acknowledged in time. A partition with too few replicas in sync takes no record of
    a transaction, and neither the mark of its end: until it does, the transactional id is of no use.
    """

    interval: CommitInterval
    member: Member = NO_MEMBER  # as of its end: a commit of a former generation is refused
    blocks: list[SealedBlock] = field(default_factory=list)
    states: list[tuple[SourcePartition, CommitState]] = field(default_factory=list)
    doomed: bool = False
    early: bool = False
    failed: bool = False
    stuck: bool = False
    careful: bool = False  # every record in a batch of its own
    paced: bool = False  # its client sends by itself: many batches, and a flush with each answer would be a busy loop
    taken: int = 0  # of its records when the others were given up; 0 where none were
    pushed: Push = NEVER
    begun_s: float = 0.0

    @property
    def output(self) -> TransactionalOutput:
        """The producer whose transaction it is."""
        output: TransactionalOutput = self.interval.output
        return output

    @property
    def waits_for_reports(self) -> bool:
        """All is sent, nothing is refused so far, and something is not acknowledged: more reports may come."""
        if self.doomed or self.failed or self.careful or self.interval.failures:
            return False
        blocks = self.blocks
        if any(block.error is not None or not block.sent for block in blocks):
            return False
        return not self.interval.complete or any(block.written is None for block in blocks)

    def lingers(self, now_s: float) -> bool:
        """Something in it has waited for long enough to be sent, and the client has nothing else under way."""
        sent, acknowledged = self._progress()
        return sent > self.pushed.sent and self._answered(acknowledged) and now_s - self.pushed.at_s >= LINGER_S

    def push(self, now_s: float, most_s: float = PUSH_S) -> None:
        """Have the client send what lingers, and serve delivery reports. The first of them ends the wait, and `most_s`.

        Not while it has an answer to come: a flush would have its thread wait for that in a busy loop (docs/decisions,
        0039). A flush that ended before that thread awoke has sent nothing, so there is no waiting for ever either.
        """
        if self.paced:
            self.output.poll(most_s)
            return
        sent, acknowledged = self._progress()
        if self._answered(acknowledged) or now_s - self.pushed.at_s >= PUSH_AGAIN_S:
            self.pushed = Push(now_s, sent, acknowledged)
            self.output.flush(PUSH_S)
        else:
            self.output.poll(most_s)

    def _answered(self, acknowledged: int) -> bool:
        return acknowledged > self.pushed.acknowledged or self.pushed.acknowledged == self.pushed.sent

    def _progress(self) -> tuple[int, int]:
        """Records and blocks that the client was given, and those with a report."""
        blocks = self.blocks
        reports = sum(block.written is not None or block.error is not None for block in blocks)
        return self.interval.sent + len(blocks), self.interval.acknowledged + reports

    @property
    def empty(self) -> bool:
        """Nothing to commit."""
        return not (self.blocks or self.states or self.interval.batches or self.interval.departures)


def begun(output: Any, now_s: float) -> Transaction:
    """One that this producer has begun."""
    return Transaction(CommitInterval(output), pushed=Push(now_s), begun_s=now_s)


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything in the transaction is a fact."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing in the transaction has happened. `cause` is the client's error, None when we wanted it so.

    `of_records`: a record is at fault, or its target; otherwise it was the group, and all may simply be tried again.
    """

    cause: Any = None
    of_records: bool = False
    successor: TransactionalOutput | None = None  # of its producer, which can't be used any more
    ledger_refused: bool = False  # it is the ledger that is at fault: nothing can be done without it

    @property
    def source_refused(self) -> str:
        """The client's words where a source may not be read; empty if that isn't the cause."""
        is_so = not self.of_records and self.cause is not None and self.cause.name() == REFUSED_TOPIC
        return self.cause.str() if is_so else ""  # all was taken, but for its offset


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """Nobody knows whether it was committed."""

    reason: str


Ending = Committed | Aborted | OutcomeUnknown


def cause_of(transaction: Transaction, ending: Aborted) -> str:
    """Why a transaction was aborted, for the log."""
    if transaction.early:
        return "by the broker's clock, which was set back, some of its records are not due"
    blocks = {block.error.str() for block in transaction.blocks if block.error is not None}
    records = {failure.error.str() for failure in transaction.interval.failures}
    return ending.cause.str() if ending.cause is not None else ", ".join(sorted(records or blocks)) or "too slow"


def end_transaction(
    transaction: Transaction, successor: Callable[[bool], TransactionalOutput], latest_ms: Callable[[], float]
) -> Ending:
    """Bring it to its end. Leaves its producer, or the `successor` of one that is stuck, in its next transaction.

    `latest_ms`: how late it can be by the broker's clock, as its blocks have shown it.
    """
    output = transaction.output
    of_records = True
    try:
        if transaction.doomed or transaction.early:
            return _abort(transaction, Aborted(), successor)
        if transaction.failed:
            output.flush(PROBE_S)  # the report of the record at fault, where there is one, says more than the error
            if not transaction.interval.failures:
                _ask_for_failure(transaction)
        if transaction.failed or not _acknowledged(transaction):
            _ask_for_refusal(transaction)
            return _abort(transaction, Aborted(None, of_records), successor)
        if transaction.interval.is_early(latest_ms()):
            transaction.early = True
            return _abort(transaction, Aborted(), successor)
        of_records = False
        if transaction.states:
            output.send_offsets(_offsets(transaction), transaction.member, ANSWER_S)
        output.commit(ANSWER_S)
        output.begin()
    except output.refused as error:
        cause = error.args[0]
        if cause.fatal() or not cause.txn_requires_abort():
            return OutcomeUnknown(cause.str())
        ending = _abort(transaction, Aborted(cause, of_records), successor)
        if cause.name() == REFUSED_TOPIC and of_records and isinstance(ending, Aborted):
            return _try_ledger(transaction, ending)
        return ending
    return Committed()


def _acknowledged(transaction: Transaction) -> bool:
    """Wait for every delivery report. False when a record or block was refused, or took too long."""
    output, interval = transaction.output, transaction.interval
    if output.flush(PROBE_S):
        _ask_for_failure(transaction)
        if output.flush((CAREFUL_FLUSH_S if transaction.careful else FLUSH_S) - PROBE_S):
            _give_up(transaction)
            return False
    unsent = [block for block in transaction.blocks if not block.sent and not interval.failures]
    if unsent and (not all(_send(block, output) for block in unsent) or output.flush(FLUSH_S)):
        transaction.stuck = True
        return False
    return not interval.failures and not any(block.error for block in transaction.blocks)


def _give_up(transaction: Transaction) -> None:
    """The reports of what is still under way say which records these are."""
    output, interval = transaction.output, transaction.interval
    transaction.stuck = True
    taken = interval.acknowledged - len(interval.failures)
    answered = transaction.careful or interval.acknowledged or any(block.written for block in transaction.blocks)
    output.purge()
    output.flush(PROBE_S)
    if not interval.failures:  # the ledger's blocks, most of which come last: too much, or it is away
        transaction.taken = taken if taken >= TAKEN_MIN else 0
    elif interval.taken_in_part:  # else topics that don't answer are what takes too long
        transaction.taken = taken
    if not answered:
        interval.failures = []  # not even the ledger: it is the producer that is stuck, not all topics


def _send(block: SealedBlock, output: TransactionalOutput) -> bool:
    """Send a block that found no room before. False: what takes up the room is not acknowledged in time."""
    try:
        block.send(output)
    except BufferError:
        if output.flush(FLUSH_S):
            return False
        block.send(output)  # the queue is empty: a BufferError now would be a block larger than all of it
    return True


def _ask_for_failure(transaction: Transaction) -> None:
    """Raises what a transaction has failed of. It keeps its queued records for ever and says so only when asked.

    Offsets of nothing ask without doing anything.
    """
    transaction.output.send_offsets({}, transaction.member, ANSWER_S)


def _ask_for_refusal(transaction: Transaction) -> None:
    """Raises that a topic is refused to us, if that is why the client has purged what was queued, of whatever topic."""
    output, interval = transaction.output, transaction.interval
    names = {failure.error.name() for failure in interval.failures}
    names |= {block.error.name() for block in transaction.blocks if block.error is not None}
    if transaction.stuck or not names or names - GIVEN_UP:
        return
    try:
        output.send_offsets(_nowhere(transaction), transaction.member, ANSWER_S)
    except output.refused as error:
        if error.args[0].name() == REFUSED_TOPIC:
            interval.failures = []
            raise


def _nowhere(transaction: Transaction) -> dict[TopicPartition, tuple[int, str]]:
    """Offsets to ask with, in a transaction that has failed, or is aborted next."""
    return {lane.id: (state.low, "") for lane, state in transaction.states}


def _try_ledger(transaction: Transaction, ending: Aborted) -> Ending:
    """Some topic is refused to us, and Kafka doesn't say which. Whether it is the ledger shows by sending the blocks
    alone, in a transaction that is aborted.
    """
    output = ending.successor or transaction.output
    try:
        for block in transaction.blocks:
            block.written = None
            block.send(output)
        output.flush(FLUSH_S)
        if any(block.written is None for block in transaction.blocks):
            output.send_offsets(_nowhere(transaction), transaction.member, ANSWER_S)
        output.abort(ANSWER_S)
        output.begin()
    except output.refused as error:
        if error.args[0].name() == REFUSED_TOPIC:
            return replace(ending, ledger_refused=True)
        return OutcomeUnknown(error.args[0].str())
    return ending


def _offsets(transaction: Transaction) -> dict[TopicPartition, tuple[int, str]]:
    """Offsets and metadata to commit: each lane's state with the place of its own last block, known only now."""
    states = {lane.id: state for lane, state in transaction.states}
    for block in transaction.blocks:
        assert block.written is not None
        lane = block.lane.id
        place = max(block.written.offset, states[lane].block_offset)
        states[lane] = replace(states[lane], block_offset=place)
    return {lane: (state.low, encode_metadata(state)) for lane, state in states.items()}


def _abort(transaction: Transaction, ending: Aborted, successor: Callable[[bool], TransactionalOutput]) -> Ending:
    output, interval = transaction.output, transaction.interval
    refused = list(interval.failures)  # an abort reports everything that was under way as failed: that says nothing
    try:
        try:
            output.abort(ANSWER_S)
        except output.refused as error:
            is_asked = ending.cause is not None and not ending.of_records  # its commit was: it may have been made
            if is_asked or error.args[0].name() != NOT_BEGUN:
                raise
            output = successor(False)  # nothing to abort, and the client doesn't survive that answer
        if transaction.stuck:
            output = successor(True)
        if output is not transaction.output:
            output.init(ANSWER_S)
            ending = replace(ending, successor=output)
        output.begin()
    except output.refused as error:
        return OutcomeUnknown(error.args[0].str())
    finally:
        interval.failures = refused
    return ending
