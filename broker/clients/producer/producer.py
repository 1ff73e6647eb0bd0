"""Kafka's producer:

send -> interceptors -> serializers -> partitioner -> accumulator -> sender -> broker
                                                                       |
delivery future <- interceptors <-------------------------------------+
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from broker.clients.network_client import NetworkClient
from broker.clients.producer.partitioners import Partitioner, Partitions
from broker.clients.producer.producer_records import (
    ProducerInterceptor,
    ProducerRecord,
    ProducerSettings,
    Serializer,
    record_size,
    serialize_bytes,
)
from broker.clients.producer.record_accumulator import Delivery, RecordAccumulator
from broker.clients.producer.sender import Sender
from broker.records.records import Record
from purgatory.log_offsets import TopicPartition


class Producer:
    """Lives in one event loop: `start`, `send` as often as you like, `stop`. `clock` tells ms since 1970."""

    def __init__(
        self,
        bootstrap_servers: str,
        settings: ProducerSettings,
        partitioner: Partitioner,
        clock: Callable[[], float],
        serializers: tuple[Serializer, Serializer] = (serialize_bytes, serialize_bytes),
        interceptors: Sequence[ProducerInterceptor] = (),
    ) -> None:
        self._settings = settings
        self._partitioner = partitioner
        self._clock = clock
        self._serializers = serializers
        self._interceptors = interceptors
        self._network = NetworkClient(bootstrap_servers, settings.request_timeout_ms)
        self._accumulator = RecordAccumulator(settings)
        self._sender = Sender(settings, self._network, self._accumulator)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._sender.run())

    async def stop(self) -> None:
        """Send what is left, then end. Twice is harmless."""
        if self._task is None:
            return
        await self.flush()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        await self._network.close()

    async def send(self, record: ProducerRecord) -> Delivery:
        """Returns when the record is in a batch, which takes until there is memory; the future is its delivery.

        BufferExhausted or TimeoutError after `max_block_ms`: no memory, or no such topic.
        """
        for interceptor in self._interceptors:
            record = interceptor.on_send(record)
        key, value = (
            serialize(record.topic, part)
            for serialize, part in zip(self._serializers, (record.key, record.value), strict=True)
        )
        size = record_size(key, value, record.headers)
        partitions = await self._partitions(record.topic)
        if record.partition is None:
            record = replace(record, partition=self._partitioner(record.topic, key, size, partitions))
        partition = TopicPartition(record.topic, record.partition or 0)
        timestamp = int(self._clock()) if record.timestamp_ms is None else record.timestamp_ms
        delivery = await self._accumulator.append(partition, Record(0, timestamp, key, value, record.headers), size)
        delivery.add_done_callback(partial(_tell, self._interceptors))
        return delivery

    async def flush(self) -> None:
        """Wait until all that was sent is delivered or has failed."""
        await self._accumulator.flush()

    async def _partitions(self, topic: str) -> Partitions:
        """Ask for the partitions of a topic until it is known."""
        async with asyncio.timeout(self._settings.max_block_ms / 1000):
            while not (count := self._network.metadata.partition_count(topic)):
                try:
                    await self._network.refresh(topic)
                except OSError:
                    await asyncio.sleep(self._settings.retry_backoff_ms / 1000)
                    continue
                if not self._network.metadata.partition_count(topic):
                    await asyncio.sleep(self._settings.retry_backoff_ms / 1000)
        metadata = self._network.metadata
        led = [number for number in range(count) if metadata.leader(TopicPartition(topic, number)) is not None]
        return Partitions(count, led)


def _tell(interceptors: Sequence[ProducerInterceptor], delivery: Delivery) -> None:
    error = None if delivery.cancelled() else delivery.exception()
    failure = error if isinstance(error, Exception) else None
    for interceptor in interceptors:
        interceptor.on_acknowledgement(None if failure else delivery.result(), failure)
