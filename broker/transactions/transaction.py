"""A transactional id: whose it is, and where its transaction stands.

    Empty           no transaction yet since the producer began        -> Ongoing
    Ongoing         has partitions                                      -> PrepareCommit, PrepareAbort
    PrepareCommit   decided: markers are being written                  -> CompleteCommit
    PrepareAbort    the same                                            -> CompleteAbort
    CompleteCommit  over                                                -> Ongoing, Empty
    CompleteAbort   over                                                -> Ongoing, Empty
    Dead            its id has expired

A change is prepared, written to the log, and then made. While one is on its way no other may begin: `pending`. The
fence of a new epoch (PrepareEpochFence) is never written by itself: the abort that follows carries the epoch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_MAX: Final = (1 << 15) - 1
NO_TIME: Final = -1


class TransactionState(IntEnum):
    """Kafka's numbers, as they are in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """As administrators see it."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
OVER: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_FORMER: Final = {
    TransactionState.EMPTY: OVER,
    TransactionState.ONGOING: OVER | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: {TransactionState.ONGOING},
    TransactionState.PREPARE_ABORT: {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: {TransactionState.PREPARE_COMMIT},
    TransactionState.COMPLETE_ABORT: {TransactionState.PREPARE_ABORT},
    TransactionState.DEAD: OVER,
}


@dataclass(frozen=True, slots=True)
class TransactionValues:
    """A transactional id at one time. Times are in ms. The last producer id and epoch are those that a producer may
    still have who didn't get the answer that told it the new ones."""

    producer_id: int
    producer_epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    update_ms: int = NO_TIME
    last_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_EPOCH


class Transaction:
    """The values now, and those that are on their way to the log."""

    def __init__(self, transactional_id: str, values: TransactionValues) -> None:
        self.transactional_id = transactional_id
        self.now = values
        self.pending: TransactionValues | None = None
        self.has_failed_epoch_fence = False

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the producer id has no epoch left to give: the last is for fencing it."""
        return self.now.producer_epoch >= EPOCH_MAX - 1

    def is_timed_out(self, now_ms: float) -> bool:
        """Whether it is open for longer than its producer has asked for."""
        is_open = self.now.state is TransactionState.ONGOING and self.pending is None
        return is_open and self.now.start_ms + self.now.timeout_ms < now_ms

    def may_be(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer that goes on may be who it says: this one, or this one before its id was changed."""
        now = self.now
        if now.producer_epoch == NO_EPOCH or producer_id == now.producer_id:
            return True
        return producer_id == now.last_producer_id and producer_epoch >= EPOCH_MAX - 1

    # What can be prepared

    def prepare_next_epoch(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> TransactionValues:
        """A producer begins. With the epoch that it had it gets the next; with the one before, the one it was
        given and has not heard of. PRODUCER_FENCED: it is older than that."""
        now = self.now
        bumped = 0 if now.producer_epoch == NO_EPOCH else now.producer_epoch + 1
        if expected_epoch is None:
            epoch, last = bumped, NO_EPOCH
        elif now.producer_epoch in (NO_EPOCH, expected_epoch):
            epoch, last = bumped, now.producer_epoch
        elif expected_epoch == now.last_producer_epoch:
            epoch, last = now.producer_epoch, now.last_producer_epoch
        else:
            raise ApiError(Errors.PRODUCER_FENCED, f"epoch {expected_epoch}, it is {now.producer_epoch}")
        values = self._emptied(now.producer_id, epoch, timeout_ms, now_ms)
        return self._prepare(replace(values, last_producer_id=now.last_producer_id), last)

    def prepare_next_producer_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keeps_last: bool
    ) -> TransactionValues:
        """A producer begins whose epochs are used up. `keeps_last`: it is the former one that goes on."""
        values = self._emptied(producer_id, 0, timeout_ms, now_ms)
        last = self.now.producer_epoch if keeps_last else NO_EPOCH
        return self._prepare(replace(values, last_producer_id=self.now.producer_id), last)

    def prepare_fence(self) -> TransactionValues:
        """A new epoch for the abort of what is open. Nobody is ever given it."""
        epoch = self.now.producer_epoch
        if not self.has_failed_epoch_fence:  # otherwise it was raised already, by an abort that came to nothing
            epoch += 1
        values = replace(self.now, producer_epoch=epoch, state=TransactionState.PREPARE_EPOCH_FENCE)
        return self._prepare(values, NO_EPOCH)

    def fence(self) -> None:
        """The abort follows, with the new epoch."""
        assert self.pending is not None
        self.now = replace(self.now, producer_epoch=self.pending.producer_epoch, last_producer_epoch=NO_EPOCH)
        self.pending = None

    def prepare_add(self, partitions: Iterable[TopicPartition], now_ms: int) -> TransactionValues:
        """The transaction has these partitions too; the first ones open it."""
        now = self.now
        is_open = now.state is TransactionState.ONGOING
        values = replace(
            now,
            state=TransactionState.ONGOING,
            partitions=now.partitions | frozenset(partitions),
            start_ms=now.start_ms if is_open else now_ms,
            update_ms=now_ms,
        )
        return self._prepare(values)

    def prepare_end(self, state: TransactionState, now_ms: int) -> TransactionValues:
        """Prepare the decision to commit or to abort."""
        return self._prepare(replace(self.now, state=state, update_ms=now_ms))

    def prepare_complete(self, now_ms: int) -> TransactionValues:
        """All markers are written."""
        is_commit = self.now.state is TransactionState.PREPARE_COMMIT
        state = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        self.has_failed_epoch_fence = False
        return self._prepare(replace(self.now, state=state, partitions=frozenset(), update_ms=now_ms))

    def complete(self, values: TransactionValues) -> None:
        """Take over values that are in the log."""
        assert self.now.state in _FORMER[values.state], f"{values.state.name} after {self.now.state.name}"
        self.pending = None
        self.now = values

    def _emptied(self, producer_id: int, epoch: int, timeout_ms: int, now_ms: int) -> TransactionValues:
        return TransactionValues(producer_id, epoch, timeout_ms, update_ms=now_ms)

    def _prepare(self, values: TransactionValues, last_epoch: int | None = None) -> TransactionValues:
        assert self.pending is None, f"{values.state.name} while {self.pending} is on its way"
        if last_epoch is not None:
            values = replace(values, last_producer_epoch=last_epoch)
        self.pending = values
        return values
