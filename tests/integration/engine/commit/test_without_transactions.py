"""Brokers that have no transactions, and limit topics as managed clusters do: what works goes on, and what doesn't is
said, soon and with the reason.
"""

import time
from collections.abc import Iterator

import pytest

from sidecar.doctor.facts import Severity
from sidecar.doctor.kafka import inspect_kafka
from sidecar.settings.settings import Settings
from tests.services.errant_broker import ErrantServer
from tests.services.kafka import Kafka
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: without
match: {topics: ["~in"]}
delay: {default: 10ms, max: 1h}
target: {allow: ["~*"]}
dead_letter: {topic: ~dlq}
"""
WORDS = "have no transactions"
ANSWER_S = 5.0


@pytest.fixture(scope="module")
def site(errant_server: ErrantServer, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    errant_server.errand.take_transactions_away()
    errant_server.errand.manage()
    site = Site(Kafka(errant_server), redis_url, tmp_path_factory.mktemp("site"))
    for role in ("in", "out", "dlq"):
        site.topic(role)
    site.policies(POLICIES)
    yield site
    site.close()


@pytest.fixture(scope="module")
def sidecar(site: Site) -> Sidecar:
    return site.sidecar("one", GUARANTEE="at_least_once", LEDGER__REPLICATION_FACTOR="1").start()


def test_messages_fire(site: Site, sidecar: Sidecar) -> None:
    site.kafka.produce(site.name("in"), [(b"k", b"v", [("tickover-target", site.name("out").encode())], 0, 0)])
    assert [message.value() for message in site.kafka.read(site.name("out"), 1, WAIT_S)] == [b"v"]


def test_the_start_says_what_does_not_work(sidecar: Sidecar) -> None:
    def told() -> bool:
        return any(WORDS in warning for warning in sidecar.call("GET", "/readyz").json()["warnings"])

    wait_until(told, WAIT_S, sidecar.last_words)
    assert WORDS in sidecar.log.read_text()


def test_a_plan_ends_with_the_reason_and_soon(site: Site, sidecar: Sidecar) -> None:
    letter = [(b"k", b"v", [("tickover-reason", b"expired")], 0, 0)]
    site.kafka.produce(site.name("dlq"), letter)
    asked = {
        "redrives": {"topic": site.name("dlq"), "target": site.name("out"), "confirm_all": True},
        "changes": {"action": "cancel", "confirm_all": True},
    }
    for kind, body in asked.items():
        begun_s = time.monotonic()
        planned = sidecar.call("POST", f"/v1/{kind}", json=body)
        assert time.monotonic() - begun_s < ANSWER_S
        assert planned.status_code == 202, planned.text
        document = sidecar.call("GET", f"/v1/{kind}/{planned.json()['id']}").json()
        assert (document["state"], WORDS in document["reason"]) == ("aborted", True)


def test_a_schedule_is_refused_soon(site: Site, sidecar: Sidecar) -> None:
    begun_s = time.monotonic()
    schedule = {"name": "tick", "cron": "* * * * *", "target": site.name("out")}
    refused = sidecar.call("PUT", "/v1/schedules/tick", json=schedule, headers={"If-None-Match": "*"})
    assert time.monotonic() - begun_s < ANSWER_S
    assert (refused.status_code, WORDS in refused.json()["detail"]) == (503, True)


def test_own_topics_are_made_as_the_brokers_take_them(sidecar: Sidecar) -> None:
    said = [line for line in sidecar.log.read_text().splitlines() if "what the brokers take" in line]
    assert any("ledger" in line and "8388608" in line for line in said)


def test_what_doctor_prints_is_what_the_brokers_take(site: Site) -> None:
    settings = Settings.model_validate(
        {
            "group": "nobody",
            "ledger": {"replication_factor": 1},
            "policies": {"topic": "tickover.nobody.policies"},
            "kafka": {"bootstrap_servers": site.kafka.bootstrap},
        }
    )
    fixes = [one.fix for one in inspect_kafka(settings, lambda: time.time_ns() // 1_000_000) if "--create" in one.fix]
    assert any("--config max.message.bytes=8388608" in fix for fix in fixes)
    assert not [fix for fix in fixes if "10485760" in fix or "--replication-factor" in fix]


@pytest.mark.parametrize(
    ("guarantee", "severity"), [("at_least_once", Severity.WARNING), ("exactly_once", Severity.ERROR)]
)
def test_doctor_says_what_does_not_work(site: Site, sidecar: Sidecar, guarantee: str, severity: Severity) -> None:
    settings = Settings.model_validate(
        {"group": site.group, "guarantee": guarantee, "kafka": {"bootstrap_servers": site.kafka.bootstrap}}
    )
    found = [one for one in inspect_kafka(settings, lambda: time.time_ns() // 1_000_000) if one.part == "transactions"]
    assert [(one.severity, WORDS in one.what) for one in found] == [(severity, True)]


def test_brokers_that_get_them_are_noticed(errant_server: ErrantServer, sidecar: Sidecar, site: Site) -> None:
    errant_server.errand.give_transactions_back()
    schedule = {"name": "tick", "cron": "* * * * *", "target": site.name("out")}
    written = sidecar.call("PUT", "/v1/schedules/tick", json=schedule, headers={"If-None-Match": "*"})
    assert written.status_code == 201, written.text
