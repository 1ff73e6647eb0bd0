"""kafka-python on the reference broker: a client that shares no code with librdkafka, with fetch sessions."""

import warnings

import pytest

from tests.services.reference_broker import ReferenceBroker

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its own use of importlib.resources
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

pytestmark = [pytest.mark.filterwarnings("ignore:read_text is deprecated"), pytest.mark.slow]

ANSWER_S = 90.0


def test_kafka_python_produces_and_consumes(broker: ReferenceBroker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([NewTopic("kafka-python", 2, 1)])
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type="gzip", enable_idempotence=False)
    sent = [f"value {number}".encode() for number in range(500)]
    futures = [producer.send("kafka-python", value, partition=0, headers=[("name", b"x")]) for value in sent]
    assert [future.get(ANSWER_S).offset for future in futures] == list(range(len(sent)))
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=int(ANSWER_S * 1000))
    place = TopicPartition("kafka-python", 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    received = [next(consumer) for _ in sent]
    assert [one.value for one in received] == sent
    assert received[-1].headers == [("name", b"x")]
    assert consumer.end_offsets([place]) == {place: len(sent)}
    assert consumer.offsets_for_times({place: received[100].timestamp})[place].offset <= 100
    for client in (consumer, producer, admin):
        client.close()
