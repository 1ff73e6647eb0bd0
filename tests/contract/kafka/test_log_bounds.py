"""Where logs begin and end, of every kind of broker."""

import pytest
from confluent_kafka import TopicPartition

from policies.kafka_clients import Consumer
from tests.services.kafka import Kafka

pytestmark = pytest.mark.integration

ANSWER_S = 60.0


def test_many_logs_are_asked_about_at_once(each_kafka: Kafka) -> None:
    topic = each_kafka.topic("bounds", 3)
    each_kafka.produce(topic, [(b"key", b"value", [], 0, partition) for partition in (0, 0, 0, 2)])
    each_kafka.admin.delete_records([TopicPartition(topic, 0, 2)])[TopicPartition(topic, 0, 2)].result(ANSWER_S)
    consumer = Consumer({"bootstrap.servers": each_kafka.bootstrap, "group.id": "bounds"})
    try:
        bounds = consumer.log_bounds([TopicPartition(topic, partition) for partition in range(3)], ANSWER_S)
        alone = consumer.get_watermark_offsets(TopicPartition(topic, 0), ANSWER_S)
    finally:
        consumer.close()
    assert bounds == {(topic, 0): (2, 3), (topic, 1): (0, 0), (topic, 2): (0, 1)}
    assert alone == (2, 3)
