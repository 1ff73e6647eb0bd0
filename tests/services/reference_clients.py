"""The reference producer as tests use it."""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from broker.clients import Producer, ProducerSettings, StickyPartitioner


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
