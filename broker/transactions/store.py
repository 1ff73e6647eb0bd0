"""All transactional ids of this broker, and their records in `__transaction_state`: written, read again, forgotten."""

import logging
from collections.abc import Callable
from typing import Final

from broker.groups.coordinator_log import TRANSACTIONS_TOPIC, Appended, CoordinatorLog, Ownership
from broker.protocol.primitive_types import UnreadableRecord
from broker.records.records import Record, build_batch, read_records
from broker.transactions.records import decode_transaction, decode_transactional_id, encode_transaction
from broker.transactions.transaction import OVER, Transaction, TransactionState, TransactionValues
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

_log = logging.getLogger(__name__)

APPEND_ERRORS: Final = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.REQUEST_TIMED_OUT: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.RECORD_LIST_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
}


class TransactionStore:
    """Transactions by transactional id. `clock` gives wall-clock time in ms, `post` runs a function in a later turn."""

    def __init__(
        self,
        partitions: int,
        log: CoordinatorLog,
        clock: Callable[[], float],
        post: Callable[[Callable[[], None]], object],
    ) -> None:
        self.clock = clock
        self.transactions: dict[str, Transaction] = {}
        self.ownership = Ownership(TRANSACTIONS_TOPIC, partitions)
        self._log = log
        self._post = post

    def now_ms(self) -> int:
        """The time as it is written down."""
        return int(self.clock())

    def find(self, transactional_id: str) -> Transaction:
        """ApiError: another broker's (or not read yet), or one that never was."""
        self.ownership.check(transactional_id)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise ApiError(Errors.INVALID_PRODUCER_ID_MAPPING, "nobody has begun with this transactional id")
        return transaction

    def epoch_of(self, transaction: Transaction) -> int | None:
        """The coordinator's epoch for it; None if it isn't this broker's any more."""
        if self.transactions.get(transaction.transactional_id) is not transaction:
            return None
        return self.ownership.owned.get(self.ownership.partition_for(transaction.transactional_id).partition)

    def change(self, transaction: Transaction, values: TransactionValues, then: Callable[[Errors], None]) -> None:
        """Write down what was prepared, and then make it so. `then` is called later, with an error that a client
        understands; nothing has changed then, and nothing is pending."""
        epoch = self.epoch_of(transaction)

        def appended(result: Appended) -> None:
            if epoch is None or self.epoch_of(transaction) != epoch:
                then(Errors.NOT_COORDINATOR)
            elif result.error is Errors.NONE:
                transaction.complete(values)
                then(Errors.NONE)
            else:
                transaction.pending = None
                then(APPEND_ERRORS.get(result.error, result.error))

        self._append(transaction.transactional_id, values, appended)

    def expire(self, retention_ms: int) -> int:
        """Forget ids that nobody has used for so long. To be called from time to time. How many."""
        count = 0
        for transactional_id, transaction in list(self.transactions.items()):
            is_unused = transaction.now.state in OVER and transaction.pending is None
            if not is_unused or transaction.now.update_ms + retention_ms > self.clock():
                continue
            del self.transactions[transactional_id]
            self._append(transactional_id, None, lambda result: None)  # what fails is read, and expires, again
            count += 1
        return count

    # Leading a partition

    def on_election(self, partition: int, leader_epoch: int, loaded: Callable[[Transaction], None]) -> None:
        """Take over a partition that this broker leads now: read it in a later turn. `loaded` gets its transactions."""
        if self.ownership.owned.get(partition, -1) >= leader_epoch:
            return
        self.on_resignation(partition)
        self.ownership.loading.add(partition)
        self.ownership.owned[partition] = leader_epoch
        self._post(lambda: self._load(partition, leader_epoch, loaded))

    def on_resignation(self, partition: int) -> None:
        """Another broker leads it. What is on its way to the log is that broker's to find."""
        self.ownership.owned.pop(partition, None)
        self.ownership.loading.discard(partition)
        for transactional_id in list(self.transactions):
            if self.ownership.partition_for(transactional_id).partition == partition:
                del self.transactions[transactional_id]

    def _load(self, partition: int, leader_epoch: int, loaded: Callable[[Transaction], None]) -> None:
        if self.ownership.owned.get(partition) != leader_epoch:
            return  # it is led by another again
        found: dict[str, TransactionValues] = {}
        try:
            for header, data in self._log.batches(TopicPartition(TRANSACTIONS_TOPIC, partition)):
                for record in () if header.is_control else read_records(header, data):
                    _take(found, record)
        except ApiError:
            _log.exception("could not read %s-%d to its end", TRANSACTIONS_TOPIC, partition)
        for transactional_id, values in found.items():
            self.transactions[transactional_id] = Transaction(transactional_id, values)
        self.ownership.loading.discard(partition)
        for transactional_id in found:
            loaded(self.transactions[transactional_id])

    def _append(
        self, transactional_id: str, values: TransactionValues | None, then: Callable[[Appended], None]
    ) -> None:
        record = Record(0, self.now_ms(), *encode_transaction(transactional_id, values))
        self._log.append(self.ownership.partition_for(transactional_id), build_batch([record]), then)


def _take(found: dict[str, TransactionValues], record: Record) -> None:
    try:
        transactional_id = decode_transactional_id(record.key)
        if record.value is None:
            found.pop(transactional_id, None)
            return
        values = decode_transaction(record.value)
    except UnreadableRecord as error:
        _log.warning("passed over a record of %s: %s", TRANSACTIONS_TOPIC, error)
        return
    if values.state is not TransactionState.DEAD:
        found[transactional_id] = values
