"""Transactions as their producers see them: an id and epoch, partitions added, the end. Kafka's first protocol.

Answers are given to functions, once, at once or when what they say is in the log. A transaction is decided when
PrepareCommit or PrepareAbort is: its producer is answered then, and the markers follow.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from broker.groups.types import NAME_MAX
from broker.transactions.markers import TransactionMarkers
from broker.transactions.producer_ids import ProducerIds
from broker.transactions.store import TransactionStore
from broker.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    OVER,
    PREPARED,
    Transaction,
    TransactionState,
    TransactionValues,
)
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

_log = logging.getLogger(__name__)

ENDED_BY: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}

Answer = Callable[[Errors], None]


class Begun(NamedTuple):
    """A producer's id and epoch."""

    error: Errors
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class ProducerClaim(NamedTuple):
    """Claim of a producer: the ids and the epoch that it says are its own."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Times in ms."""

    max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 86_400_000


class TransactionCoordinator:
    """The transactional ids of a broker."""

    def __init__(
        self, settings: TransactionSettings, store: TransactionStore, markers: TransactionMarkers, ids: ProducerIds
    ) -> None:
        self._settings = settings
        self._store = store
        self._markers = markers
        self._ids = ids

    def on_loaded(self, transaction: Transaction) -> None:
        """End what was decided in a transaction that was read from the log."""
        self._markers.end(transaction)

    # Beginning

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        answer: Callable[[Begun], None],
    ) -> None:
        """An id and epoch of one's own, that no other has. `expected`: those that the producer had and goes on with.

        What its predecessor left open is aborted first; until that is done the answer is CONCURRENT_TRANSACTIONS.
        """
        if transactional_id is None:
            answer(Begun(Errors.NONE, self._ids.next(), 0))
            return
        try:
            if not 0 < len(transactional_id) <= NAME_MAX:
                raise ApiError(Errors.INVALID_REQUEST, "a transactional id has a name that fits into the log")
            if not 0 < timeout_ms <= self._settings.max_timeout_ms:
                raise ApiError(Errors.INVALID_TRANSACTION_TIMEOUT, "the transaction timeout is out of range")
            self._store.ownership.check(transactional_id)
            transaction = self._store.transactions.get(transactional_id)
            if transaction is None:
                values = TransactionValues(self._ids.next(), timeout_ms=timeout_ms, update_ms=self._store.now_ms())
                transaction = Transaction(transactional_id, values)
                self._store.transactions[transactional_id] = transaction
            self._begin(transaction, timeout_ms, expected, answer)
        except ApiError as error:
            answer(Begun(error.error))

    def _begin(
        self,
        transaction: Transaction,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        answer: Callable[[Begun], None],
    ) -> None:
        if transaction.pending is not None or transaction.now.state in PREPARED:
            raise ApiError(Errors.CONCURRENT_TRANSACTIONS, "its last transaction is not complete yet")
        if expected is not None and not transaction.may_be(*expected):
            raise ApiError(Errors.PRODUCER_FENCED, "another producer has this transactional id")
        if transaction.now.state not in OVER:
            self._abort_former(transaction, answer)
            return
        now_ms = self._store.now_ms()
        if transaction.is_epoch_exhausted and transaction.now.producer_epoch != NO_EPOCH:
            keeps_last = expected is not None
            values = transaction.prepare_next_producer_id(self._ids.next(), timeout_ms, now_ms, keeps_last=keeps_last)
        else:
            epoch = None if expected is None else expected[1]
            values = transaction.prepare_next_epoch(timeout_ms, epoch, now_ms)

        def changed(error: Errors) -> None:
            begun = Begun(Errors.NONE, values.producer_id, values.producer_epoch)
            answer(begun if error is Errors.NONE else Begun(error))

        self._store.change(transaction, values, changed)

    def _abort_former(self, transaction: Transaction, answer: Callable[[Begun], None]) -> None:
        """The new epoch, with which the abort is written, fences the former producer. It is given to nobody: the new
        producer asks again and gets the next."""

        def aborted(error: Errors) -> None:
            answer(Begun(Errors.CONCURRENT_TRANSACTIONS if error is Errors.NONE else error))

        transaction.prepare_fence()
        self._abort_fenced(transaction, aborted)

    # Partitions

    def add_partitions(self, claim: ProducerClaim, partitions: Collection[TopicPartition], answer: Answer) -> None:
        """The transaction has these too. The first ones open it."""
        try:
            transaction = self._transaction_of(claim)
            if transaction.pending is not None or transaction.now.state in PREPARED:
                raise ApiError(Errors.CONCURRENT_TRANSACTIONS, "its last transaction is not complete yet")
        except ApiError as error:
            answer(error.error)
            return
        now = transaction.now
        if now.state is TransactionState.ONGOING and now.partitions.issuperset(partitions):
            answer(Errors.NONE)
            return
        self._store.change(transaction, transaction.prepare_add(partitions, self._store.now_ms()), answer)

    def verify(self, claim: ProducerClaim, key: TopicPartition) -> Errors:
        """Whether a producer's transaction has this partition: INVALID_TXN_STATE if not. A change on its way makes no
        difference: what it adds is not there yet, and what it ends is seen by the log."""
        try:
            transaction = self._transaction_of(claim)
        except ApiError as error:
            return error.error
        if transaction.now.state in PREPARED:
            return Errors.CONCURRENT_TRANSACTIONS
        return Errors.NONE if key in transaction.now.partitions else Errors.INVALID_TXN_STATE

    # Ending

    def end(self, claim: ProducerClaim, answer: Answer, *, is_commit: bool) -> None:
        """Commit or abort. Answered when that is decided; a repeated one as the first."""
        try:
            transaction = self._transaction_of(claim)
            if transaction.pending is not None:
                raise ApiError(Errors.CONCURRENT_TRANSACTIONS, "another change is on its way")
            wanted = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
            state = transaction.now.state
            if state is wanted:
                raise ApiError(Errors.CONCURRENT_TRANSACTIONS, "its markers are being written")
            if state is ENDED_BY[wanted]:
                answer(Errors.NONE)
                return
            if state is not TransactionState.ONGOING:
                raise ApiError(Errors.INVALID_TXN_STATE, f"{wanted.title} after {state.title}")
        except ApiError as error:
            answer(error.error)
            return
        self._decide(transaction, wanted, answer)

    def abort_timed_out(self) -> int:
        """Abort what is open for too long; its producer is fenced. To be called from time to time. How many."""
        now_ms = self._store.clock()
        timed_out = [one for one in self._store.transactions.values() if one.is_timed_out(now_ms)]
        for transaction in timed_out:
            _log.info("a transaction of producer %d has timed out", transaction.now.producer_id)
            transaction.prepare_fence()
            self._abort_fenced(transaction, lambda error: None)  # what fails is found again the next time
        return len(timed_out)

    def expire_ids(self) -> int:
        """Forget ids that nobody uses. To be called from time to time. How many."""
        return self._store.expire(self._settings.transactional_id_expiration_ms)

    def _abort_fenced(self, transaction: Transaction, answer: Answer) -> None:
        transaction.fence()

        def decided(error: Errors) -> None:
            if error is not Errors.NONE:
                transaction.has_failed_epoch_fence = True
            answer(error)

        self._decide(transaction, TransactionState.PREPARE_ABORT, decided)

    def _decide(self, transaction: Transaction, state: TransactionState, answer: Answer) -> None:
        values = transaction.prepare_end(state, self._store.now_ms())
        self._store.change(transaction, values, partial(self._decided, transaction, answer))

    def _decided(self, transaction: Transaction, answer: Answer, error: Errors) -> None:
        answer(error)
        if error is Errors.NONE:
            self._markers.end(transaction)

    def _transaction_of(self, claim: ProducerClaim) -> Transaction:
        """ApiError unless a producer is what it says: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""
        if not claim.transactional_id:
            raise ApiError(Errors.INVALID_REQUEST, "a transactional id has a name")
        transaction = self._store.find(claim.transactional_id)
        if transaction.now.producer_id != claim.producer_id:
            raise ApiError(Errors.INVALID_PRODUCER_ID_MAPPING, "the transactional id has another producer id")
        if transaction.now.producer_epoch != claim.producer_epoch:
            raise ApiError(Errors.PRODUCER_FENCED, f"epoch {claim.producer_epoch} is not the producer's")
        return transaction
