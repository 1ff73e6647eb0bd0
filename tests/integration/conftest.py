"""Sites for the tests that run the sidecar as a child process."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sidecar.doctor import doctor
from sidecar.doctor import kafka as doctor_kafka
from sidecar.doctor import rights as doctor_rights
from sidecar.doctor import transactions as doctor_transactions
from sidecar.embedded.child import free_port
from sidecar.embedded.valkey import EmbeddedValkey
from tests.services.errant_broker import ErrantServer
from tests.services.fixtures import CHOICE, KafkaChoice, missing, own_broker, own_tools
from tests.services.java_tools import JavaTools
from tests.services.kafka import Kafka
from tests.services.oracle import Traffic
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import WAIT_S

NewSite = Callable[[], Site]

PATIENCE_S = 10.0
GUARANTEES = ("at_least_once", "exactly_once")  # the strongest last
SOAK = "TICKOVER_TEST_SOAK" in os.environ


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure's report ends with what the sidecars in it said last: where nobody can look, that is all there is."""
    report = yield
    if report.failed:
        for sidecar in Sidecar.known:
            if sidecar.log.exists() and (sidecar.runs or sidecar.log.stat().st_mtime >= call.start):
                report.sections.append((f"the end of {sidecar.log.name}", sidecar.last_words()))
    return report


@pytest.fixture(autouse=True)
def no_traffic_outlives_its_test() -> Iterator[None]:
    """A failed test hasn't come to its verdict: what it sends would go on into the next one, and slow it."""
    yield
    for traffic in list(Traffic.known):
        traffic.close()


@pytest.fixture(scope="module")
def errant_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ErrantServer]:
    """A reference broker that answers as it is told."""
    with own_broker(ErrantServer(tmp_path_factory.mktemp("errant"))) as server:
        yield server


@pytest.fixture
def patient_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka that is slow to answer is a finding of `doctor`, and none of a test on a busy machine."""
    for module in (doctor_kafka, doctor_rights):
        monkeypatch.setattr(module, "ASK_TIMEOUT_S", WAIT_S)
    monkeypatch.setattr(doctor_transactions, "ASK_TIMEOUT_S", PATIENCE_S)  # what is hidden is waited for that long
    monkeypatch.setattr(doctor_kafka, "CONNECT_TIMEOUT_S", WAIT_S)
    monkeypatch.setattr(doctor_kafka, "READ_TIMEOUT_S", WAIT_S)
    monkeypatch.setattr(doctor, "DEADLINE_S", 2 * WAIT_S)


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> str:
    """The image that the module's `IMAGE` finds or builds."""
    try:
        return str(request.module.IMAGE())
    except LookupError as error:
        missing("Docker", error)
        raise


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Valkey that outlives every sidecar."""
    server = EmbeddedValkey(tmp_path_factory.mktemp("valkey"), free_port())
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A Valkey that a test may freeze, kill and empty."""
    server = EmbeddedValkey(tmp_path / "valkey", free_port())
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def new_site(kafka: Kafka, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewSite]:
    """Makes sites; their sidecars end with the module."""
    directory: Path = tmp_path_factory.mktemp("sites")
    with ExitStack() as stack:

        def new() -> Site:
            site = Site(kafka, redis_url, directory)
            stack.callback(site.close)
            return site

        yield new


@pytest.fixture(scope="session")
def clients_kafka(kafka_choice: KafkaChoice) -> Kafka:
    """The reference broker. TICKOVER_TEST_KAFKA=maven or docker: a real one, to see whether it answers the same."""
    return kafka_choice.kind(CHOICE if CHOICE in ("maven", "docker") else "reference")


@pytest.fixture(scope="session")
def java_tools(clients_kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    """Kafka's own tools, against that broker."""
    return own_tools(clients_kafka, tmp_path_factory.mktemp("java"))


@pytest.fixture(params=GUARANTEES if SOAK else GUARANTEES[-1:])
def guarantee(request: pytest.FixtureRequest) -> str:
    """The strongest guarantee; in a soak each in turn."""
    return str(request.param)


@pytest.fixture(params=GUARANTEES)
def each_guarantee(request: pytest.FixtureRequest) -> str:
    """Each guarantee in turn."""
    return str(request.param)
