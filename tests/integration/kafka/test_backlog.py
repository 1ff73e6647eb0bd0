"""Where partitions end, and whether anything is there to be read, on every kind of broker."""

import pytest
from confluent_kafka import Producer

from sidecar.kafka.backlog import Backlog
from sidecar.model.record import TopicPartition
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka

pytestmark = pytest.mark.integration


def test_records_count_and_marks_of_transactions_do_not(each_kafka: Kafka) -> None:
    topic = each_kafka.topic("backlog", partitions=2)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    backlog = Backlog({"bootstrap.servers": each_kafka.bootstrap}, topic)
    each_kafka.produce(topic, [(None, b"read", (), 0, 0), (None, b"not read", (), 0, 0)])
    assert backlog.ends([one, other]) == {one: 2, other: 0}
    assert backlog.unread({one: (1, 2), other: (0, 0)}) == {one}
    assert backlog.unread({one: (2, 2), other: (0, 0)}) == set()

    producer = Producer({"bootstrap.servers": each_kafka.bootstrap, "transactional.id": topic, "retry.backoff.ms": 1})
    producer.init_transactions(ANSWER_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=0)
    producer.flush(ANSWER_TIMEOUT_S)
    each_kafka.produce(topic, [(None, b"behind it", (), 0, 0)])
    assert backlog.ends([one]) == {one: 4}
    assert backlog.unread({one: (2, 4)}) == {one}  # nobody can read on, and something is there
    producer.abort_transaction(ANSWER_TIMEOUT_S)
    each_kafka.read(topic, 3)
    assert backlog.unread({one: (2, 4)}) == {one}
    assert backlog.unread({one: (2, 3)}) == set()  # what was aborted
    assert backlog.ends([one]) == {one: 5}
    assert backlog.unread({one: (4, 5)}) == set()  # its mark
