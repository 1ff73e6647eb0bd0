"""Idempotent producers as a partition knows them: their epochs and last batches, and so what is a duplicate."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker.records.control_records import EndMarker
from broker.records.record_batch import NO_SEQUENCE, BatchHeader, increment_sequence
from purgatory.errors import ApiError, Errors

BATCHES_KEPT: Final = 5  # as many as a producer may have in flight
NO_EPOCH: Final = -1


class SentBatch(NamedTuple):
    """A batch as its producer numbered it, and as the log did."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class ProducerEntry:
    """One producer. `transaction_first_offset` is None outside of a transaction."""

    producer_epoch: int = NO_EPOCH
    coordinator_epoch: int = NO_EPOCH
    last_timestamp: int = -1
    transaction_first_offset: int | None = None
    batches: deque[SentBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))

    @property
    def last_sequence(self) -> int:
        """-1 before the first batch of an epoch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerState:
    """All producers of one partition, by id."""

    def __init__(self) -> None:
        self.producers: dict[int, ProducerEntry] = {}

    def find_duplicate(self, header: BatchHeader) -> SentBatch | None:
        """The batch that was appended already, if it is among the last five of its producer."""
        entry = self.producers.get(header.producer_id)
        if entry is None or not header.has_producer_id or header.producer_epoch != entry.producer_epoch:
            return None
        sequences = (header.base_sequence, header.last_sequence)
        return next((sent for sent in entry.batches if sent[:2] == sequences), None)

    def check(self, header: BatchHeader, marker: EndMarker | None, *, is_from_client: bool = True) -> None:
        """ApiError unless a leader may append this batch, which is no duplicate. What the broker writes in a producer's
        name, offsets of its transaction, has no sequence."""
        entry = self.producers.get(header.producer_id)
        if entry is None or not header.has_producer_id:
            return
        if header.producer_epoch < entry.producer_epoch:
            raise ApiError(Errors.INVALID_PRODUCER_EPOCH, f"{header.producer_epoch} after {entry.producer_epoch}")
        if marker is not None:
            if marker.coordinator_epoch < entry.coordinator_epoch:
                raise ApiError(
                    Errors.TRANSACTION_COORDINATOR_FENCED, f"{marker.coordinator_epoch} after {entry.coordinator_epoch}"
                )
            return
        last = entry.last_sequence if header.producer_epoch == entry.producer_epoch else NO_SEQUENCE
        expected = 0 if last == NO_SEQUENCE else increment_sequence(last, 1)
        if is_from_client and entry.producer_epoch != NO_EPOCH and header.base_sequence != expected:
            raise ApiError(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{header.base_sequence} where {expected} was expected")
        if entry.transaction_first_offset is not None and not header.is_transactional:
            raise ApiError(Errors.INVALID_TXN_STATE, "a batch outside of the producer's open transaction")

    def update(self, header: BatchHeader, marker: EndMarker | None) -> None:
        """Take in a batch that was appended."""
        if not header.has_producer_id:
            return
        entry = self.producers.setdefault(header.producer_id, ProducerEntry())
        if header.producer_epoch != entry.producer_epoch:
            entry.producer_epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_timestamp = header.max_timestamp
        if marker is not None:
            entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)
            entry.transaction_first_offset = None
        elif not header.is_control:
            if header.base_sequence != NO_SEQUENCE:
                sequences = (header.base_sequence, header.last_sequence)
                entry.batches.append(
                    SentBatch(*sequences, header.base_offset, header.last_offset, header.max_timestamp)
                )
            if header.is_transactional and entry.transaction_first_offset is None:
                entry.transaction_first_offset = header.base_offset

    def expire(self, before_ms: int) -> None:
        """Forget who has sent nothing since, and has no open transaction."""
        for producer_id, entry in list(self.producers.items()):
            if entry.transaction_first_offset is None and entry.last_timestamp < before_ms:
                del self.producers[producer_id]

    def to_rows(self) -> list[Any]:
        """For a snapshot."""
        return [
            [
                producer_id,
                entry.producer_epoch,
                entry.coordinator_epoch,
                entry.last_timestamp,
                entry.transaction_first_offset,
                [list(sent) for sent in entry.batches],
            ]
            for producer_id, entry in self.producers.items()
        ]

    def restore(self, rows: Iterable[Any]) -> None:
        """Begin from a snapshot."""
        self.producers = {}
        for producer_id, epoch, coordinator_epoch, last_timestamp, first_offset, batches in rows:
            kept = deque((SentBatch(*sent) for sent in batches), maxlen=BATCHES_KEPT)
            self.producers[producer_id] = ProducerEntry(epoch, coordinator_epoch, last_timestamp, first_offset, kept)
