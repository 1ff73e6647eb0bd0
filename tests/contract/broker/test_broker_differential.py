"""A client sees the same in the same experiments on the reference broker and on real Kafka."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from purgatory.errors import Errors
from tests.services import broker_experiments, waiting_experiments
from tests.services.kafka import Kafka
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

LEADER_S = 60.0
EXPERIMENTS = {**broker_experiments.EXPERIMENTS, **waiting_experiments.EXPERIMENTS}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    broker = ReferenceBroker(tmp_path_factory.mktemp("broker")).start()
    yield broker
    broker.stop()


def is_led(client: RawClient, topic: str, partition: int) -> bool:
    """Kafka's answer to the creation comes before its brokers know."""
    return bool(client.fetch(topic, 0, partition=partition).error_code == Errors.NONE)


def outcome(name: str, bootstrap: str) -> Any:
    """On a fresh topic of two partitions."""
    topic = f"experiment-{uuid.uuid4().hex[:8]}"
    with RawClient(bootstrap) as client:
        assert client.create_topic(topic, 2).error_code == Errors.NONE
        wait_until(lambda: all(is_led(client, topic, number) for number in (0, 1)), LEADER_S, lambda: "nobody leads")
        return EXPERIMENTS[name](client, topic)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_client_sees_the_same(name: str, broker: ReferenceBroker, kafka: Kafka) -> None:
    assert outcome(name, broker.bootstrap) == outcome(name, kafka.bootstrap)
