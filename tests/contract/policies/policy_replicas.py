"""Stores on one policy topic, as replicas have them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Producer

from policies.model import Policy
from policies.table import PolicyTable
from policies.topic.store import PolicyStore

TOPIC = "tickover.policies"
SEEN_WITHIN_S = 60.0  # 2 s are promised; the machine may be busy


def policy(name: str, delay_ms: int = 1_000) -> Policy:
    return Policy.model_validate(
        {
            "name": name,
            "match": {"topics": [name]},
            "delay": {"default": delay_ms},
            "target": {"topic": "target"},
        }
    )


class Place(NamedTuple):
    """Where a test's policies live."""

    brokers: str
    topic: str


@contextmanager
def replica(place: Place) -> Iterator[PolicyStore]:
    store = PolicyStore({"bootstrap.servers": place.brokers, "log_level": "0"}, place.topic)
    store.start()
    try:
        yield store
    finally:
        store.stop()


def seen(store: PolicyStore, condition: Callable[[PolicyTable], bool]) -> bool:
    """Whether the store's table meets the condition within the contract's limit; woken by the store."""
    met = threading.Event()

    def look(table: PolicyTable) -> None:
        if condition(table):
            met.set()

    store.on_change(look)
    look(store.table)
    return met.wait(SEEN_WITHIN_S)


def write(place: Place, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": place.brokers, "log_level": 0})
    for value in values:
        producer.produce(place.topic, value, b"", 0)
    assert producer.flush(60) == 0
