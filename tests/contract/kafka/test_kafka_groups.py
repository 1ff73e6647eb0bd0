"""Facts about confluent-kafka that the engine rests on: groups, assignments and committed offsets."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from struct import pack
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from broker.protocol.api_keys import ApiKey
from sidecar.kafka.client_settings import consumer_settings
from sidecar.kafka.consumer import JoinRefused, KafkaIntake, is_named
from sidecar.ledger.commit_metadata import METADATA_BYTES_MAX
from sidecar.model.record import TopicPartition
from tests.services.clients import consumer, producer
from tests.services.kafka import Kafka
from tests.services.raw_client import RawClient
from tests.services.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 90.0
MANY_PARTITIONS = 300
GENERATION_7 = b"CGMDv2:" + pack("=i", 7)


@pytest.mark.parametrize("text", ["m" * 4_095, "é" * 2_049], ids=["letters", "two-byte letters"])
def test_commit_metadata_comes_back(kafka_place: tuple[str, str], text: str) -> None:
    bootstrap, topic = kafka_place
    # Asking for a topic is what makes it on the mock cluster.
    producer(bootstrap).list_topics(topic, TIMEOUT_S)
    client = consumer(bootstrap, topic)
    try:
        client.commit(offsets=[ClientPartition(topic, 0, 5, metadata=text)], asynchronous=False)
        [found] = client.committed([ClientPartition(topic, 0)], TIMEOUT_S)
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
            client.commit(offsets=[ClientPartition(topic, 0, 5, metadata="m" * 4_096)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    finally:
        client.close()


def test_partitions_can_be_placed_and_paused_in_the_rebalance_callback(kafka_place: tuple[str, str]) -> None:
    bootstrap, topic = kafka_place
    client = producer(bootstrap)
    for index in range(8):
        client.produce(topic, b"%d" % (index // 4), partition=index % 4)
    assert client.flush(TIMEOUT_S) == 0
    assigned: list[ClientPartition] = []

    def on_assign(member: Any, partitions: list[ClientPartition]) -> None:
        places = [ClientPartition(topic, found.partition, 1) for found in partitions]
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
        member.assign([ClientPartition(topic, 0)])
        message = member.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        assert (message.topic(), message.partition(), message.offset()) == (topic, 0, None)
    finally:
        member.close()


@contextmanager
def intake_of(kafka: Kafka, topic: str, instance_id: str) -> Iterator[KafkaIntake]:
    """Subscribed to the topic. Its group is called as the topic."""
    client = {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
    intake = KafkaIntake(consumer_settings(client, topic, instance_id), lambda _: None)
    intake.events = Mock()
    with closing(intake):
        intake.subscribe([topic])
        yield intake


@pytest.mark.integration
def test_a_group_that_refuses_a_process_says_why_and_ends_it(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic("refused")
    short = {"session.timeout.ms": "900", "heartbeat.interval.ms": "300"}
    client = {"bootstrap.servers": kafka.bootstrap, "log_level": "0", **short}
    intake = KafkaIntake(consumer_settings(client, topic, ""), lambda _: None)
    events: Any = Mock()
    intake.events = events
    with closing(intake):
        intake.subscribe([topic])
        wait_until(lambda: bool(intake.take(1) or events.refused.called), TIMEOUT_S, lambda: "not refused")
        assert "set kafka.client.session.timeout.ms" in events.refused.call_args[0][0]
        intake.take(1)
        monkeypatch.setattr("time.monotonic", lambda: math.inf)
        with pytest.raises(JoinRefused, match=r"session\.timeout\.ms"):
            intake.take(1)


def join(intake: KafkaIntake) -> None:
    events: Any = intake.events
    events.reset_mock()
    wait_until(lambda: bool(events.assigned.called or intake.take(1)), TIMEOUT_S, lambda: "not in its group")


def committed(kafka: Kafka, topic: str) -> int:
    with closing(consumer(kafka.bootstrap, topic)) as anyone:
        [found] = anyone.committed([ClientPartition(topic, 0)], TIMEOUT_S)
        return int(found.offset)


@pytest.mark.parametrize("instance_id", ["", "one"], ids=["dynamic", "static"])
def test_the_client_names_a_member_while_it_is_one(cluster: Kafka, instance_id: str) -> None:
    topic = cluster.topic("named")
    with intake_of(cluster, topic, instance_id) as intake, RawClient(cluster.bootstrap) as client:
        assert not intake.member().is_named, "it hasn't joined yet"
        join(intake)
        assert intake.member().is_named
        given = {"member_id": intake._consumer.memberid(), "group_instance_id": instance_id or None}
        client.ask(ApiKey.LEAVE_GROUP, 3, group_id=topic, members=[given])
        wait_until(lambda: not intake.member().is_named, TIMEOUT_S, lambda: "it still names itself")
        assert not intake.events.lost.called, "the client knows before it tells"  # type: ignore[attr-defined]
        join(intake)
        assert intake.member().is_named


def test_a_member_commits_many_partitions_whatever_their_metadata(cluster: Kafka) -> None:
    """Brokers write the offsets of a request as one batch, which has the limit of a record."""
    topic = cluster.topic("many", MANY_PARTITIONS)
    with intake_of(cluster, topic, "") as intake:
        join(intake)
        offsets = {
            TopicPartition(topic, partition): (7, "m" * METADATA_BYTES_MAX) for partition in range(MANY_PARTITIONS)
        }
        intake.commit(offsets, wait=True)
        places = [ClientPartition(topic, partition) for partition in range(MANY_PARTITIONS)]
        found = intake._consumer.committed(places, TIMEOUT_S)
        assert {one.offset for one in found} == {7}


def test_a_commit_is_not_sent_by_who_is_no_member(cluster: Kafka) -> None:
    """While a group has no members, brokers take a commit from anybody."""
    topic = cluster.topic("nobody")
    offsets = {TopicPartition(topic, 0): (5, "")}
    with intake_of(cluster, topic, "") as intake:
        intake.commit(offsets, wait=True)
        assert committed(cluster, topic) == OFFSET_INVALID
        join(intake)
        intake.commit(offsets, wait=True)
        assert committed(cluster, topic) == 5


def test_offsets_of_a_transaction_are_taken_from_who_names_no_member(cluster: Kafka) -> None:
    """Also while the group has members, as older producers have no names to give: so it's for us not to send them."""
    topic = cluster.topic("unnamed")
    sender = producer(cluster.bootstrap, transactional_id=topic, message_timeout_ms=10_000)
    with intake_of(cluster, topic, "") as intake, closing(consumer(cluster.bootstrap, topic)) as stranger:
        join(intake)
        metadata = stranger.consumer_group_metadata()
        assert is_named(metadata) is False
        sender.init_transactions(TIMEOUT_S)
        sender.begin_transaction()
        sender.send_offsets_to_transaction([ClientPartition(topic, 0, 7)], metadata, TIMEOUT_S)
        sender.commit_transaction(TIMEOUT_S)
        assert committed(cluster, topic) == 7


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (GENERATION_7 + b"group\0member\0\x01", True),
        (b"CGMDv2:" + pack("=i", -1) + b"group\0member\0\x01", False),  # a broker told it of another generation
        (GENERATION_7 + b"group\0\0\0instance\0", False),
        (b"CGMDv3:" + pack("=i", 7) + b"group\0\0\x01", None),
    ],
)
def test_who_is_named_has_a_generation_and_a_name(metadata: bytes, expected: bool | None) -> None:
    assert is_named(metadata) is expected


@pytest.mark.integration
def test_the_client_knows_that_it_has_read_past_the_marks_of_transactions(kafka: Kafka) -> None:
    """Also where all of the last transaction was aborted. After a seek it knows nothing, until there is a record."""
    topic = kafka.topic("marks")
    lane = TopicPartition(topic, 0)
    client = producer(kafka.bootstrap, transactional_id=topic)
    client.init_transactions(TIMEOUT_S)
    for end in (client.commit_transaction, client.abort_transaction):
        client.begin_transaction()
        client.produce(topic, b"one", partition=0)
        client.flush(TIMEOUT_S)
        end(TIMEOUT_S)
    with intake_of(kafka, topic, "") as intake:
        join(intake)
        assert intake.positions([lane]) == {}
        intake.begin({lane: 0})
        intake.resume([lane])
        taken: list[Any] = []

        def is_at_the_end() -> bool:
            taken.extend(message.offset() for message in intake.take(10))
            return intake.positions([lane]) == {lane: 4}

        wait_until(is_at_the_end, TIMEOUT_S, lambda: f"{intake.positions([lane])}")
        assert taken == [0]
        intake.pause([lane])
        intake._read_from(lane, 0)
        assert intake.positions([lane]) == {}
        assert intake.positions([TopicPartition("another", 0)]) == {}
