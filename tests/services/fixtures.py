"""Fixtures: servers start when the first test asks for them, and end with the run.

A missing service skips a test on a developer's machine and fails it where CI=true.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from sidecar.embedded.java_kafka import KafkaUnavailable, missing_tools
from sidecar.embedded.kafka import ReferenceKafka
from tests.services.java_tools import JavaTools
from tests.services.kafka import Kafka
from tests.services.kafka_cluster import ClusterServer
from tests.services.kafka_servers import (
    SHARED,
    ChildServer,
    ContainerServer,
    KafkaCluster,
    KafkaServer,
    MavenServer,
    ReferenceServer,
    find_image,
)
from tests.services.mock_kafka import MockKafka
from tests.services.reference_cluster import ReferenceClusterServer

# auto: docker where an engine answers and has or gets the image, else maven.
# both: as auto, and neither kind may be missing. reference: no Kafka at all, `tickover broker`, also where a test has
# brokers of its own to harm.
CHOICE = os.environ.get("TICKOVER_TEST_KAFKA", "auto")
IN_CI = os.environ.get("CI") == "true"


Server = TypeVar("Server", bound=KafkaServer)


class KafkaChoice:
    """Starts each kind of broker at most once in a run."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._running: dict[str, Kafka] = {}
        self._cleanup = ExitStack()

    def default(self) -> Kafka:
        """The broker for tests that do not care which."""
        if CHOICE in ("docker", "maven", "reference"):
            return self.kind(CHOICE)
        try:
            find_image()
        except LookupError:
            return self.kind("maven")
        return self.kind("docker")

    def kind(self, kind: str) -> Kafka:
        """The broker of one kind, started if it is not yet; raises LookupError when it cannot be had here."""
        if kind not in self._running:
            server = self._server(kind)
            self._cleanup.callback(server.remove)
            server.start()
            self._running[kind] = Kafka(server)
        return self._running[kind]

    def close(self) -> None:
        """End whatever was started."""
        self._running.clear()
        self._cleanup.close()

    def _server(self, kind: str) -> KafkaServer:
        if kind == "docker":
            return ContainerServer(find_image())
        if kind == "reference":
            return ReferenceServer(self._data_dir)
        reason = missing_tools()
        if reason is not None:
            raise LookupError(reason)
        return MavenServer(self._data_dir, SHARED)


def missing(service: str, reason: object) -> None:
    """Skip for a service that is not there; in CI fail, so that nothing goes untested unseen."""
    if IN_CI or CHOICE == "both":
        pytest.fail(f"{service} is missing: {reason}")
    pytest.skip(f"{service} is missing: {reason}")


def own_server(directory: Path) -> ChildServer:
    """A broker for one test or module."""
    return ReferenceServer(directory) if CHOICE == "reference" else MavenServer(directory)


def own_cluster(directory: Path) -> KafkaCluster:
    """Three brokers that may go one by one."""
    return ReferenceClusterServer(directory) if CHOICE == "reference" else ClusterServer(directory)


@contextmanager
def own_broker(server: Server) -> Iterator[Server]:
    """A broker that a test may harm; it is removed whatever happens, while it starts too."""
    try:
        try:
            server.start()
        except KafkaUnavailable as error:
            if isinstance(server, ReferenceServer):  # our own is never missing
                raise
            missing("Kafka", error)
        yield server
    finally:
        server.remove()


def own_tools(kafka: Kafka | ReferenceKafka, directory: Path) -> JavaTools:
    """Kafka's own commands, against this broker."""
    try:
        return JavaTools(kafka.bootstrap, directory)
    except LookupError as error:
        missing("Kafka's tools from maven", error)
        raise


@pytest.fixture(scope="session")
def kafka_choice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaChoice]:
    """All brokers of this run."""
    choice = KafkaChoice(tmp_path_factory.mktemp("kafka"))
    yield choice
    choice.close()


@pytest.fixture(scope="session")
def kafka(kafka_choice: KafkaChoice) -> Kafka:
    """A real broker: in a container where Docker answers, else from Maven jars. Or ours, which is never missing."""
    try:
        return kafka_choice.default()
    except (LookupError, KafkaUnavailable) as error:
        if CHOICE != "reference":
            missing("Kafka", error)
        raise


@pytest.fixture(scope="session", params=["docker", "maven", "reference"])
def each_kafka(request: pytest.FixtureRequest, kafka_choice: KafkaChoice) -> Kafka:
    """Every kind of broker in turn: for what must not depend on the kind."""
    if CHOICE not in ("auto", "both", request.param):
        pytest.skip(f"TICKOVER_TEST_KAFKA={CHOICE}")
    try:
        return kafka_choice.kind(request.param)
    except (LookupError, KafkaUnavailable) as error:
        missing(f"Kafka from {request.param}", error)
        raise


@pytest.fixture
def mock_kafka() -> Iterator[MockKafka]:
    """A fresh mock cluster."""
    cluster = MockKafka()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(params=["mock", pytest.param("real", marks=pytest.mark.integration)])
def kafka_place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """(bootstrap, a fresh topic) of the mock cluster and of the real broker in turn."""
    if request.param == "mock":
        bootstrap: str = request.getfixturevalue("mock_kafka").bootstrap
        return bootstrap, f"test-{uuid4().hex[:8]}"
    kafka: Kafka = request.getfixturevalue("kafka")
    return kafka.bootstrap, kafka.topic("clients", partitions=4)
