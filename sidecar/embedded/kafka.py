"""A Kafka to try tickover with: the reference broker, or a real one from Maven jars."""

from pathlib import Path
from typing import Protocol

from sidecar.embedded.jars import (
    KafkaUnavailable,
    Progress,
    kafka_version,
    silent,
)
from sidecar.embedded.maven import MavenKafka
from sidecar.embedded.reference import ReferenceKafka

__all__ = ["Broker", "KafkaUnavailable", "MavenKafka", "ReferenceKafka", "embedded_kafka"]


class Broker(Protocol):
    """An embedded Kafka as the process needs it, of either kind."""

    @property
    def description(self) -> str:
        """Kind of broker, in words for the user."""

    @property
    def bootstrap(self) -> str:
        """host:port for clients, once started."""

    def start(self) -> None:
        """Return when clients can be served."""

    def stop(self) -> None:
        """Orderly end; twice is harmless."""


def embedded_kafka(data_dir: Path, *, is_java: bool = False, progress: Progress = silent) -> Broker:
    """The reference broker, or the real one. Not started yet. `progress` is told in words which one it is."""
    if is_java:
        progress(f"Kafka: a real broker, version {kafka_version()}, from Maven jars")
        return MavenKafka(data_dir, progress=progress)
    progress("Kafka: tickover's own reference broker, which speaks Kafka's protocol; not Apache Kafka")
    return ReferenceKafka(data_dir)
