"""A recovery reads the ledger while other processes write to it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

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
