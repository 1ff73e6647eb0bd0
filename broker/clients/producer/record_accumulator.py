"""Kafka's RecordAccumulator: for each partition a queue of batches, the last of them still open.

    send() -> [ closed | closed | open ] -> a request, one batch of each partition

A batch may go when it is full, when another is behind it, when the oldest record has lingered, when somebody flushes,
or when somebody waits for memory. Memory is reckoned in whole batches, as Java allocates it.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.clients.producer.producer_records import ProducerSettings, RecordMetadata
from broker.records.record_batch import HEADER_BYTES
from broker.records.records import Producer, Record, build_batch
from purgatory.log_offsets import TopicPartition

Delivery = asyncio.Future[RecordMetadata]


class BufferExhausted(TimeoutError):
    """No memory became free within `max_block_ms`: brokers take less than is sent."""


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records for one partition. `by` is set when it is first sent, and its records are never mixed again."""

    partition: TopicPartition
    created_s: float
    reserved_bytes: int
    size: int = HEADER_BYTES
    records: list[Record] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    by: Producer | None = None
    sent_by: Producer | None = None
    attempts: int = 0
    retry_at_s: float = 0.0

    def append(self, record: Record, size: int) -> Delivery:
        """The record is the last of it now."""
        self.records.append(record._replace(offset=len(self.records)))
        self.size += size
        delivery: Delivery = asyncio.get_running_loop().create_future()
        self.deliveries.append(delivery)
        return delivery

    def encode(self, settings: ProducerSettings) -> bytes:
        """As it goes over the wire now."""
        self.sent_by = self.by
        return bytes(build_batch(self.records, settings.compression_type, self.by))

    def complete(self, base_offset: int, append_time_ms: int) -> None:
        """End deliveries: the batch was taken. Offset -1: nobody says where; time -1: that of the records counts."""
        for record, delivery in zip(self.records, self.deliveries, strict=True):
            if not delivery.done():
                offset = base_offset + record.offset if base_offset >= 0 else -1
                timestamp = record.timestamp if append_time_ms < 0 else append_time_ms
                delivery.set_result(RecordMetadata(*self.partition, offset, timestamp))

    def fail(self, error: Exception) -> None:
        """End deliveries: the batch was not taken, or nobody knows."""
        for delivery in self.deliveries:
            if not delivery.done():
                delivery.set_exception(error)


class RecordAccumulator:
    """All batches that aren't done. Times in seconds of the loop's clock."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        self._incomplete: set[ProducerBatch] = set()
        self._free = settings.buffer_memory
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._flushing = 0
        self.changed = asyncio.Event()

    async def append(self, partition: TopicPartition, record: Record, size: int) -> Delivery:
        """Add a record to the open batch, or to a new one. BufferExhausted."""
        while not self._has_room(partition, size):
            reserved = max(self._settings.batch_size, HEADER_BYTES + size)
            await self._reserve(reserved)
            if self._has_room(partition, size):  # made by another who waited, too
                self._release(reserved)
            else:
                batch = ProducerBatch(partition, asyncio.get_running_loop().time(), reserved)
                self._queues.setdefault(partition, deque()).append(batch)
                self._incomplete.add(batch)
                break
        delivery = self._queues[partition][-1].append(record, size)
        self.changed.set()
        return delivery

    def ready(self, now_s: float) -> Iterator[tuple[TopicPartition, float]]:
        """Of each partition that has something, when its first batch may go; what is not after now may go."""
        for partition, queue in self._queues.items():
            if queue:
                first = queue[0]
                is_full = len(queue) > 1 or first.size >= self._settings.batch_size
                if is_full or first.attempts or self._flushing or self._waiting:
                    yield partition, first.retry_at_s
                else:
                    yield partition, first.created_s + self._settings.linger_ms / 1000

    def first(self, partition: TopicPartition) -> ProducerBatch:
        """The batch that goes next. IndexError: there is none."""
        return self._queues[partition][0]

    def drain(self, partition: TopicPartition) -> ProducerBatch:
        """Take the batch that goes next."""
        return self._queues[partition].popleft()

    def retry(self, batch: ProducerBatch, now_s: float) -> None:
        """Put it back where it was: before all that have not been sent, in the order of sequences."""
        batch.retry_at_s = now_s + self._settings.retry_backoff_ms / 1000
        queue = self._queues[batch.partition]
        place = 0
        while place < len(queue) and queue[place].by is not None and _sequence(queue[place]) < _sequence(batch):
            place += 1
        queue.insert(place, batch)

    def expire(self, now_s: float) -> list[ProducerBatch]:
        """Take out what has waited longer than `delivery_timeout_ms`."""
        latest_s = now_s - self._settings.delivery_timeout_ms / 1000
        expired = [batch for queue in self._queues.values() for batch in queue if batch.created_s <= latest_s]
        for batch in expired:
            self._queues[batch.partition].remove(batch)
        return expired

    def done(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch that was delivered or has failed."""
        self._incomplete.discard(batch)
        self._release(batch.reserved_bytes)

    async def flush(self) -> None:
        """Send all that is here now, without lingering, and wait until it is done."""
        deliveries = [delivery for batch in self._incomplete for delivery in batch.deliveries]
        self._flushing += 1
        self.changed.set()
        try:
            await asyncio.gather(*deliveries, return_exceptions=True)
        finally:
            self._flushing -= 1

    def _has_room(self, partition: TopicPartition, size: int) -> bool:
        queue = self._queues.get(partition)
        if not queue or queue[-1].attempts:
            return False
        return queue[-1].size + size <= max(self._settings.batch_size, queue[-1].reserved_bytes)

    async def _reserve(self, count: int) -> None:
        """First come, first served."""
        if count > self._settings.buffer_memory:
            raise BufferExhausted(f"a record takes {count} bytes, buffer_memory has {self._settings.buffer_memory}")
        if not self._waiting and count <= self._free:
            self._free -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        self.changed.set()
        try:
            async with asyncio.timeout(self._settings.max_block_ms / 1000):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._release(count)
            else:
                self._waiting.remove((count, turn))
                self._release(0)
            if isinstance(error, TimeoutError):
                raise BufferExhausted(f"no {count} bytes became free in {self._settings.max_block_ms} ms") from None
            raise

    def _release(self, count: int) -> None:
        self._free += count
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, turn = self._waiting.popleft()
            self._free -= wanted
            turn.set_result(None)


def _sequence(batch: ProducerBatch) -> int:
    return -1 if batch.by is None else batch.by.base_sequence
