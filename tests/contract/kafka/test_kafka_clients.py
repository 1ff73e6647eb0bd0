"""Facts about confluent-kafka that the engine rests on: producing and reading records.

Asked of librdkafka's mock cluster and of a real broker; of the real one alone where the mock cluster cannot
answer: it has no limits, no topics to create, no restart.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tests.services.clients import PROPAGATION_MS, consumer, producer
from tests.services.kafka import Kafka
from tests.services.mock_kafka import MockKafka
from tests.services.raw_records import produce_raw
from tests.services.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 90.0

Report = tuple[KafkaError | None, Message]


@pytest.fixture
def reports() -> list[Report]:
    """Where `producer` puts its delivery reports."""
    return []


def collect(reports: list[Report]) -> Callable[[KafkaError | None, Message], None]:
    """A delivery callback that keeps what it is given."""
    return lambda error, message: reports.append((error, message))


def code_of(report: Report) -> int:
    """The error of a report that has one."""
    assert report[0] is not None
    return report[0].code()


def read_one(bootstrap: str, topic: str, partition: int = 0) -> Message:
    """The first record of a partition."""
    reader = consumer(bootstrap, "reader")
    reader.assign([TopicPartition(topic, partition, 0)])
    try:
        message = reader.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        return message
    finally:
        reader.close()


# What a delivery report tells.


def test_a_report_carries_place_key_and_value_but_never_headers(
    kafka_place: tuple[str, str], reports: list[Report]
) -> None:
    bootstrap, topic = kafka_place
    client = producer(bootstrap)
    client.produce(topic, b"v", b"k", 2, headers=[("a", b"1")], on_delivery=collect(reports))
    assert client.flush(TIMEOUT_S) == 0
    [(error, message)] = reports
    assert error is None
    assert (message.topic(), message.partition(), message.offset()) == (topic, 2, 0)
    assert (message.key(), message.value()) == (b"k", b"v")
    # The engine must find a refused record's headers by other means.
    assert message.headers() is None


@pytest.mark.integration
def test_a_report_carries_the_brokers_append_time(kafka: Kafka, reports: list[Report]) -> None:
    topic = kafka.topic("append", message_timestamp_type="LogAppendTime")
    client = producer(kafka.bootstrap)
    before_ms = int(time.time() * 1000)
    client.produce(topic, b"v", timestamp=1_000, on_delivery=collect(reports))
    client.flush(TIMEOUT_S)
    kind, appended_ms = reports[0][1].timestamp()
    assert kind == 2
    assert before_ms - 1_000 <= appended_ms <= int(time.time() * 1000) + 1_000


# Records pass byte for byte, except where a header name is not text.


def test_headers_survive_byte_for_byte_and_in_order(kafka_place: tuple[str, str]) -> None:
    bootstrap, topic = kafka_place
    headers: list[tuple[str, str | bytes | None]] = [
        ("a", b"1"),
        ("b", None),
        ("a", b""),
        ("a", b"\xff\xfe"),
        ("", b"empty name"),
        ("é", b"x"),
    ]
    client = producer(bootstrap)
    client.produce(topic, None, b"", 0, headers=headers)
    assert client.flush(TIMEOUT_S) == 0
    message = read_one(bootstrap, topic)
    assert (message.key(), message.value(), message.headers()) == (b"", None, headers)


def test_no_headers_are_none(kafka_place: tuple[str, str]) -> None:
    bootstrap, topic = kafka_place
    client = producer(bootstrap)
    client.produce(topic, b"", None, 0, headers=[])
    client.flush(TIMEOUT_S)
    message = read_one(bootstrap, topic)
    assert (message.key(), message.value(), message.headers()) == (None, b"", None)


@pytest.mark.integration
@pytest.mark.parametrize("name", [b"\xff\xfe", b"\xed\xa0\x80"], ids=["latin", "surrogate"])
def test_a_header_name_that_is_not_utf8_raises_once(kafka: Kafka, name: bytes) -> None:
    topic = kafka.topic("names")
    produce_raw(kafka.bootstrap, topic, b"v", [(b"good", b"1"), (name, b"2")])
    message = read_one(kafka.bootstrap, topic)
    # Only once: a second call gives a list with null pointers in it, and looking at those ends the process.
    with pytest.raises(SystemError):
        message.headers()
    assert message.value() == b"v"


@pytest.mark.integration
def test_a_header_name_is_cut_at_a_null_character(kafka: Kafka) -> None:
    topic = kafka.topic("names")
    produce_raw(kafka.bootstrap, topic, b"v", [(b"a\0b", b"1")])
    assert read_one(kafka.bootstrap, topic).headers() == [("a", b"1")]


# What cannot be produced, and how one learns of it.


@pytest.mark.integration
def test_an_unknown_topic_is_reported_after_the_propagation_time_then_raised(
    kafka: Kafka, reports: list[Report]
) -> None:
    topic = f"nobody-made-{uuid4().hex[:8]}"
    client = producer(kafka.bootstrap)
    started_s = time.monotonic()
    client.produce(topic, b"v", b"k", on_delivery=collect(reports))
    assert client.flush(TIMEOUT_S) == 0
    # Checked by a timer of one second. How much later is up to the machine: that it comes is what counts.
    assert time.monotonic() - started_s >= PROPAGATION_MS / 1000 - 0.5
    assert code_of(reports[0]) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert (reports[0][1].key(), reports[0][1].value()) == (b"k", b"v")
    with pytest.raises(KafkaException) as refused:
        client.produce(topic, b"v")
    assert refused.value.args[0].code() == KafkaError._UNKNOWN_TOPIC
    # Made later, it is known as soon as this client has asked for it.
    kafka.create_topic(topic)
    client.list_topics(topic, TIMEOUT_S)
    client.produce(topic, b"v", on_delivery=collect(reports))
    client.flush(TIMEOUT_S)
    assert reports[1][0] is None


@pytest.mark.integration
def test_listing_an_unknown_topic_says_so_and_does_not_make_it(kafka: Kafka) -> None:
    client = producer(kafka.bootstrap)
    found = client.list_topics("nobody-made-this", TIMEOUT_S).topics["nobody-made-this"]
    assert found.error is not None
    assert found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert found.partitions == {}
    assert "nobody-made-this" not in client.list_topics(timeout=TIMEOUT_S).topics


def test_the_mock_cluster_makes_a_topic_by_listing_it(mock_kafka: MockKafka) -> None:
    found = producer(mock_kafka.bootstrap).list_topics("topic", TIMEOUT_S).topics["topic"]
    assert (found.error, len(found.partitions)) == (None, 4)


@pytest.mark.integration
def test_a_deleted_topic_is_reported_and_others_go_on(kafka: Kafka, reports: list[Report]) -> None:
    gone, other = kafka.topic("gone"), kafka.topic("other")
    client = producer(kafka.bootstrap)
    client.produce(gone, b"v")
    client.flush(TIMEOUT_S)
    kafka.admin.delete_topics([gone])[gone].result(TIMEOUT_S)

    def refusal() -> int | None:
        """Of one more record: None where the broker has not yet let the topic go, raised where the client knows."""
        reports.clear()
        try:
            client.produce(gone, b"v", on_delivery=collect(reports))
        except KafkaException as error:
            return int(error.args[0].code())
        client.produce(other, b"v", on_delivery=collect(reports))
        assert client.flush(TIMEOUT_S) == 0
        outcome = {message.topic(): error.code() if error else None for error, message in reports}
        assert outcome[other] is None
        return outcome[gone]

    codes: list[int | None] = []

    def is_refused() -> bool:
        codes.append(refusal())
        return codes[-1] is not None

    wait_until(is_refused)
    ways = (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
    assert codes[-1] in ways


def test_an_unknown_partition_is_raised_where_the_topic_is_known_else_reported(
    kafka_place: tuple[str, str], reports: list[Report]
) -> None:
    bootstrap, topic = kafka_place
    client = producer(bootstrap)
    with suppress(KafkaException):  # when the topic becomes known during the call
        client.produce(topic, b"v", partition=7, on_delivery=collect(reports))
    assert client.flush(TIMEOUT_S) == 0
    assert {code_of(report) for report in reports} <= {KafkaError._UNKNOWN_PARTITION}
    client.list_topics(topic, TIMEOUT_S)
    with pytest.raises(KafkaException) as refused:
        client.produce(topic, b"v", partition=7)
    assert refused.value.args[0].code() == KafkaError._UNKNOWN_PARTITION


@pytest.mark.integration
@pytest.mark.parametrize("name", ["a/b c", "", "x" * 300])
def test_an_invalid_topic_name_is_reported_or_raised_once_it_is_known(
    kafka: Kafka, name: str, reports: list[Report]
) -> None:
    client = producer(kafka.bootstrap)
    with suppress(KafkaException):  # when the broker's answer comes during the call
        client.produce(name, b"v", on_delivery=collect(reports))
    assert client.flush(TIMEOUT_S) == 0
    assert {code_of(report) for report in reports} <= {KafkaError.TOPIC_EXCEPTION}
    with pytest.raises(KafkaException) as refused:
        client.produce(name, b"v")
    assert refused.value.args[0].code() == KafkaError._UNKNOWN_TOPIC


def test_a_record_over_the_clients_limit_is_raised(kafka_place: tuple[str, str]) -> None:
    bootstrap, topic = kafka_place
    client = producer(bootstrap, message_max_bytes=2_000)
    with pytest.raises(KafkaException) as refused:
        client.produce(topic, b"v" * 3_000)
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.integration
def test_the_brokers_limit_is_on_batches_and_refuses_innocent_neighbours(kafka: Kafka, reports: list[Report]) -> None:
    topic = kafka.topic("small", max_message_bytes=2_000)
    client = producer(kafka.bootstrap, linger_ms=60_000)  # one batch, however slowly it is filled: `flush` ends it
    for _ in range(100):
        client.produce(topic, b"v" * 100, on_delivery=collect(reports))
    assert client.flush(TIMEOUT_S) == 0
    assert {code_of(report) for report in reports} == {KafkaError.MSG_SIZE_TOO_LARGE}


@pytest.mark.integration
def test_one_by_one_only_what_is_too_large_is_refused_and_order_is_kept(kafka: Kafka, reports: list[Report]) -> None:
    topic = kafka.topic("small", max_message_bytes=2_000)
    client = producer(kafka.bootstrap, batch_num_messages=1)
    values = [b"v" * 5_000 if index % 10 == 7 else b"%d" % index for index in range(200)]
    for value in values:
        client.produce(topic, value, on_delivery=collect(reports))
    assert client.flush(TIMEOUT_S) == 0
    refused = [message.value() for error, message in reports if error is not None]
    assert refused == [value for value in values if len(value) == 5_000]
    assert all(error is None or not error.fatal() for error, _ in reports)
    written = [message.value() for message in kafka.read_all(topic)]
    assert written == [value for value in values if len(value) < 5_000]


@pytest.mark.integration
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_an_idempotent_producer_waits_for_a_broker_that_comes_back(
    kafka: Kafka, ending: str, reports: list[Report]
) -> None:
    topic = kafka.topic("restart")
    client = producer(kafka.bootstrap)
    client.produce(topic, b"0")
    client.flush(TIMEOUT_S)
    for index in range(1, 1_001):
        client.produce(topic, b"%d" % index, on_delivery=collect(reports))
    getattr(kafka, ending)()
    for index in range(1_001, 2_001):
        client.produce(topic, b"%d" % index, on_delivery=collect(reports))
    kafka.start()
    assert client.flush(2 * TIMEOUT_S) == 0
    assert {error for error, _ in reports} == {None}
    assert [message.value() for message in kafka.read_all(topic)] == [b"%d" % index for index in range(2_001)]
