"""The brokers that tickover brings along: told plainly which one it is, and gone when it should be."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sidecar.embedded import java_kafka
from sidecar.embedded.child import free_port
from sidecar.embedded.java_kafka import KafkaUnavailable
from sidecar.embedded.kafka import MavenKafka, ReferenceKafka, embedded_kafka
from tests.services.fixtures import missing
from tests.services.mock_kafka import MockKafka
from tests.services.waiting import wait_until
from tests.source import ROOT


@pytest.fixture
def maven_kafka(tmp_path: Path) -> MavenKafka:
    """A broker of the test's own, not started."""
    reason = java_kafka.missing_tools()
    if reason is not None:
        missing("Kafka from Maven", reason)
    return MavenKafka(tmp_path / "kafka")


def test_the_mock_cluster_takes_a_record_and_ends_twice() -> None:
    mock = MockKafka()
    mock.start()
    mock.start()
    producer = Producer({"bootstrap.servers": mock.bootstrap, "log_level": "0"})
    producer.produce("topic", b"value")
    assert producer.flush(60) == 0
    mock.stop()
    mock.stop()


def test_the_user_is_told_which_broker_it_is(tmp_path: Path) -> None:
    told: list[str] = []
    assert isinstance(embedded_kafka(tmp_path, progress=told.append), ReferenceKafka)
    assert "not Apache Kafka" in told[-1]
    assert isinstance(embedded_kafka(tmp_path, is_java=True, progress=told.append), MavenKafka)
    assert "a real broker" in told[-1]


@pytest.mark.slow
def test_the_reference_broker_keeps_its_records_over_a_crash(tmp_path: Path) -> None:
    broker = ReferenceKafka(tmp_path)
    broker.start()
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic("kept", 1, 1)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": "0"})
    producer.produce("kept", b"value")
    assert producer.flush(60) == 0
    broker.kill()
    broker.start()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "log_level": "0"})
    assert consumer.get_watermark_offsets(TopicPartition("kept", 0), timeout=60) == (0, 1)
    consumer.close()
    broker.stop()
    broker.stop()


@pytest.mark.slow
def test_a_reference_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(KafkaUnavailable, match="address already in use"):
            ReferenceKafka(tmp_path, taken.getsockname()[1]).start()


def install(directory: Path, name: str, lines: str) -> None:
    """A shell script in place of a tool."""
    program = directory / name
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)


def test_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, "java", "echo 'openjdk version \"11.0.2\"' >&2")
    install(tmp_path, "mvn", "true")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(KafkaUnavailable, match="java 11 is too old"):
        java_kafka.fetch_jars()
    assert java_kafka.missing_tools() == f"java 11 is too old, Kafka {java_kafka.kafka_version()} needs 17"


def test_jars_are_fetched_once_and_a_broken_fetch_is_not_taken_for_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    install(tmp_path, "mvn", "echo no such artifact; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(KafkaUnavailable, match="no such artifact"):
        java_kafka.fetch_jars()
    monkeypatch.setattr(java_kafka, "PROGRESS_INTERVAL_S", 0.0)
    fetched = "[INFO] Downloaded from central: .../kafka/4/kafka-4.jar (5.3 MB at 2.1 MB/s)"
    install(tmp_path, "mvn", f'echo called >>{tmp_path}/calls\necho "{fetched}"\nmkdir -p "${{6#*=}}"')
    told: list[str] = []
    directory = java_kafka.fetch_jars(told.append)
    assert java_kafka.fetch_jars(told.append) == directory
    assert (tmp_path / "calls").read_text() == "called\n"
    assert told[1:] == ["Fetching Kafka: 5 of about 45 MB, now kafka-4.jar"]
    assert directory.is_dir()


def test_a_fetch_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    install(tmp_path, "mvn", "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java_kafka, "FETCH_TIMEOUT_S", 0.1)
    with pytest.raises(KafkaUnavailable, match="took longer than"):
        java_kafka.fetch_jars()


def test_free_ports_lie_outside_the_range_of_outgoing_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(free_port() < first for _ in range(20))


@pytest.mark.integration
def test_a_broker_that_cannot_start_says_why_and_leaves_nothing_behind(
    maven_kafka: MavenKafka,
) -> None:
    broken = MavenKafka(maven_kafka.log.parent, properties={"log.retention.ms": "soon"})
    with pytest.raises(KafkaUnavailable, match=r"log\.retention\.ms"):
        broken.start()
    broken.stop()


@pytest.mark.integration
def test_the_broker_dies_with_its_parent(maven_kafka: MavenKafka) -> None:
    code = (
        "import sys; from pathlib import Path; from sidecar.embedded.kafka import MavenKafka;"
        "kafka = MavenKafka(Path(sys.argv[1])); kafka.start();"
        "print(kafka.bootstrap, flush=True); sys.stdin.read()"
    )
    root = ROOT
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(maven_kafka.log.parent)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        host, port = parent.stdout.readline().strip().split(":")
        assert _listens(host, int(port))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        wait_until(lambda: not _listens(host, int(port)), otherwise=lambda: "the broker outlived its parent")


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
