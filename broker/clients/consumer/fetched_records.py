"""Kafka's CompletedFetch: the records of one partition's answer, as far as a reader may see them.

A reader of committed records gets aborted ones, too, up to the last stable offset, and a list of aborted transactions:
(producer id, first offset). From that offset on a producer's transactional batches are passed over, until its abort
marker. Control batches are nobody's records, but their offsets are passed.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from broker.clients.consumer.consumer_records import ConsumerRecord, ConsumerSettings, IsolationLevel
from broker.records.control_records import read_end_marker
from broker.records.record_batch import BatchHeader, check_crc, whole_batches
from broker.records.records import read_records
from purgatory.errors import ApiError
from purgatory.log_offsets import TopicPartition


@dataclass(slots=True)
class CompletedFetch:
    """Records behind `position`, and where to go on behind them, unless something there can't be read: `error`."""

    partition: TopicPartition
    position: int
    next_offset: int
    records: deque[ConsumerRecord] = field(default_factory=deque)
    error: ApiError | None = None

    def take(self) -> ConsumerRecord:
        """The next record."""
        record = self.records.popleft()
        self.position = record.offset + 1 if self.records or self.error else self.next_offset
        return record


def completed_fetch(partition: TopicPartition, offset: int, row: Any, settings: ConsumerSettings) -> CompletedFetch:
    """Read the answer `row` to a fetch at `offset`."""
    fetch = CompletedFetch(partition, offset, offset)
    is_committed = settings.isolation_level is IsolationLevel.READ_COMMITTED
    aborted = AbortedTransactions(row.aborted_transactions or () if is_committed else ())
    data = row.records or b""
    try:
        for header, position in whole_batches(data):
            if settings.check_crcs:
                check_crc(header, data, position)
            if not aborted.hides(header, data, position) and not header.is_control:
                for record in read_records(header, data, position):
                    if record.offset >= offset:
                        place = (partition.topic, partition.partition, record.offset, record.timestamp)
                        content = (record.key, record.value, record.headers, header.partition_leader_epoch)
                        fetch.records.append(ConsumerRecord(*place, *content))
            fetch.next_offset = header.last_offset + 1
    except ApiError as error:
        fetch.error = error
    if not fetch.records and fetch.error is None:
        fetch.position = fetch.next_offset
    return fetch


class AbortedTransactions:
    """Of one answer; asked about its batches in their order."""

    def __init__(self, rows: Any) -> None:
        self._to_come = deque(sorted((row.first_offset, row.producer_id) for row in rows))
        self._producer_ids: set[int] = set()

    def hides(self, header: BatchHeader, data: bytes, position: int) -> bool:
        """Whether a batch belongs to one of them."""
        while self._to_come and self._to_come[0][0] <= header.last_offset:
            self._producer_ids.add(self._to_come.popleft()[1])
        if header.is_control:
            marker = read_end_marker(header, data, position)
            if marker is not None and marker.is_aborted:
                self._producer_ids.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._producer_ids
