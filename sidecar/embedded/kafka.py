"""A Kafka to try tickover with: the real broker from Maven jars, else librdkafka's mock cluster."""

from pathlib import Path
from typing import Protocol

from sidecar.embedded.jars import (
    KafkaUnavailable,
    Progress,
    fetch_jars,
    kafka_version,
    missing_tools,
    silent,
)
from sidecar.embedded.maven import MavenKafka
from sidecar.embedded.mock import MockKafka

__all__ = ["Broker", "KafkaUnavailable", "MavenKafka", "MockKafka", "available", "embedded_kafka"]


class Broker(Protocol):
    """What the process needs of an embedded Kafka; both kinds have it."""

    @property
    def description(self) -> str:
        """Which kind this is, in words for the user."""

    @property
    def bootstrap(self) -> str:
        """host:port for clients, once started."""

    def start(self) -> None:
        """Return when clients can be served."""

    def stop(self) -> None:
        """Orderly end; twice is harmless."""


def embedded_kafka(data_dir: Path, port: int = 0, progress: Progress = silent) -> Broker:
    """A real broker where Java and Maven are there and its jars can be had, else the mock cluster.

    Not started yet. `progress` is told in words which one it is and why.
    """
    reason = available()
    if reason is None:
        try:
            fetch_jars(progress)
        except KafkaUnavailable as error:
            reason = str(error)
    if reason is None:
        progress(f"Kafka: a real broker, version {kafka_version()}, from Maven jars")
        return MavenKafka(data_dir, port, progress)
    progress(f"Kafka: NOT a real broker but librdkafka's mock cluster, in memory, forgetful under load ({reason})")
    return MockKafka()


def available() -> str | None:
    """None when a real broker can be started here, else what is missing, in words."""
    return missing_tools()
