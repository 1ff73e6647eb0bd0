"""What a transaction carries besides its emissions: the ledger blocks and source offsets of all lanes with news."""

from collections.abc import Iterable
from functools import partial

from sidecar.block import encode
from sidecar.departure import TRANSACTION_FAILED
from sidecar.lane import Lane
from sidecar.ledger import LedgerError, LedgerTopic
from sidecar.ports import Time
from sidecar.sealing import commit_state, has_news, seal_of, take_sealed
from sidecar.transaction import SealedBlock, Transaction


class Filling:
    """For the engine's thread."""

    def __init__(self, ledger: LedgerTopic, time: Time) -> None:
        self._ledger = ledger
        self._time = time

    def fill(self, transaction: Transaction, lanes: Iterable[Lane], now_ms: int) -> None:
        """Blocks and offsets of every lane that has something to say."""
        generation = transaction.generation
        owners = [lane for lane, _, _ in generation.batches] + [lane for lane, _ in generation.departures]
        if any(lane.dropped for lane in owners):  # its next owner reads it again
            transaction.doomed = True
            return
        generation.give_to_lanes()
        for lane in lanes:
            if not lane.dropped:
                self._seal_all(transaction, lane, now_ms)

    def _seal_all(self, transaction: Transaction, lane: Lane, now_ms: int) -> None:
        while has_news(lane):
            seal = seal_of(lane, now_ms, self._ledger.group)
            block = SealedBlock(lane, seal, self._time.boot_ms)
            self._write(transaction, block)
            transaction.blocks.append(block)
            lane.uncommitted = True
            take_sealed(lane, seal)
        if lane.uncommitted:
            lane.uncommitted = False
            lane.advance_low()
            transaction.states.append((lane, commit_state(lane, lane.overflow_sealed)))

    def _write(self, transaction: Transaction, block: SealedBlock) -> None:
        """Produce one block; where the producer has no room, the committer does once it has."""
        output, lane = transaction.output, block.lane
        block.send = partial(self._ledger.append, lane=lane.id, block=encode(block.seal.block), report=block.report)
        if transaction.failed or any(not other.sent for other in transaction.blocks):
            return  # blocks stay in their order
        try:
            block.send(output)
            block.sent = True
        except BufferError:
            pass
        except output.refused as error:
            if error.args[0].name() not in TRANSACTION_FAILED:
                raise LedgerError(f"the ledger refused a block of {lane.id}: {error.args[0].str()}") from error
            transaction.failed = True
