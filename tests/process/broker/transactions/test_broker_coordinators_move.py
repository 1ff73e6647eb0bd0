"""Groups and transactions on three brokers: markers go wherever partitions are led, and coordinators move."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.transactions.transaction import TransactionState
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition as Key
from tests.services.reference_broker import ReferenceBroker

pytestmark = pytest.mark.slow

ANSWER_S = 120.0
PARTITIONS = 6
TOPIC = "spread"


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    broker = ReferenceBroker(tmp_path_factory.mktemp("brokers"), 3).start()
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in client.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
        future.result(ANSWER_S)
    yield broker
    broker.stop()


def leader_of(broker: ReferenceBroker, topic: str) -> int:
    number: int = broker.inspect(lambda cluster: cluster.metadata.partition(Key(topic, 0)).leader)
    return number


def read_all(broker: ReferenceBroker) -> list[bytes | None]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    values: list[bytes | None] = []
    ends = 0
    deadline = time.monotonic() + ANSWER_S
    while ends < PARTITIONS:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            values.append(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            ends += 1
    consumer.close()
    return sorted(values, key=str)


def send_everywhere(producer: Producer, value: bytes) -> None:
    producer.begin_transaction()
    for number in range(PARTITIONS):
        producer.produce(TOPIC, value, partition=number)
    assert producer.flush(ANSWER_S) == 0


def test_a_transaction_over_three_brokers_and_the_loss_of_its_coordinator(broker: ReferenceBroker) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "mover", "retry.backoff.ms": 20}
    producer = Producer(settings)
    producer.init_transactions(ANSWER_S)
    send_everywhere(producer, b"1")
    producer.commit_transaction(ANSWER_S)
    send_everywhere(producer, b"2")
    producer.abort_transaction(ANSWER_S)
    assert read_all(broker) == [b"1"] * PARTITIONS
    send_everywhere(producer, b"3")
    former = leader_of(broker, "__transaction_state")
    broker.run(broker.cluster.stop_broker(former))
    assert leader_of(broker, "__transaction_state") != former
    producer.commit_transaction(ANSWER_S)  # by the coordinator that has read what the former one wrote
    assert read_all(broker) == [b"1"] * PARTITIONS + [b"3"] * PARTITIONS


def test_a_group_goes_on_at_another_broker(broker: ReferenceBroker) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "movers", "enable.auto.commit": False}
    consumer = Consumer({**settings, "session.timeout.ms": 120_000, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + ANSWER_S
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    consumer.commit(offsets=[TopicPartition(TOPIC, 2, 7)], asynchronous=False)
    former = leader_of(broker, "__consumer_offsets")
    broker.run(broker.cluster.stop_broker(former))
    [found] = consumer.committed([TopicPartition(TOPIC, 2)], ANSWER_S)
    assert found.offset == 7
    consumer.commit(offsets=[TopicPartition(TOPIC, 2, 8)], asynchronous=False)  # as the member that it was
    latter = leader_of(broker, "__consumer_offsets")
    groups = broker.inspect(lambda cluster: cluster.brokers[latter].coordinators.group_store.groups)
    assert (groups["movers"].generation_id, len(groups["movers"].members)) == (1, 1)
    consumer.close()


def test_a_decided_transaction_is_ended_by_the_next_coordinator(broker: ReferenceBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "decided"})
    producer.init_transactions(ANSWER_S)
    send_everywhere(producer, b"decided")
    former = leader_of(broker, "__transaction_state")

    async def decide_and_stop() -> None:
        """The decision is in the log, the markers are not: the coordinator can't reach anybody."""
        coordinators = broker.cluster.brokers[former].coordinators
        transaction = coordinators.transaction_store.transactions["decided"]
        decided = broker.cluster.brokers[former].loop.create_future()
        transaction_end = transaction.prepare_end(TransactionState.PREPARE_COMMIT, 0)
        coordinators.transaction_store.change(transaction, transaction_end, decided.set_result)
        assert await decided is Errors.NONE
        await broker.cluster.stop_broker(former)

    broker.run(decide_and_stop())
    deadline = time.monotonic() + ANSWER_S
    while read_all(broker) != [b"decided"] * PARTITIONS:
        assert time.monotonic() < deadline
