"""One Kafka transaction of the exactly-once settlement, and how it is brought to its end.

`finish` runs on the committer's thread and owns the transaction while it does: all emissions and blocks are sent, then
the offsets, then the commit. It ends in one of three ways, and the engine's thread takes what follows from each:

    Committed    everything in it is a fact
    Aborted      nothing in it has happened: all of it is emitted again, but for what the brokers refused
    Broken       nobody knows: the producers are made anew, which settles the matter, and the lanes are recovered
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sidecar.commit import CommitState, encode_metadata
from sidecar.departure import GIVEN_UP, REFUSED_TOPIC
from sidecar.generation import Generation, refusal
from sidecar.lane import Lane
from sidecar.ports import TransactionalOutput
from sidecar.record import LaneId
from sidecar.sealing import Seal

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

    __slots__ = ("_boot_ms", "error", "lane", "seal", "send", "sent", "sent_boot_ms", "written")

    send: Callable[[TransactionalOutput], None]

    def __init__(self, lane: Lane, seal: Seal, boot_ms: Callable[[], float]) -> None:
        self.lane = lane
        self.seal = seal
        self.sent_boot_ms = boot_ms()
        self.written: Written | None = None
        self.error: Any = None
        self.sent = False
        self._boot_ms = boot_ms

    def report(self, error: Any, message: Any) -> None:
        """Delivery report, on the engine's thread or the committer's: only notes what it says."""
        self.error = refusal(error, message)
        if self.error is None:
            self.written = Written(message.offset(), message.timestamp()[1], self._boot_ms())


@dataclass(slots=True)
class Transaction:
    """What is in it.

    `doomed`: it must not be committed, because a lane in it is no longer ours. `failed`: the client takes nothing more
    into it. `stuck`: something in it was not acknowledged in time. A partition with too few replicas in sync takes no
    record of a transaction, and neither the mark of its end: until it does, the transactional id is of no use.
    """

    generation: Generation
    member: Any  # the consumer's place in its group: a commit of a former generation is refused
    blocks: list[SealedBlock] = field(default_factory=list)
    states: list[tuple[Lane, CommitState]] = field(default_factory=list)
    doomed: bool = False
    failed: bool = False
    stuck: bool = False
    careful: bool = False  # every record in a batch of its own
    taken: int = 0  # of its records when the others were given up; 0 where none were

    @property
    def output(self) -> TransactionalOutput:
        """The producer whose transaction it is."""
        output: TransactionalOutput = self.generation.output
        return output

    @property
    def waits_for_reports(self) -> bool:
        """All is sent, nothing is refused so far, and something is not acknowledged: more reports may come."""
        if self.doomed or self.failed or self.careful or self.generation.failures:
            return False
        blocks = self.blocks
        if any(block.error is not None or not block.sent for block in blocks):
            return False
        return not self.generation.complete or any(block.written is None for block in blocks)

    @property
    def empty(self) -> bool:
        """Nothing to commit."""
        return not (self.blocks or self.states or self.generation.batches or self.generation.departures)


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

    def missing_right(self, ledger: str) -> str:
        """What nothing can go on without; empty if it isn't that."""
        if self.ledger_refused:
            return f"no right to write to the ledger topic {ledger}"
        if not self.of_records and self.cause is not None and self.cause.name() == REFUSED_TOPIC:
            return f"no right to read a source: {self.cause.str()}"  # all was taken, but for its offset
        return ""


@dataclass(frozen=True, slots=True)
class Broken:
    """Nobody knows whether it was committed."""

    reason: str


Ending = Committed | Aborted | Broken


def finish(transaction: Transaction, successor: Callable[[bool], TransactionalOutput]) -> Ending:
    """Bring it to its end. Leaves its producer, or the `successor` of one that is stuck, in its next transaction."""
    output = transaction.output
    of_records = True
    try:
        if transaction.doomed:
            return _abort(transaction, Aborted(), successor)
        if transaction.failed:
            output.flush(PROBE_S)  # the report of the record at fault, where there is one, says more than the error
            if not transaction.generation.failures:
                _ask_for_failure(transaction)
        if transaction.failed or not _acknowledged(transaction):
            _ask_for_refusal(transaction)
            return _abort(transaction, Aborted(None, of_records), successor)
        of_records = False
        if transaction.states:
            output.send_offsets(_offsets(transaction), transaction.member, ANSWER_S)
        output.commit(ANSWER_S)
        output.begin()
    except output.refused as error:
        cause = error.args[0]
        if cause.fatal() or not cause.txn_requires_abort():
            return Broken(cause.str())
        ending = _abort(transaction, Aborted(cause, of_records), successor)
        if cause.name() == REFUSED_TOPIC and of_records and isinstance(ending, Aborted):
            return _try_ledger(transaction, ending)
        return ending
    return Committed()


def _acknowledged(transaction: Transaction) -> bool:
    """Wait for every delivery report. False when a record or block was refused, or took too long."""
    output, generation = transaction.output, transaction.generation
    if output.flush(PROBE_S):
        _ask_for_failure(transaction)
        if output.flush((CAREFUL_FLUSH_S if transaction.careful else FLUSH_S) - PROBE_S):
            _give_up(transaction)
            return False
    unsent = [block for block in transaction.blocks if not block.sent and not generation.failures]
    if unsent and (not all(_send(block, output) for block in unsent) or output.flush(FLUSH_S)):
        transaction.stuck = True
        return False
    return not generation.failures and not any(block.error for block in transaction.blocks)


def _give_up(transaction: Transaction) -> None:
    """The reports of what is still under way say which records these are."""
    output, generation = transaction.output, transaction.generation
    transaction.stuck = True
    taken = generation.acknowledged - len(generation.failures)
    answered = transaction.careful or generation.acknowledged or any(block.written for block in transaction.blocks)
    output.purge()
    output.flush(PROBE_S)
    if not generation.failures:  # it is the ledger's blocks, which come last: too much, or a ledger that is away
        transaction.taken = taken if taken >= TAKEN_MIN else 0
    elif generation.taken_in_part:  # else topics that don't answer are what takes too long
        transaction.taken = taken
    if not answered:
        generation.failures = []  # not even the ledger: it is the producer that is stuck, not all topics


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
    output, generation = transaction.output, transaction.generation
    names = {failure.error.name() for failure in generation.failures}
    names |= {block.error.name() for block in transaction.blocks if block.error is not None}
    if transaction.stuck or not names or names - GIVEN_UP:
        return
    try:
        output.send_offsets(_nowhere(transaction), transaction.member, ANSWER_S)
    except output.refused as error:
        if error.args[0].name() == REFUSED_TOPIC:
            generation.failures = []
            raise


def _nowhere(transaction: Transaction) -> dict[LaneId, tuple[int, str]]:
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
        return Broken(error.args[0].str())
    return ending


def _offsets(transaction: Transaction) -> dict[LaneId, tuple[int, str]]:
    """What to commit: each lane's state with the place of its own last block, which is known only now."""
    states = {lane.id: state for lane, state in transaction.states}
    for block in transaction.blocks:
        assert block.written is not None
        lane = block.lane.id
        place = max(block.written.offset, states[lane].block_offset)
        states[lane] = replace(states[lane], block_offset=place)
    return {lane: (state.low, encode_metadata(state)) for lane, state in states.items()}


def _abort(transaction: Transaction, ending: Aborted, successor: Callable[[bool], TransactionalOutput]) -> Ending:
    output, generation = transaction.output, transaction.generation
    refused = list(generation.failures)  # an abort reports everything that was under way as failed: that says nothing
    try:
        try:
            output.abort(ANSWER_S)
        except output.refused as error:
            if not ending.of_records or error.args[0].name() != NOT_BEGUN:
                raise
            output = successor(False)  # nothing to abort, and the client doesn't survive that answer
        if transaction.stuck:
            output = successor(True)
        if output is not transaction.output:
            output.init(ANSWER_S)
            ending = replace(ending, successor=output)
        output.begin()
    except output.refused as error:
        return Broken(error.args[0].str())
    finally:
        generation.failures = refused
    return ending


def cause_of(transaction: Transaction, ending: Aborted) -> str:
    """Why a transaction was aborted, for the log."""
    blocks = {block.error.str() for block in transaction.blocks if block.error is not None}
    records = {failure.error.str() for failure in transaction.generation.failures}
    return ending.cause.str() if ending.cause is not None else ", ".join(sorted(records or blocks)) or "too slow"
