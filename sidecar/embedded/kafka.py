"""A Kafka to try tickover with: the reference broker, which needs neither Java nor Docker, or a real one from jars."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from select import select
from typing import Final, Protocol

from sidecar.embedded.child import Child, free_port
from sidecar.embedded.java_kafka import KafkaUnavailable, MavenKafka, Progress, kafka_version, silent

__all__ = ["Broker", "KafkaUnavailable", "MavenKafka", "ReferenceKafka", "embedded_kafka"]

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 20.0
LAST_WORDS_BYTES: Final = 2_000
PROGRAM: Final = (sys.executable, "-m", "sidecar", "broker")


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


class ReferenceKafka:
    """`tickover broker` with its data below `data_dir`; it dies with this process, and keeps its data, and the port of
    a single broker, over `stop()` or `kill()` and `start()`. `program` is another one with its options."""

    def __init__(self, data_dir: Path, port: int = 0, program: Sequence[str] = PROGRAM, brokers: int = 1) -> None:
        self._directory = data_dir.absolute()
        # Ports in a row may not be free: several brokers take what they find.
        self._port = port or (free_port() if brokers == 1 else 0)
        self._program = tuple(program)
        self._brokers = brokers
        self._bootstrap = f"127.0.0.1:{self._port}"
        self._child: Child | None = None

    @property
    def description(self) -> str:
        """Kind of broker, in words for the user."""
        return "tickover's reference broker"

    @property
    def bootstrap(self) -> str:
        """host:port for clients; of several brokers all, once started."""
        return self._bootstrap

    @property
    def log(self) -> Path:
        """The broker's own log file."""
        return self._directory / "broker.log"

    def start(self) -> None:
        """Return when clients can be served. Raises KafkaUnavailable with the broker's last words."""
        if self._child is not None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [*self._program, "--port", str(self._port), "--data", str(self._directory / "data")]
        if self._brokers > 1:
            command += ["--brokers", str(self._brokers)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TICKOVER_")}
        with self.log.open("ab") as words:
            self._child = Child(command, subprocess.PIPE, words, environment=environment)
        output = self._child.output
        assert output is not None
        address = output.readline() if select([output], [], [], START_TIMEOUT_S)[0] else b""
        if not address:
            last_words = self.log.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
            self.kill()
            raise KafkaUnavailable(f"the reference broker did not start: {last_words}")
        self._bootstrap = address.decode().strip()

    def stop(self) -> None:
        """End the broker in order, or by force when it takes too long; twice is harmless."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, as a crash would; twice is harmless."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
