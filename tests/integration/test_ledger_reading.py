"""A recovery reads the ledger while other processes write to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from sidecar.ledger import LedgerUnavailable
from sidecar.topics import KafkaLedgerLog
from tests.services.clients import producer
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

PAUSE_S = 0.002


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
    monkeypatch.setattr("sidecar.topics.ANSWER_S", ANSWER_TIMEOUT_S)
    monkeypatch.setattr("sidecar.topics.STALLED_READS_MAX", 10_000)
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
            soon.setattr("sidecar.topics.STALLED_READS_MAX", 20)
            with pytest.raises(LedgerUnavailable, match=r"since offset: \{1: 1\}.*tickover doctor"):
                list(log.read({1: 0}, {1: 1}))
        writer.commit_transaction(ANSWER_TIMEOUT_S)
        wait_until(lambda: log.bounds(1)[1] > 1, otherwise=lambda: "the commit has no marker")
        assert [record.offset for record in log.read({1: 0}, {1: 1})] == [0, 1]
    finally:
        log.close()
