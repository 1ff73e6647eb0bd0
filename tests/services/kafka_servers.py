"""The ways to a broker in a test run: a Docker container, a child process from Maven jars, the reference broker."""

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import docker
import docker.errors
import requests.exceptions
from testcontainers.core.container import DockerContainer

from sidecar.embedded.child import free_port
from sidecar.embedded.java_kafka import MavenKafka
from sidecar.embedded.kafka import PROGRAM, ReferenceKafka
from tests.services.class_archive import JAVA_OPTIONS, QUICK
from tests.services.waiting import wait_until

DOCKER = {"timeout": 300}  # of the engine's client: containers start slowly on a busy machine
IMAGE = os.environ.get("TICKOVER_TEST_KAFKA_IMAGE", "apache/kafka:4.1.1")
STANDIN_IMAGE = "tickover-standin/kafka"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60

# Short session timeouts let tests see a member's death soon; the group's own default stays the client's.
PROPERTIES = {"group.min.session.timeout.ms": "1000"}
# A node that stands still for longer is taken for dead, and what its coordinators had decided stays open (KAFKA-20734):
# a busy machine must not come to that. A node that was killed waits as long before it is let in again.
SHARED = {"broker.session.timeout.ms": "20000"}

_DOCKER_SOCKET = "/var/run/docker.sock"
_CONTAINER_PORT = 9092
_STARTED = b"Kafka Server started"


class KafkaServer(Protocol):
    """A real broker that tests may stop and start."""

    bootstrap: str

    def start(self) -> None:
        """Return when clients can be served."""

    def stop(self) -> None:
        """Orderly end; data and port are kept until `remove`."""

    def kill(self) -> None:
        """SIGKILL, then as `stop`."""

    def remove(self) -> None:
        """End it, and forget its data."""


class KafkaNode(Protocol):
    """One broker of a cluster, which may go while the others stay."""

    def start(self) -> None:
        """Bring it back."""

    def stop(self) -> None:
        """Orderly end."""

    def kill(self) -> None:
        """SIGKILL, or what comes next to it."""


class KafkaCluster(KafkaServer, Protocol):
    """Several brokers."""

    @property
    def nodes(self) -> Sequence[KafkaNode]:
        """Each of them."""

    def pause(self, number: int) -> None:
        """Let this broker hang: it is there, and follows nobody."""

    def resume(self, number: int) -> None:
        """Let it go on."""


class ChildServer:
    """A broker in a child process. Its data directory belongs to the test run, which deletes it."""

    def __init__(self, kafka: MavenKafka | ReferenceKafka) -> None:
        self._kafka = kafka
        self.bootstrap = kafka.bootstrap
        self.log = kafka.log
        self.start = kafka.start
        self.stop = kafka.stop
        self.kill = self.remove = kafka.kill

    def freeze(self) -> None:
        """SIGSTOP: it takes connections, and answers nothing."""
        send_signal(self._kafka, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        send_signal(self._kafka, signal.SIGCONT)


def send_signal(kafka: MavenKafka | ReferenceKafka, which: signal.Signals) -> None:
    """To a broker's process."""
    assert kafka._child is not None, f"{kafka.bootstrap} isn't there"
    os.kill(kafka._child.pid, which)


class MavenServer(ChildServer):
    """A real broker from Maven jars; `properties` go over the defaults."""

    def __init__(self, data_dir: Path, properties: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(MavenKafka(data_dir, properties={**PROPERTIES, **properties}, java_options=JAVA_OPTIONS))


class ReferenceServer(ChildServer):
    """`tickover broker`, or another program with its options."""

    def __init__(self, data_dir: Path, program: Sequence[str] = PROGRAM) -> None:
        super().__init__(ReferenceKafka(data_dir, program=program))


class ContainerServer:
    """A broker in a container. Its port on the host is fixed, because the broker tells it to clients."""

    def __init__(self, image: str) -> None:
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        self._container = DockerContainer(image, docker_client_kw=DOCKER).with_bind_ports(_CONTAINER_PORT, port)
        for name, value in _container_settings(self.bootstrap).items():
            self._container.with_env(name, value)
        self._created = False

    def start(self) -> None:
        """Create the container, or start it again, and return when clients can be served."""
        since_s = time.time()
        if self._created:
            self._wrapped().start()
        else:
            self._container.start()
            self._created = True
        self._wait_until_started(since_s)

    def stop(self) -> None:
        """Orderly end."""
        self._wrapped().stop(timeout=STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL."""
        self._wrapped().kill()
        self._wrapped().wait()

    def remove(self) -> None:
        """End and delete the container with its data."""
        if self._created:
            self._container.stop(force=True, delete_volume=True)

    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()

    def _wait_until_started(self, since_s: float) -> None:
        def words() -> bytes:
            logs: bytes = self._wrapped().logs(since=since_s)
            return logs

        def is_decided() -> bool:
            self._wrapped().reload()
            return _STARTED in words() or self._wrapped().status == "exited"

        def last_words() -> str:
            return f"Kafka did not start in its container: {words()[-1000:].decode()}"

        wait_until(is_decided, START_TIMEOUT_S, last_words)
        assert _STARTED in words(), last_words()


def find_image(public: str = IMAGE, standin: str = STANDIN_IMAGE) -> str:
    """The public image, or the stand-in of tests/images/build; raises LookupError with what is missing."""
    _look_for_engine()
    try:
        client = docker.from_env(**DOCKER)
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
    ) as error:
        raise LookupError(f"no Docker engine answers: {error}") from error
    try:
        for image in (public, standin):
            if client.images.list(name=image):
                return image
        client.images.pull(public)
        return public
    except docker.errors.APIError as error:
        raise LookupError(f"no image {public}, run tests/images/build: {error}") from error
    finally:
        client.close()


def _look_for_engine() -> None:
    """Raise LookupError when nobody listens at the usual socket: the library would leave its own one open."""
    if "DOCKER_HOST" in os.environ:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(_DOCKER_SOCKET)
        except OSError as error:
            raise LookupError(f"no Docker engine answers: {error}") from None


def _container_settings(advertised: str) -> dict[str, str]:
    """Environment that apache/kafka and the stand-in read: it replaces the image's own settings as a whole."""
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://:{_CONTAINER_PORT},INTERNAL://localhost:9094,CONTROLLER://:9093",
        # The host's address does not work inside the container, and there the broker verifies a transactional
        # produce over a connection to itself: without this listener it ends in NOT_ENOUGH_REPLICAS.
        "advertised.listeners": f"PLAINTEXT://{advertised},INTERNAL://localhost:9094",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@localhost:9093",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": "/tmp/kafka-logs",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "log.retention.ms": "-1",
        **PROPERTIES,
        **SHARED,
    }
    settings = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in properties.items()}
    return {
        **settings,
        "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
        "KAFKA_HEAP_OPTS": "-Xms128m -Xmx512m",
        "KAFKA_JVM_PERFORMANCE_OPTS": " ".join(QUICK),
    }
