"""Brokers that answer with an error now and then: the sidecar, exactly_once, on a reference broker that is told to."""

from collections.abc import Iterator
from itertools import count

import pytest

from broker.protocol.api_keys import ApiKey
from purgatory.errors import Errors
from tests.services.errant_broker import ErrantServer
from tests.services.kafka import Kafka
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: errors
match: {topics: ["~in"]}
delay: {default: 10ms, max: 1h}
target: {allow: ["~*"]}
"""
RECORDS = 40
ARRIVE_S = 180.0  # a client that hangs in a call is given up after 10 s, and Kafka's state is read again
OF_PRODUCE = [
    Errors.NOT_LEADER_OR_FOLLOWER,
    Errors.REQUEST_TIMED_OUT,
    Errors.MESSAGE_TOO_LARGE,
    Errors.UNKNOWN_TOPIC_OR_PARTITION,
    Errors.NOT_ENOUGH_REPLICAS,
    Errors.KAFKA_STORAGE_ERROR,
    Errors.INVALID_PRODUCER_EPOCH,
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Errors.INVALID_TXN_STATE,
]
OF_CALLS = [
    (ApiKey.END_TXN, Errors.NOT_COORDINATOR),
    (ApiKey.END_TXN, Errors.COORDINATOR_LOAD_IN_PROGRESS),
    (ApiKey.END_TXN, Errors.CONCURRENT_TRANSACTIONS),
    (ApiKey.END_TXN, Errors.PRODUCER_FENCED),
    (ApiKey.END_TXN, Errors.INVALID_TXN_STATE),
    (ApiKey.ADD_OFFSETS_TO_TXN, Errors.COORDINATOR_NOT_AVAILABLE),
    (ApiKey.ADD_OFFSETS_TO_TXN, Errors.INVALID_PRODUCER_EPOCH),
    (ApiKey.HEARTBEAT, Errors.COORDINATOR_NOT_AVAILABLE),
    (ApiKey.HEARTBEAT, Errors.UNKNOWN_MEMBER_ID),
]
numbers = count(1)


@pytest.fixture(scope="module")
def site(errant_server: ErrantServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(Kafka(errant_server), redis_url, tmp_path_factory.mktemp("site"))
    site.topic("in")
    site.policies(POLICIES)
    yield site
    site.close()


@pytest.fixture(scope="module", autouse=True)
def sidecar(site: Site) -> Sidecar:
    return site.sidecar("one", GUARANTEE="exactly_once").start()


def check_flow(errant_server: ErrantServer, site: Site, role: str, where: str, error: Errors) -> None:
    """After this error records for a target arrive there, each once, and none in quarantine."""
    target, number = site.name(role), next(numbers)
    errant_server.errand.want(number, where, error)
    headers = [("tickover-target", target.encode())]
    sent = [b"%s %d" % (role.encode(), number) for number in range(RECORDS)]
    site.kafka.produce(site.name("in"), [(b"key", value, headers, 0, 0) for value in sent])
    site.kafka.read(target, RECORDS, ARRIVE_S)
    wait_until(lambda: errant_server.errand.given == number, ARRIVE_S, lambda: "the error was not given")
    assert sorted(message.value() or b"" for message in site.kafka.read_all(target)) == sorted(sent)
    assert site.kafka.read_all(site.quarantine) == []


@pytest.mark.parametrize("error", OF_PRODUCE, ids=lambda error: error.name.lower())
def test_a_target_that_answers_with_an_error_gets_each_record_once(
    errant_server: ErrantServer, site: Site, error: Errors
) -> None:
    role = f"target-{error.value}"
    check_flow(errant_server, site, role, site.target(role), error)


def test_a_broker_that_has_forgotten_a_producer_is_no_silent_target(
    errant_server: ErrantServer, site: Site, sidecar: Sidecar
) -> None:
    target = site.target("forgetful")
    check_flow(errant_server, site, "forgetful", target, Errors.UNKNOWN_PRODUCER_ID)
    said = [line for line in sidecar.log.read_text().splitlines() if "does not acknowledge" in line]
    assert not [line for line in said if target in line]


@pytest.mark.parametrize("error", [Errors.NOT_LEADER_OR_FOLLOWER, Errors.REQUEST_TIMED_OUT, Errors.NOT_ENOUGH_REPLICAS])
def test_a_ledger_that_answers_with_an_error_gets_each_block_once(
    errant_server: ErrantServer, site: Site, sidecar: Sidecar, error: Errors
) -> None:
    role = f"ledger-{error.value}"
    site.target(role)
    check_flow(errant_server, site, role, f"tickover.{site.group}.ledger", error)
    assert sidecar.stats()["ledger_imbalance"] == 0


@pytest.mark.parametrize(("key", "error"), OF_CALLS, ids=lambda one: one.name.lower())
def test_a_coordinator_that_answers_with_an_error_loses_and_repeats_nothing(
    errant_server: ErrantServer, site: Site, sidecar: Sidecar, key: ApiKey, error: Errors
) -> None:
    role = f"{key.name}-{error.value}"
    site.target(role)
    check_flow(errant_server, site, role, key.name, error)
    assert sidecar.stats()["early"] == 0
