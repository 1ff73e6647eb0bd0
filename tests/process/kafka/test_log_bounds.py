"""Where logs begin and end, asked while the answer about one end fails.

The client's own call for it takes the answer about the other end for both in 35 to 99 of 100 cases then.
"""

from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import KafkaException, TopicPartition

from broker.protocol.api_keys import ApiKey
from policies.kafka_clients import Consumer
from purgatory.errors import Errors
from tests.services.errant_broker import ErrantServer
from tests.services.fixtures import own_broker
from tests.services.kafka import Kafka

pytestmark = pytest.mark.slow

RECORDS = 5
TIMES = 10
ANSWER_S = 30.0
MOVES = (Errors.NOT_LEADER_OR_FOLLOWER, Errors.LEADER_NOT_AVAILABLE, Errors.OFFSET_NOT_AVAILABLE)
OTHERS = (Errors.UNKNOWN_SERVER_ERROR, Errors.KAFKA_STORAGE_ERROR, Errors.UNKNOWN_TOPIC_OR_PARTITION)
PLACE = TopicPartition("orders", 0)
numbers = count(1)


@pytest.fixture(name="server", scope="module")
def server_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ErrantServer]:
    with own_broker(ErrantServer(tmp_path_factory.mktemp("kafka"))) as server:
        kafka = Kafka(server)
        kafka.create_topic(PLACE.topic, 2)
        kafka.produce(PLACE.topic, [(b"key", b"value", [], PLACE.partition, 0)] * RECORDS)
        yield server


@pytest.fixture(name="consumer")
def consumer_fixture(server: ErrantServer) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "bounds"})
    yield consumer
    consumer.close()


@pytest.mark.parametrize("error", MOVES)
def test_where_another_leader_is_chosen_it_is_asked_again(
    server: ErrantServer, consumer: Consumer, error: Errors
) -> None:
    for _ in range(TIMES):
        number = next(numbers)
        server.errand.want(number, ApiKey.LIST_OFFSETS.name, error)
        assert consumer.get_watermark_offsets(PLACE, ANSWER_S) == (0, RECORDS)
        assert server.errand.given == number


@pytest.mark.parametrize("error", OTHERS)
def test_no_answer_is_no_answer(server: ErrantServer, consumer: Consumer, error: Errors) -> None:
    for _ in range(TIMES):
        server.errand.want(next(numbers), ApiKey.LIST_OFFSETS.name, error)
        with pytest.raises(KafkaException) as refused:
            consumer.get_watermark_offsets(PLACE, ANSWER_S)
        assert refused.value.args[0].code() == error
        assert consumer.get_watermark_offsets(PLACE, ANSWER_S) == (0, RECORDS)


def test_many_are_told_at_once(consumer: Consumer) -> None:
    places = [TopicPartition(PLACE.topic, partition) for partition in range(2)]
    assert consumer.log_bounds(places, ANSWER_S) == {(PLACE.topic, 0): (0, RECORDS), (PLACE.topic, 1): (0, 0)}
    assert consumer.log_bounds([], ANSWER_S) == {}
