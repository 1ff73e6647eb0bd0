"""What hangs in a real Kafka is ended as its coordinator decided, and nothing else is."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from broker.api_keys import ApiKey
from broker.records import Producer as RecordProducer
from purgatory.errors import Errors
from tests.services.fixtures import own_broker
from tests.services.hanging_transactions import end_hanging_transactions
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.kafka_servers import MavenServer
from tests.services.raw_client import RawClient
from tests.unit.log_world import batch

pytestmark = [pytest.mark.integration, pytest.mark.apart]

PRODUCE_VERSION = 9


@pytest.fixture
def trusting_kafka(tmp_path: Path) -> Iterator[Kafka]:
    """It takes records of transactions that their coordinator knows nothing of: so they hang."""
    with own_broker(MavenServer(tmp_path, {"transaction.partition.verification.enable": "false"})) as server:
        yield Kafka(server)


def known_producers(client: RawClient, topic: str) -> Sequence[Any]:
    """Those that wrote to its first partition."""
    asked = [{"name": topic, "partition_indexes": [0]}]
    [answer] = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked).topics
    found: Sequence[Any] = answer.partitions[0].active_producers
    return found


def values(kafka: Kafka, topic: str) -> set[bytes | None]:
    """What readers of committed records are given."""
    return {message.value() for message in kafka.read_all(topic)}


def test_what_hangs_is_ended_as_its_coordinator_decided(trusting_kafka: Kafka) -> None:
    kafka = trusting_kafka
    topics = {ending: kafka.topic(ending, 2) for ending in ("commits", "aborts")}
    with RawClient(kafka.bootstrap) as client:
        for ending, topic in topics.items():
            producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": ending})
            producer.init_transactions(ANSWER_TIMEOUT_S)
            producer.begin_transaction()
            producer.produce(topic, b"known", partition=0)
            assert producer.flush(ANSWER_TIMEOUT_S) == 0
            producer.commit_transaction() if ending == "commits" else producer.abort_transaction()
            [known] = known_producers(client, topic)
            sender = RecordProducer(known.producer_id, known.producer_epoch, 0)
            records = batch(b"hangs", producer=sender, is_transactional=True)
            answer = client.produce(topic, records, partition=1, transactional_id=ending, version=PRODUCE_VERSION)
            assert answer.error_code == Errors.NONE
            assert b"hangs" not in values(kafka, topic)
    ended = {(one.topic, one.partition, one.start) for one in end_hanging_transactions(kafka)}
    assert ended == {(topic, 1, 0) for topic in topics.values()}
    assert values(kafka, topics["commits"]) == {b"known", b"hangs"}
    assert values(kafka, topics["aborts"]) == set()
    assert end_hanging_transactions(kafka) == []
