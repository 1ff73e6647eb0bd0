"""Facts about confluent-kafka that the engine rests on: groups, assignments and committed offsets."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.services.clients import consumer, producer
from tests.services.kafka import Kafka

pytestmark = pytest.mark.slow

TIMEOUT_S = 90.0


@pytest.mark.parametrize("text", ["m" * 4_095, "é" * 2_049], ids=["letters", "two-byte letters"])
def test_commit_metadata_comes_back(kafka_place: tuple[str, str], text: str) -> None:
    bootstrap, topic = kafka_place
    # Asking for a topic is what makes it on the mock cluster.
    producer(bootstrap).list_topics(topic, TIMEOUT_S)
    client = consumer(bootstrap, topic)
    try:
        client.commit(offsets=[TopicPartition(topic, 0, 5, metadata=text)], asynchronous=False)
        [found] = client.committed([TopicPartition(topic, 0)], TIMEOUT_S)
        assert (found.offset, found.metadata) == (5, text)
    finally:
        client.close()


@pytest.mark.integration
def test_commit_metadata_ends_at_4095_characters(kafka: Kafka) -> None:
    topic = kafka.topic("metadata")
    client = consumer(kafka.bootstrap, topic)
    try:
        with pytest.raises(KafkaException) as refused:
            # The client sends a null character after the text, and the broker counts it.
            client.commit(offsets=[TopicPartition(topic, 0, 5, metadata="m" * 4_096)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    finally:
        client.close()


def test_partitions_can_be_placed_and_paused_in_the_rebalance_callback(kafka_place: tuple[str, str]) -> None:
    bootstrap, topic = kafka_place
    client = producer(bootstrap)
    for index in range(8):
        client.produce(topic, b"%d" % (index // 4), partition=index % 4)
    assert client.flush(TIMEOUT_S) == 0
    assigned: list[TopicPartition] = []

    def on_assign(member: Any, partitions: list[TopicPartition]) -> None:
        places = [TopicPartition(topic, found.partition, 1) for found in partitions]
        member.incremental_assign(places)
        member.pause([found for found in places if found.partition != 2])
        assigned.extend(places)

    member = consumer(bootstrap, topic, partition_assignment_strategy="cooperative-sticky")
    try:
        member.subscribe([topic], on_assign=on_assign)
        first = member.poll(TIMEOUT_S)
        assert first is not None
        assert (first.partition(), first.offset(), first.value()) == (2, 1, b"1")
        # Nothing else may come; there is no signal for that but the time to fetch it many times over.
        assert member.consume(1, 0.5) == []
        member.resume([found for found in assigned if found.partition != 2])
        rest = member.consume(3, TIMEOUT_S)
        assert sorted((message.partition(), message.offset()) for message in rest) == [(0, 1), (1, 1), (3, 1)]
    finally:
        member.close()


def test_without_a_committed_offset_reset_error_is_a_message(kafka_place: tuple[str, str]) -> None:
    bootstrap, topic = kafka_place
    client = producer(bootstrap)
    client.produce(topic, b"v", partition=0)
    client.flush(TIMEOUT_S)
    member = consumer(bootstrap, topic, auto_offset_reset="error")
    try:
        member.assign([TopicPartition(topic, 0)])
        message = member.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        assert (message.topic(), message.partition(), message.offset()) == (topic, 0, None)
    finally:
        member.close()
