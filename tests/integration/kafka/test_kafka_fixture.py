"""Every kind of broker serves what the engine rests on: records, transactions, offsets with metadata."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka

pytestmark = pytest.mark.integration


def test_records_come_back_byte_for_byte(each_kafka: Kafka) -> None:
    topic = each_kafka.topic("bytes", partitions=2)
    headers = [("a", b"1"), ("a", None), ("b", b"\xff\xfe"), ("a", b"")]
    each_kafka.produce(topic, [(b"k", b"v", headers, 1_700_000_000_000, 1), (None, None, (), 0, 0)])
    messages = sorted(each_kafka.read(topic, 2), key=lambda message: message.value() or b"", reverse=True)
    assert [(message.key(), message.value(), message.headers()) for message in messages] == [
        (b"k", b"v", headers),
        (None, None, None),
    ]
    assert messages[0].timestamp()[1] == 1_700_000_000_000


def test_a_committed_reader_sees_only_committed_transactions(each_kafka: Kafka) -> None:
    topic = each_kafka.topic("transactions")
    settings = {
        "bootstrap.servers": each_kafka.bootstrap,
        "transactional.id": topic,
        "retry.backoff.ms": 1,
    }
    producer = Producer(settings)
    producer.init_transactions(ANSWER_TIMEOUT_S)
    for value in (b"aborted", b"committed"):
        producer.begin_transaction()
        producer.produce(topic, value)
        if value == b"aborted":
            producer.flush(ANSWER_TIMEOUT_S)
            producer.abort_transaction(ANSWER_TIMEOUT_S)
        else:
            producer.commit_transaction(ANSWER_TIMEOUT_S)
    each_kafka.read(topic, 1)  # a commit is decided before its marks are in the partitions
    assert [message.value() for message in each_kafka.read_all(topic)] == [b"committed"]
    everything = each_kafka.read_all(topic, isolation="read_uncommitted")
    assert [message.value() for message in everything] == [b"aborted", b"committed"]


def test_offsets_are_sent_with_metadata_in_a_transaction(each_kafka: Kafka) -> None:
    topic = each_kafka.topic("offsets")
    each_kafka.produce(topic, [(None, b"one")])
    group = {
        "bootstrap.servers": each_kafka.bootstrap,
        "group.id": topic,
        "enable.auto.commit": False,
    }
    consumer = Consumer({**group, "auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": each_kafka.bootstrap, "transactional.id": topic})
    try:
        consumer.subscribe([topic])
        assert consumer.consume(1, ANSWER_TIMEOUT_S)
        producer.init_transactions(ANSWER_TIMEOUT_S)
        producer.begin_transaction()
        committed = TopicPartition(topic, 0, 1, metadata="m" * 4_095)
        producer.send_offsets_to_transaction([committed], consumer.consumer_group_metadata(), ANSWER_TIMEOUT_S)
        producer.commit_transaction(ANSWER_TIMEOUT_S)
        [found] = consumer.committed([TopicPartition(topic, 0)], ANSWER_TIMEOUT_S)
        assert (found.offset, found.metadata) == (1, "m" * 4_095)
    finally:
        consumer.close()


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_data_and_address_survive_an_end_and_a_new_start(each_kafka: Kafka, ending: str) -> None:
    topic = each_kafka.topic("restart")
    each_kafka.produce(topic, [(None, b"before")])
    getattr(each_kafka, ending)()
    each_kafka.start()
    each_kafka.produce(topic, [(None, b"after")])
    assert [message.value() for message in each_kafka.read_all(topic)] == [
        b"before",
        b"after",
    ]


def test_topics_are_not_made_by_asking_for_them(each_kafka: Kafka) -> None:
    found = each_kafka.admin.list_topics("nobody-made-this", ANSWER_TIMEOUT_S).topics["nobody-made-this"]
    assert found.error is not None
    assert "nobody-made-this" not in each_kafka.admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics
