"""Transactions in raw frames, of one broker or of several."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.protocol.api_keys import ApiKey
from broker.records.records import Producer
from purgatory.errors import Errors
from tests.services.broker_experiments import now
from tests.services.raw_client import RawClient
from tests.services.waiting import wait_until

SETTLED_S = 120.0


class Scene(Protocol):
    """Brokers 1, 2 ... at their addresses."""

    addresses: list[str]

    def ask(self, broker_id: int, api_key: ApiKey, version: int, **body: Any) -> Any:
        """One request over a connection of its own."""


def settled(ask: Callable[[], int]) -> int:
    """An answer that isn't just that somebody is about to be able to."""
    passing = (Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.CONCURRENT_TRANSACTIONS, Errors.COORDINATOR_NOT_AVAILABLE)
    codes: list[int] = []

    def is_settled() -> bool:
        codes[:] = [ask()]
        return codes[0] not in (*passing, Errors.NOT_COORDINATOR)

    wait_until(is_settled, SETTLED_S, lambda: str(codes))
    return codes[0]


class Transaction:
    """One transactional id, in raw frames: its transactions."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene = scene
        self._name = name
        self._id = (-1, -1)
        self._sequences: Counter[str] = Counter()

    @property
    def producer_id(self) -> int:
        return self._id[0]

    def begin(self, coordinator: int) -> int:
        def init() -> int:
            body = {"transactional_id": self._name, "transaction_timeout": 60_000, "producer_id": -1}
            answer = self._scene.ask(coordinator, ApiKey.INIT_PRODUCER_ID, 4, **body, producer_epoch=-1)
            self._id = (answer.producer_id, answer.producer_epoch)
            return int(answer.error_code)

        return settled(init)

    def add(self, broker_id: int, topics: Sequence[str]) -> list[int]:
        rows = [{"name": topic, "partitions": [0]} for topic in topics]
        fields = ("transactional_id", "producer_id", "producer_epoch", "topics")
        values = (self._name, *self._id, rows)
        body = {f"v3_and_below_{key}": value for key, value in zip(fields, values, strict=True)}
        answer = self._scene.ask(broker_id, ApiKey.ADD_PARTITIONS_TO_TXN, 3, **body)
        return [int(one.results_by_partition[0].partition_error_code) for one in answer.results_by_topic_v3_and_below]

    def produce(self, broker_id: int, topic: str) -> int:
        producer = Producer(*self._id, self._sequences[topic])
        self._sequences[topic] += 1
        records = now(producer=producer, is_transactional=True)
        with RawClient(self._scene.addresses[broker_id - 1]) as client:
            return int(client.produce(topic, records, transactional_id=self._name).error_code)

    def end(self, broker_id: int, *, committed: bool = True) -> int:
        body = {"transactional_id": self._name, "producer_id": self._id[0], "producer_epoch": self._id[1]}
        return int(self._scene.ask(broker_id, ApiKey.END_TXN, 3, **body, committed=committed).error_code)
