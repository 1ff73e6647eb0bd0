"""Real clients on the reference broker: they must not be able to tell it from Kafka."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.services.reference_broker import ReferenceBroker
from tests.source import ROOT

pytestmark = pytest.mark.slow

ANSWER_S = 90.0


def create(bootstrap: str, name: str, partitions: int = 1) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    for future in client.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(ANSWER_S)


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """The values of partition 0, from its start."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while len(values) < count:
        messages = consumer.consume(count - len(values), ANSWER_S)
        assert messages, f"{len(values)} of {count} came"
        for message in messages:
            assert message.error() is None
            values.append(message.value())
    consumer.close()
    return values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_produces_and_consumes(broker: ReferenceBroker, codec: str) -> None:
    topic = f"rdkafka-{codec}"
    create(broker.bootstrap, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 5})
    offsets: list[int | None] = []
    sent = [f"value {number}".encode() * 20 for number in range(2_000)]
    for value in sent:
        producer.produce(topic, value, key=b"key", partition=0, on_delivery=lambda _, one: offsets.append(one.offset()))
    assert producer.flush(ANSWER_S) == 0
    assert offsets == list(range(len(sent)))
    assert consume(broker.bootstrap, topic, len(sent)) == sent


def test_the_command_serves_and_stops(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sidecar", "broker", "--port", "0", "--data", str(tmp_path)]
    values: list[list[bytes | None]] = []
    for life in range(2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=os.environ)
        assert process.stdout is not None
        bootstrap = process.stdout.readline().decode().strip()
        if life == 0:
            create(bootstrap, "kept")
            producer = Producer({"bootstrap.servers": bootstrap})
            producer.produce("kept", b"kept")
            assert producer.flush(ANSWER_S) == 0
        values.append(consume(bootstrap, "kept", 1))
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=ANSWER_S)
        assert (process.returncode, words.decode().splitlines()[-1]) == (0, "stopped")
    assert values == [[b"kept"], [b"kept"]]


def test_the_command_says_that_the_port_or_the_directory_is_taken(broker: ReferenceBroker, tmp_path: Path) -> None:
    for arguments, word in (
        (("--port", str(broker.ports[0])), "address already in use"),
        (("--port", "0", "--data", str(broker.directory)), "is used by another broker process"),
    ):
        command = [sys.executable, "-m", "sidecar", "broker", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, cwd=ROOT, check=False)
        assert done.returncode == 1
        assert word in done.stderr
