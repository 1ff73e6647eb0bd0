"""The reference clients as tests use them."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
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
    """So many records, waiting for them."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(READ_S):
        while len(records) < count:
            records += await consumer.poll(100)
    assert len(records) == count
    return records
