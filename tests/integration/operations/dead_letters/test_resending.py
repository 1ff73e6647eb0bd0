"""A quarantined record that is corrected and sent again on a real Kafka: once, whichever replicas are asked at once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.conftest import NewSite
from tests.services.site import Site, headers_of, place
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: later
match: {topics: ["~later"]}
delay: {max: 1h}
target: {allow: ["~out"]}
dead_letter: {topic: "~later-dlq"}
"""
WAIT_S = 120.0
ASKED = 4  # on each of two replicas, at the same moment


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("later", 3)
    site.topic("later-dlq")
    site.target("out")
    site.policies(POLICIES)
    return site


def test_it_goes_once_and_is_emitted_as_corrected(site: Site) -> None:
    replicas = [site.sidecar(name).start() for name in ("one", "two")]
    given: list[tuple[str, bytes | None]] = [
        ("mine", b"\xff"), ("tickover-delay", b"soon"), ("tickover-target", site.name("out").encode()),
    ]  # fmt: skip
    report = site.send(site.name("later"), given, value=b"\x00\x01")
    source = place(report).decode()

    def lying() -> list[dict[str, Any]]:
        items = replicas[0].answer("GET", "/v1/quarantine").json()["items"]
        return [item for item in items if item["source"] == source]

    wait_until(lambda: len(lying()) == 1, WAIT_S, lambda: "it is not in the quarantine")
    [item] = lying()
    assert (item["reason"], item["redriven"]) == ("bad_header", None)
    path = f"/v1/quarantine/{item['partition']}/{item['offset']}/send"
    refused = replicas[0].call("POST", path, json={})
    assert (refused.status_code, refused.json()["reason"]) == (422, "bad_header")

    def send(number: int) -> Any:
        body = {"headers": {"tickover-delay": f"{number}ms"}}
        return replicas[number % 2].call("POST", path, json=body)

    with ThreadPoolExecutor(2 * ASKED) as threads:
        answers = list(threads.map(send, range(2 * ASKED)))
    types = {answer.json().get("type", "").rpartition("/")[2] for answer in answers if answer.status_code != 202}
    assert types <= {"already-sent", "request-in-progress"}, [answer.text for answer in answers]
    later = [replica.call("POST", path, json={"headers": {"tickover-delay": "1ms"}}) for replica in replicas]
    assert [answer.json()["type"] for answer in later] == ["/problems/already-sent"] * 2 or 202 in {
        answer.status_code for answer in later
    }
    assert sum(answer.status_code == 202 for answer in (*answers, *later)) == 1

    wait_until(lambda: bool(site.kafka.read_all(site.name("out"))), WAIT_S, lambda: "it was not emitted")
    last = site.send(site.name("later"), [("tickover-delay", b"1ms"), given[2]], value=b"last")
    wait_until(
        lambda: any(one.value() == last.value() for one in site.kafka.read_all(site.name("out"))),
        WAIT_S,
        lambda: "what was sent behind it was not emitted",
    )
    emitted = [one for one in site.kafka.read_all(site.name("out")) if one.value() == b"\x00\x01"]
    assert len(emitted) == 1
    headers = dict(headers_of(emitted[0]))
    assert headers["mine"] == b"\xff"
    assert headers["tickover-redrive-source"] == item["position"].encode()
    assert "tickover-reason" not in headers
    [told] = lying()
    assert told["redriven"]["plan"] == f"by-hand-{item['partition']}-{item['offset']}"
    assert told["position"] not in {
        one["position"] for one in replicas[1].answer("GET", "/v1/quarantine?open=true").json()["items"]
    }
    recorded = replicas[1].answer("GET", "/v1/audit?action=send_quarantined").json()["items"]
    assert len(recorded) == 2 * ASKED + 3
    assert {one["outcome"] for one in recorded} == {"done", "refused"}
    doctor = replicas[0].answer("GET", "/v1/doctor").json()
    assert {"brokers", "redis"} & {one["part"] for one in doctor["items"]}, doctor
    settings = {one["setting"]: one for one in replicas[1].answer("GET", "/v1/settings").json()["items"]}
    assert settings["group"]["from"] == "environment variable TICKOVER_GROUP"
