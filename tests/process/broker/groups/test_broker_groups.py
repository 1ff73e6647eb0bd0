"""Real clients' consumer groups on the reference broker."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.services.reference_broker import ReferenceBroker

pytestmark = pytest.mark.slow

ANSWER_S = 120.0
PARTITIONS = 4


@pytest.fixture
def topic(broker: ReferenceBroker, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with a record in each partition."""
    name: str = request.node.name.replace("[", "-").replace("]", "")
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in client.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(ANSWER_S)
    produce(broker, name)
    return name


def produce(broker: ReferenceBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(PARTITIONS):
        producer.produce(topic, b"value", partition=partition)
    assert producer.flush(ANSWER_S) == 0


def member(broker: ReferenceBroker, topic: str, **config: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 60_000,  # nobody is shut out because this machine is busy
            "heartbeat.interval.ms": 200,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
    )
    consumer.subscribe([topic])
    return consumer


def partitions_of(consumer: Consumer) -> set[int]:
    return {one.partition for one in consumer.assignment()}


def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> list[Any]:
    """Poll until the condition holds; returns the messages that came meanwhile."""
    found = []
    deadline = time.monotonic() + ANSWER_S
    while not condition():
        assert time.monotonic() < deadline
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message)
    return found


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_and_one_takes_over(broker: ReferenceBroker, topic: str, strategy: str) -> None:
    first = member(broker, topic, partition_assignment_strategy=strategy)
    poll_until(lambda: len(partitions_of(first)) == PARTITIONS, first)
    second = member(broker, topic, partition_assignment_strategy=strategy)
    both = (first, second)
    poll_until(lambda: [len(partitions_of(one)) for one in both] == [2, 2], *both)
    assert partitions_of(first) | partitions_of(second) == set(range(PARTITIONS))
    second.close()
    poll_until(lambda: len(partitions_of(first)) == PARTITIONS, first)
    first.close()


def test_the_next_member_goes_on_where_the_last_one_was(broker: ReferenceBroker, topic: str) -> None:
    first = member(broker, topic)
    seen: list[Any] = []
    while len(seen) < PARTITIONS:
        seen += poll_until(lambda: True, first) or [one for one in [first.poll(1)] if one is not None]
    committed = first.commit(asynchronous=False)
    assert {(one.partition, one.offset) for one in committed} == {(number, 1) for number in range(PARTITIONS)}
    first.close()
    produce(broker, topic)
    second = member(broker, topic)
    again: list[Any] = []
    while len(again) < PARTITIONS:
        again += [one for one in [second.poll(1)] if one is not None]
    assert {(one.partition(), one.offset()) for one in again} == {(number, 1) for number in range(PARTITIONS)}
    second.close()


def test_a_static_member_comes_back_without_a_rebalance(broker: ReferenceBroker, topic: str) -> None:
    first = member(broker, topic, group_instance_id="a")
    second = member(broker, topic, group_instance_id="b")
    both = (first, second)
    poll_until(lambda: [len(partitions_of(one)) for one in both] == [2, 2], *both)

    def generation() -> int:
        store = broker.inspect(lambda cluster: cluster.brokers[1].coordinators.group_store)
        return int(store.groups[topic].generation_id)

    before, had = generation(), partitions_of(second)
    second.close()  # static members don't leave
    again = member(broker, topic, group_instance_id="b")
    poll_until(lambda: partitions_of(again) == had, first, again)
    assert generation() == before
    other = member(broker, topic, group_instance_id="b")
    poll_until(lambda: partitions_of(other) == had, first, other)

    def is_fenced() -> bool:
        message = again.poll(0.1)
        error = None if message is None else message.error()
        return error is not None and error.code() == KafkaError._FATAL

    deadline = time.monotonic() + ANSWER_S
    while not is_fenced():
        assert time.monotonic() < deadline
    for one in (first, again, other):
        one.close()


def test_administrators_see_and_change_groups(broker: ReferenceBroker, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    consumer = member(broker, topic, client_id="me")
    poll_until(lambda: len(partitions_of(consumer)) == PARTITIONS, consumer)
    described = client.describe_consumer_groups([topic])[topic].result(ANSWER_S)
    assert described.state is ConsumerGroupState.STABLE
    [found] = described.members
    assert (found.client_id, found.host) == ("me", "/127.0.0.1")
    assert {one.partition for one in found.assignment.topic_partitions} == set(range(PARTITIONS))
    listed = client.list_consumer_groups().result(ANSWER_S)
    assert topic in {one.group_id for one in listed.valid}
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        client.delete_consumer_groups([topic])[topic].result(ANSWER_S)
    consumer.close()
    offsets = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 17)])
    client.alter_consumer_group_offsets([offsets])[topic].result(ANSWER_S)
    asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result(ANSWER_S)
    assert [(one.partition, one.offset) for one in asked.topic_partitions] == [(0, 17)]
    client.delete_consumer_groups([topic])[topic].result(ANSWER_S)
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        client.delete_consumer_groups([topic])[topic].result(ANSWER_S)


@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")  # of kafka-python, importing itself
def test_kafka_pythons_group(broker: ReferenceBroker, topic: str) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=int(ANSWER_S * 1000),
    )
    found = [next(consumer) for _ in range(PARTITIONS)]
    assert {one.partition for one in found} == set(range(PARTITIONS))
    consumer.commit()
    assert {consumer.committed(one) for one in consumer.assignment()} == {1}
    consumer.close()


def test_groups_are_there_again_when_the_broker_is(broker: ReferenceBroker, topic: str) -> None:
    consumer = member(broker, topic)
    poll_until(lambda: len(partitions_of(consumer)) == PARTITIONS, consumer)
    seen = poll_until(lambda: all(one.offset >= 0 for one in consumer.position(consumer.assignment())), consumer)
    consumer.commit(offsets=[TopicPartition(topic, 2, 1)], asynchronous=False)
    broker.stop()
    broker.start()
    produce(broker, topic)
    deadline = time.monotonic() + ANSWER_S
    while len(seen) < 2 * PARTITIONS:
        assert time.monotonic() < deadline
        message = consumer.poll(0.1)
        seen += [message] if message is not None and message.error() is None else []
    assert [one.offset for one in consumer.committed([TopicPartition(topic, 2)], ANSWER_S)] == [1]
    consumer.commit(offsets=[TopicPartition(topic, 2, 2)], asynchronous=False)  # it still is a member
    consumer.close()
