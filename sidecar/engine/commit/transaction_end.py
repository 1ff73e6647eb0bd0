"""How a transaction is brought to its end.

`end_transaction` runs on the committer's thread and owns the transaction while it does: all emissions and blocks are
sent, then the offsets, then the commit. The engine's thread takes what follows from the way in which it ended.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sidecar.engine.commit.transaction import Aborted, Broken, Committed, Ending, SealedBlock, Transaction
from sidecar.engine.partition.exits import GIVEN_UP, REFUSED_TOPIC
from sidecar.ledger.commit_metadata import encode_metadata
from sidecar.model.ports import TransactionalOutput
from sidecar.model.record import TopicPartition

FLUSH_S: Final = 5.0  # a target that takes longer to acknowledge must not hold up the others
CAREFUL_FLUSH_S: Final = 3.0  # for few records of one target, which may be tried in vain many times
PROBE_S: Final = 1.0
NOT_BEGUN: Final = "INVALID_TXN_STATE"  # before its commit was asked for: the brokers took none of its partitions
ANSWER_S: Final = 5.0
TAKEN_MIN: Final = 200  # with fewer records it isn't these that were too much for the ledger


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
            return Broken(cause.str())
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
        return Broken(error.args[0].str())
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
        return Broken(error.args[0].str())
    finally:
        interval.failures = refused
    return ending
