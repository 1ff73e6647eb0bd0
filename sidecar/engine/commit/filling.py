"""Contents of a transaction besides its emissions: the ledger blocks and source offsets of all lanes with news.

Also what becomes of them: facts, or news again.
"""

from collections.abc import Iterable
from functools import partial
from math import inf

from sidecar.engine.commit.block_builder import (
    build_block,
    commit_state,
    has_news,
    record_block,
    restore_sealed,
    take_sealed,
)
from sidecar.engine.commit.transaction import Aborted, SealedBlock, Transaction
from sidecar.engine.counters import EngineCounters
from sidecar.engine.partition.exits import OF_RECORDS, TRANSACTION_FAILED
from sidecar.engine.partition.partition import SourcePartition
from sidecar.ledger.topic import LedgerError, LedgerTopic
from sidecar.model.ports import Time


class Filling:
    """For the engine's thread."""

    def __init__(self, ledger: LedgerTopic, time: Time) -> None:
        self._ledger = ledger
        self._time = time

    def write_ahead(self, transaction: Transaction, lanes: Iterable[SourcePartition], now_ms: int) -> None:
        """A block, an empty one if need be, for each partition of the ledger that will get some: so it joins the
        transaction ahead of its end. The first record for a partition waits until the coordinator knows of it.
        """
        emitting, joined = set(transaction.interval.owners), set[int]()
        for lane in lanes:
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
        for lane in lanes:
            if not lane.dropped:
                self._seal_all(transaction, lane, now_ms)

    def became_fact(self, transaction: Transaction, tally: EngineCounters) -> None:
        """A transaction is committed: what its blocks say is done, unless somebody else has the lane now."""
        self.see_clock(transaction)
        for block in transaction.blocks:
            lane, seal, written = block.lane, block.seal, block.written
            assert written is not None
            if lane.dropped:
                continue
            record_block(lane, seal, written.offset, tally)
            if (settled := seal.block.settled).offsets:  # else a block would be followed by a commit of nothing
                lane.settle(settled.offsets, settled.dues_ms)
        for lane, state in transaction.states:
            lane.ledger.committed_watermark = state.watermark

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
        if missing := ending.missing_right(self._ledger.name):
            raise LedgerError(f"{missing}; `tickover doctor` says more")
        for block in reversed(transaction.blocks):
            if block.error is not None and block.error.name() in OF_RECORDS:
                raise self._ledger.refused(block.lane.id, block.error)
            restore_sealed(block.lane, block.seal)
        for lane, _ in transaction.states:
            lane.uncommitted = True

    def _seal_all(self, transaction: Transaction, lane: SourcePartition, now_ms: int) -> None:
        while has_news(lane):
            self._seal(transaction, lane, now_ms)
        if lane.uncommitted:
            lane.uncommitted = False
            lane.advance_low()
            transaction.states.append((lane, commit_state(lane, lane.held_as_found(True), self._ledger)))

    def _seal(self, transaction: Transaction, lane: SourcePartition, now_ms: int) -> None:
        seal = build_block(lane, now_ms, self._ledger)
        block = SealedBlock(lane, seal, self._time.boot_ms)
        self._write(transaction, block)
        transaction.blocks.append(block)
        lane.uncommitted = True
        take_sealed(lane, seal)

    def _write(self, transaction: Transaction, block: SealedBlock) -> None:
        """Produce one block; where the producer has no room, the committer does once it has."""
        output, lane = transaction.output, block.lane
        block.send = partial(self._ledger.append, lane=lane.id, block=block.seal.value, report=block.report)
        if transaction.failed or any(not other.sent for other in transaction.blocks):
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
