"""The reference clients as tests use them."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from broker.clients import (
    Consumer,
    ConsumerRecord,
    ConsumerSettings,
    OffsetReset,
    Producer,
    ProducerSettings,
    StickyPartitioner,
    TopicPartition,
)

READ_S = 30.0


def clock() -> float:
    return time.time() * 1000


@asynccontextmanager
async def producing(bootstrap: str, settings: ProducerSettings | None = None, **more: Any) -> AsyncIterator[Producer]:
    """A running producer, with Java's default partitioner unless told otherwise; all is sent when it ends."""
    settings = settings or ProducerSettings()
    partitioner = more.pop("partitioner", None) or StickyPartitioner(settings.batch_size, random.Random(1).randrange)
    producer = Producer(bootstrap, settings, partitioner, clock, **more)
    producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(bootstrap: str, **settings: Any) -> AsyncIterator[Consumer]:
    """A consumer that begins at the beginning unless told otherwise, and waits little."""
    given = {"auto_offset_reset": OffsetReset.EARLIEST, "fetch_max_wait_ms": 50, "retry_backoff_ms": 10, **settings}
    consumer = Consumer(bootstrap, ConsumerSettings(**given))
    try:
        yield consumer
    finally:
        await consumer.close()


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Wait for `count` records, and return them."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(READ_S):
        while len(records) < count:
            records += await consumer.poll(100)
    assert len(records) == count
    return records


async def poll_until(condition: Callable[[], object], *consumers: Consumer) -> list[ConsumerRecord]:
    """All poll until it holds: what they read meanwhile."""
    records: list[ConsumerRecord] = []

    async def keep_polling(consumer: Consumer) -> None:
        while not condition():
            records.extend(await consumer.poll(20))

    async with asyncio.timeout(READ_S):
        await asyncio.gather(*(keep_polling(one) for one in consumers))
    return records


class Told:
    """A listener that keeps what it is told: (what, numbers of partitions)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def of(self, what: str) -> list[list[int]]:
        """The partitions of each such event, without those that had none."""
        return [partitions for event, partitions in self.events if event == what and partitions]

    async def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._note("revoked", partitions)

    async def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._note("assigned", partitions)

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._note("lost", partitions)

    def _note(self, what: str, partitions: Collection[TopicPartition]) -> None:
        self.events.append((what, sorted(one.partition for one in partitions)))
