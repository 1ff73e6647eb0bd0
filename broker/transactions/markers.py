"""Ending a transaction that is decided: a marker into each of its partitions, wherever that is led, then it is over.

What fails for a reason that passes is tried again. A partition that is no more has nothing to end. Only who has a later
epoch may stop this: then it is that one's to end.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker.transactions.store import TransactionStore
from broker.transactions.transaction import PREPARED, Transaction, TransactionState
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from purgatory.timer.timer import Timer, TimerTask

_log = logging.getLogger(__name__)

RETRY_MS: Final = 100
FENCED: Final = frozenset({Errors.INVALID_PRODUCER_EPOCH, Errors.TRANSACTION_COORDINATOR_FENCED})


class Marker(NamedTuple):
    """The end of a producer's transaction in all its partitions."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


Write = Callable[[TopicPartition, Marker, Callable[[Errors], None]], None]
"""Writes a marker to a partition, wherever it is led; calls back later, when all in-sync replicas have it."""


class TransactionMarkers:
    """Transactions on their way from prepared to complete."""

    def __init__(self, store: TransactionStore, write: Write, timer: Timer) -> None:
        self._store = store
        self._write = write
        self._timer = timer

    def end(self, transaction: Transaction) -> None:
        """Write the markers of a prepared transaction, and then that it is complete."""
        epoch = self._store.epoch_of(transaction)
        if epoch is None or transaction.now.state not in PREPARED:
            return
        now = transaction.now
        marker = Marker(now.producer_id, now.producer_epoch, now.state is TransactionState.PREPARE_COMMIT, epoch)
        waiting = set(now.partitions)
        for key in now.partitions:
            self._write(key, marker, partial(self._written, transaction, marker, waiting, key))
        if not waiting:
            self._complete(transaction)

    # tidy: one marker of a transaction, what it waits for, and how it ended
    def _written(
        self,
        transaction: Transaction,
        marker: Marker,
        waiting: set[TopicPartition],
        key: TopicPartition,
        error: Errors,
    ) -> None:
        if self._store.epoch_of(transaction) != marker.coordinator_epoch:
            return  # its next coordinator has found it prepared, and ends it
        if error in FENCED:
            _log.warning("markers of producer %d: %s", marker.producer_id, error.name)
            return
        if error in (Errors.NONE, Errors.UNKNOWN_TOPIC_OR_PARTITION):
            waiting.discard(key)
            if not waiting:
                self._complete(transaction)
            return
        again = partial(self._written, transaction, marker, waiting, key)
        self._timer.add(_Later(lambda: self._write(key, marker, again)))

    def _complete(self, transaction: Transaction) -> None:
        def completed(error: Errors) -> None:
            if error not in (Errors.NONE, Errors.NOT_COORDINATOR):
                self._timer.add(_Later(lambda: self._complete(transaction)))

        if self._store.epoch_of(transaction) is not None and transaction.now.state in PREPARED:
            values = transaction.prepare_complete(self._store.now_ms())
            self._store.change(transaction, values, completed)


class _Later(TimerTask):
    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__(RETRY_MS)
        self._function = function

    def run(self) -> None:
        self._function()
