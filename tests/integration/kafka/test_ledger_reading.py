"""A recovery reads the ledger while other processes write to it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from policies.topic.reader import PolicyReader
from sidecar.kafka.log_reader import KafkaLedgerLog, KafkaSourceLog
from sidecar.ledger.topic import LedgerError, LedgerUnavailable
from sidecar.model.ports import SourceUnavailable
from sidecar.model.record import TopicPartition
from tests.services.clients import producer
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

PAUSE_S = 0.002
SOON_S = 60.0  # far less than the client believes what it was told


@contextmanager
def written_all_the_time(kafka: Kafka, topic: str) -> Iterator[None]:
    """Another process's blocks, hundreds a second."""
    client = producer(kafka.bootstrap, linger_ms=0)
    enough = threading.Event()

    def write() -> None:
        while not enough.wait(PAUSE_S):
            client.produce(topic, b"block", b"lane", 0)
            client.poll(0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        enough.set()
        writer.join()
        client.flush()


def test_reading_ends_although_writing_does_not(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    # A broker or a writer that stands still on a busy machine is not a ledger that was cut off.
    monkeypatch.setattr("sidecar.kafka.log_reader.ANSWER_TIMEOUT_S", ANSWER_TIMEOUT_S)
    monkeypatch.setattr("sidecar.kafka.log_reader.STALLED_READS_MAX", 10_000)
    topic = kafka.topic("ledger", 2)
    log = KafkaLedgerLog({"bootstrap.servers": kafka.bootstrap}, topic)
    try:
        with written_all_the_time(kafka, topic):
            wait_until(lambda: log.bounds(0)[1] > 100, otherwise=lambda: "nothing is written")
            for _ in range(3):
                end = log.bounds(0)[1]
                offsets = [record.offset for record in log.read({0: 5, 1: 0}, {0: end + 20})]
                assert offsets == list(range(5, len(offsets) + 5))
                assert offsets[-1] >= end + 20
    finally:
        log.close()


def test_a_transaction_that_stays_open_is_named(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic("ledger", 2)
    kafka.produce(topic, [(b"lane", b"block", (), 0, 1)])
    writer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    writer.init_transactions(ANSWER_TIMEOUT_S)
    writer.begin_transaction()
    writer.produce(topic, b"block", b"lane", 1)
    log = KafkaLedgerLog({"bootstrap.servers": kafka.bootstrap}, topic)
    try:
        assert writer.flush(ANSWER_TIMEOUT_S) == 0
        with monkeypatch.context() as soon:
            soon.setattr("sidecar.kafka.log_reader.STALLED_READS_MAX", 20)
            with pytest.raises(LedgerUnavailable, match=r"since offset: \{1: 1\}.*tickover doctor"):
                list(log.read({1: 0}, {1: 1}))
            with pytest.raises(LedgerUnavailable, match=r"since offset: \{1: 1\}"):
                list(log.read({1: 0}, {}))  # nobody says how far: past all that is written
            assert [record.offset for record in log.read({1: 0}, {1: 0})] == [0]
        writer.commit_transaction(ANSWER_TIMEOUT_S)
        wait_until(lambda: log.bounds(1)[1] > 1, otherwise=lambda: "the commit has no marker")
        assert [record.offset for record in log.read({1: 0}, {1: 1})] == [0, 1]
    finally:
        log.close()


def test_what_was_not_there_a_moment_ago_is_found(kafka: Kafka) -> None:
    """A broker that has just started says little at first, and the client goes on believing it for minutes."""
    topic = kafka.topic("late", 1)
    lane = TopicPartition(topic, 1)
    kafka.produce(topic, [(b"key", b"first", (), 0, 0)])
    ledger = KafkaLedgerLog({"bootstrap.servers": kafka.bootstrap}, topic)
    source = KafkaSourceLog({"bootstrap.servers": kafka.bootstrap}, topic)
    try:
        assert ledger.bounds(0)[1] == 1
        assert source.fetch(TopicPartition(topic, 0), [0])[0].value() == b"first"
        with pytest.raises(LedgerUnavailable, match="know no such partition"):
            ledger.bounds(1)
        with pytest.raises(SourceUnavailable, match="know no such partition"):
            source.fetch(lane, [0])
        kafka.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(ANSWER_TIMEOUT_S)
        kafka.produce(topic, [(b"key", b"late", (), 0, 1)])
        wait_until(lambda: given(lambda: ledger.bounds(1)) == (0, 1), SOON_S, lambda: "the ledger stays unknown")
        wait_until(lambda: bool(given(lambda: source.fetch(lane, [0]))), SOON_S, lambda: "the source stays unknown")
    finally:
        source.close()
        ledger.close()


@pytest.mark.parametrize("knew", [True, False])
def test_a_ledger_that_was_deleted_is_gone(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, *, knew: bool) -> None:
    """Whichever side of the client says that it doesn't know the topic; and not at the first word of it."""
    monkeypatch.setattr("sidecar.kafka.log_reader.GONE_S", 1.0)
    topic = kafka.topic("deleted", 1)
    ledger = KafkaLedgerLog({"bootstrap.servers": kafka.bootstrap}, topic)
    unavailable: list[str] = []

    def is_gone() -> bool:
        try:
            ledger.bounds(0)
        except LedgerUnavailable as error:
            unavailable.append(str(error))
        except LedgerError as error:
            return "is gone" in str(error)
        return False

    try:
        if knew:
            assert ledger.bounds(0) == (0, 0)
        kafka.admin.delete_topics([topic])[topic].result(ANSWER_TIMEOUT_S)
        wait_until(is_gone, SOON_S, lambda: f"it is waited for: {unavailable[-1:]}")
        assert unavailable
    finally:
        ledger.close()


def test_policies_that_were_not_there_a_moment_ago_are_found(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic("policies", 1)
    monkeypatch.setattr("policies.topic.reader.PARTITION", 1)
    reader = PolicyReader({"bootstrap.servers": kafka.bootstrap}, topic, lambda _: None)
    with ThreadPoolExecutor() as executor:
        started = executor.submit(reader.start, SOON_S)
        with pytest.raises(TimeoutError):
            started.result(1)
        kafka.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(ANSWER_TIMEOUT_S)
        started.result()
    reader.stop()


def given(ask: Callable[[], Any]) -> Any:
    """Answer of `ask`, or None while the ledger or the source is unavailable."""
    try:
        return ask()
    except (LedgerUnavailable, SourceUnavailable):
        return None
