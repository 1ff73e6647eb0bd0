"""Real clients' transactions on the reference broker: what readers of committed records see, whatever happens."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.protocol.api_keys import ApiKey
from broker.records.records import Producer as RecordProducer
from broker.transactions.transaction import TransactionState
from purgatory.errors import Errors
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.unit.log_world import batch

pytestmark = pytest.mark.slow

ANSWER_S = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBroker]:
    directory = tmp_path_factory.mktemp("broker")
    broker = ReferenceBroker(directory, transaction_abort_timed_out_interval_ms=200).start()
    yield broker
    broker.stop()


@pytest.fixture
def topic(broker: ReferenceBroker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").replace("]", "")
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in client.create_topics([NewTopic(name, 1, 1)]).values():
        future.result(ANSWER_S)
    return name


def producer_of(broker: ReferenceBroker, transactional_id: str, **config: object) -> Producer:
    """One whose predecessors are fenced."""
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, "retry.backoff.ms": 5}
    producer = Producer({**settings, **{name.replace("_", "."): value for name, value in config.items()}})
    producer.init_transactions(ANSWER_S)
    return producer


def send(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(ANSWER_S) == 0


def read(broker: ReferenceBroker, topic: str, *, level: str = "read_committed") -> list[bytes | None]:
    """All there is up to the end that this reader may see."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": level, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while True:
        message = consumer.poll(ANSWER_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            consumer.close()
            return values
        values.append(message.value())


def state_of(broker: ReferenceBroker, transactional_id: str) -> TransactionState:
    found = broker.inspect(lambda cluster: cluster.brokers[1].coordinators.transaction_store.transactions)
    state: TransactionState = found[transactional_id].now.state
    return state


def test_readers_of_committed_records_see_what_was_committed(broker: ReferenceBroker, topic: str) -> None:
    producer = producer_of(broker, topic)
    send(producer, topic, b"one", b"two")
    assert read(broker, topic) == []
    assert read(broker, topic, level="read_uncommitted") == [b"one", b"two"]
    producer.commit_transaction(ANSWER_S)
    send(producer, topic, b"aborted")
    producer.abort_transaction(ANSWER_S)
    send(producer, topic, b"three")
    producer.commit_transaction(ANSWER_S)
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"plain")
    plain.flush(ANSWER_S)
    assert read(broker, topic) == [b"one", b"two", b"three", b"plain"]
    assert read(broker, topic, level="read_uncommitted") == [b"one", b"two", b"aborted", b"three", b"plain"]


def test_a_new_producer_fences_the_former_and_aborts_what_it_left(broker: ReferenceBroker, topic: str) -> None:
    former = producer_of(broker, topic)
    send(former, topic, b"left")
    latter = producer_of(broker, topic)
    with pytest.raises(KafkaException) as caught:
        former.commit_transaction(ANSWER_S)
    assert caught.value.args[0].fatal()
    assert caught.value.args[0].code() == KafkaError._FENCED
    send(latter, topic, b"kept")
    latter.commit_transaction(ANSWER_S)
    assert read(broker, topic) == [b"kept"]


def test_what_is_open_for_too_long_is_aborted(broker: ReferenceBroker, topic: str) -> None:
    producer = producer_of(broker, topic, transaction_timeout_ms=1_000)
    send(producer, topic, b"late")
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "none", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"behind it")
    plain.flush(ANSWER_S)
    message = consumer.poll(ANSWER_S)  # comes when the transaction has been aborted
    assert message is not None
    assert message.value() == b"behind it"
    consumer.close()
    assert state_of(broker, topic) is TransactionState.COMPLETE_ABORT
    with pytest.raises(KafkaException):
        producer.commit_transaction(ANSWER_S)


def test_offsets_are_committed_with_the_records(broker: ReferenceBroker, topic: str) -> None:
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"source")
    plain.flush(ANSWER_S)
    producer = producer_of(broker, topic)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while (message := consumer.poll(1)) is None:
        pass
    assert message.error() is None
    key = TopicPartition(topic, 0)
    for is_commit, expected in ((False, -1001), (True, 1)):
        send(producer, topic, b"derived")
        offsets = [TopicPartition(topic, 0, 1, metadata="with metadata")]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), ANSWER_S)
        end = producer.commit_transaction if is_commit else producer.abort_transaction
        end(ANSWER_S)
        [found] = consumer.committed([key], ANSWER_S)
        assert found.offset == expected
    assert found.metadata == "with metadata"
    assert read(broker, topic) == [b"source", b"derived"]
    consumer.close()


def test_the_offsets_of_a_zombie_are_refused(broker: ReferenceBroker, topic: str) -> None:
    producer = producer_of(broker, topic)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    send(producer, topic, b"of a zombie")
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], metadata, ANSWER_S)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(ANSWER_S)
    assert read(broker, topic) == []


def test_transactions_go_on_after_a_restart(broker: ReferenceBroker, topic: str) -> None:
    producer = producer_of(broker, topic)
    send(producer, topic, b"before")
    broker.stop()
    broker.start()
    producer.produce(topic, b"after")
    producer.commit_transaction(ANSWER_S)
    assert read(broker, topic) == [b"before", b"after"]
    left = producer_of(broker, f"{topic}-left")
    send(left, topic, b"left")
    broker.stop()
    broker.start()
    successor = producer_of(broker, f"{topic}-left")
    send(successor, topic, b"of its successor")
    successor.commit_transaction(ANSWER_S)
    assert read(broker, topic) == [b"before", b"after", b"of its successor"]


def test_ids_of_producers_are_never_given_twice(broker: ReferenceBroker) -> None:
    def ids() -> list[int]:
        begun: list[int] = []
        broker.inspect(
            lambda cluster: [
                cluster.brokers[1].coordinators.transactions.init_producer_id(
                    None, 1, None, lambda one: begun.append(one.producer_id)
                )
                for _ in range(3)
            ]
        )
        return begun

    before = ids()
    broker.stop()
    broker.start()
    assert not set(before) & set(ids())


def test_administrators_see_transactions(broker: ReferenceBroker, topic: str) -> None:
    producer = producer_of(broker, topic, transaction_timeout_ms=45_000)
    send(producer, topic, b"open")
    with RawClient(broker.bootstrap) as client:
        listed = client.ask(
            ApiKey.LIST_TRANSACTIONS, 1, state_filters=["Ongoing"], producer_id_filters=[], duration_filter=-1
        )
        [found] = [one for one in listed.transaction_states if one.transactional_id == topic]
        described = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[topic, "nobody"]).transaction_states
        assert [one.error_code for one in described] == [Errors.NONE, Errors.TRANSACTIONAL_ID_NOT_FOUND]
        assert described[0].producer_id == found.producer_id
        assert described[0].transaction_timeout.total_seconds() == 45
        assert [(one.topic, list(one.partitions)) for one in described[0].topics] == [(topic, [0])]
    producer.abort_transaction(ANSWER_S)


def test_an_administrator_ends_what_hangs(broker: ReferenceBroker, topic: str) -> None:
    producer = producer_of(broker, topic)
    send(producer, topic, b"hangs")
    values = broker.inspect(lambda cluster: cluster.brokers[1].coordinators.transaction_store.transactions[topic].now)
    marker = {
        "producer_id": values.producer_id,
        "producer_epoch": values.producer_epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 100,
    }
    with RawClient(broker.bootstrap) as client:
        answer = client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker])
        [partition] = answer.markers[0].topics[0].partitions
        assert partition.error_code == Errors.NONE
        stale = client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[{**marker, "coordinator_epoch": 99}])
        assert stale.markers[0].topics[0].partitions[0].error_code == Errors.TRANSACTION_COORDINATOR_FENCED
    assert read(broker, topic) == []


@pytest.mark.parametrize(
    ("version", "error"),
    [(10, Errors.INVALID_TXN_STATE), (11, Errors.TRANSACTION_ABORTABLE), (12, Errors.NONE)],
)
def test_what_belongs_to_no_transaction_is_refused(
    broker: ReferenceBroker, topic: str, version: int, error: Errors
) -> None:
    with RawClient(broker.bootstrap) as client:
        begun = client.ask(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=topic,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert begun.error_code == Errors.NONE
        records = batch(
            b"stray", producer=RecordProducer(begun.producer_id, begun.producer_epoch, 0), is_transactional=True
        )

        def produce(transactional_id: str | None) -> Errors:
            topics = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(records)}]}]
            answer = client.ask(
                ApiKey.PRODUCE, version, transactional_id=transactional_id, acks=-1, timeout=5_000, topic_data=topics
            )
            return Errors(answer.responses[0].partition_responses[0].error_code)

        assert produce(None) is Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert produce("nobody") is Errors.INVALID_PRODUCER_ID_MAPPING
        assert produce(topic) is error
        end = client.ask(
            ApiKey.END_TXN,
            3,
            transactional_id=topic,
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            committed=True,
        )
        assert end.error_code == (Errors.NONE if version == 12 else Errors.INVALID_TXN_STATE)
    assert read(broker, topic) == ([b"stray"] if version == 12 else [])
