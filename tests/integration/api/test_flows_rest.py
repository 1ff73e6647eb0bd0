"""Records follow what REST changes: policies in time, messages end to end."""

import base64
from typing import Any

import pytest

from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site, headers_of
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: of-the-file
match: {topics: ["~file"]}
delay: {default: 1ms}
target: {topic: ~file-target}
"""
APPLIES_WITHIN_S = 60.0  # 2 s are promised; the machine may be busy
LATE_MS = 60_000  # lateness is measured by benchmarks; this only tells late from forgotten


@pytest.fixture(scope="module")
def site(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("file")
    site.target("file-target")
    site.policies(POLICIES)
    return site


@pytest.fixture(scope="module")
def replicas(site: Site) -> tuple[Sidecar, Sidecar]:
    """Two processes: one is asked, and either may have the partition."""
    return site.sidecar("one").start(), site.sidecar("two").start()


def put(sidecar: Sidecar, name: str, document: dict[str, Any], **conditions: str) -> str:
    answer = sidecar.answer("PUT", f"/v1/policies/{name}", json=document, headers=conditions)
    assert answer.is_success, answer.text
    return answer.headers["etag"]


def policy(site: Site, role: str, default: str, target: str) -> dict[str, Any]:
    return {
        "name": f"{site.group}-{role}",
        "match": {"topics": [site.name(role)]},
        "delay": {"default": default},
        "target": {"topic": site.name(target), "allow": [site.name("rest-*")]},
    }


def fill(site: Site, replicas: tuple[Sidecar, Sidecar], source: str, partitions: int) -> None:
    """One record in each partition of a new source, accepted: whoever has the partition reads it."""
    site.kafka.produce(source, [(b"k", b"held", (), 0, partition) for partition in range(partitions)])

    def accepted() -> int:
        return sum(replica.stats()["topics"].get(source, {}).get("accepted", 0) for replica in replicas)

    # More where a partition moves: what is still held is accepted by its next owner, too.
    wait_until(lambda: accepted() >= partitions, otherwise=lambda: f"{accepted()} of {partitions} are accepted")


def test_a_changed_policy_applies_within_two_seconds_and_held_records_keep_theirs(
    site: Site, replicas: tuple[Sidecar, Sidecar]
) -> None:
    asked, _ = replicas
    source = site.topic("changing", 4)
    site.target("rest-before")
    site.target("rest-after")
    name = f"{site.group}-changing"
    etag = put(asked, name, policy(site, "changing", "2500ms", "rest-before"), **{"If-None-Match": "*"})
    fill(site, replicas, source, 4)
    put(asked, name, policy(site, "changing", "1ms", "rest-after"), **{"If-Match": etag})
    applied = f'tickover_policy_info{{policy="{name}",version="2"}} 1.0'
    for replica in replicas:
        wait_until(
            lambda replica=replica: applied in replica.call("GET", "/metrics").text,  # type: ignore[misc]
            APPLIES_WITHIN_S,
            lambda: "the change is not known in time",
        )
    site.kafka.produce(source, [(b"k", b"new", (), 0, part) for part in range(4)])
    after = site.kafka.read(site.name("rest-after"), 4)
    assert {dict(headers_of(m))["tickover-policy"] for m in after} == {f"{name}@2".encode()}
    before = site.kafka.read(site.name("rest-before"), 4)
    assert {dict(headers_of(m))["tickover-policy"] for m in before} == {f"{name}@1".encode()}


def test_a_message_sent_by_rest_comes_out_when_due(site: Site, replicas: tuple[Sidecar, Sidecar]) -> None:
    asked, other = replicas
    source = site.topic("rest-source", 3)
    target = site.target("rest-out")
    put(asked, f"{site.group}-rest-source", policy(site, "rest-source", "1h", "rest-out"), **{"If-None-Match": "*"})
    fill(site, replicas, source, 3)
    wait_until(lambda: other.call("GET", f"/v1/policies/{site.group}-rest-source").is_success)
    body = {
        "source": source,
        "target": target,
        "key": "k",
        "value": {"base64": base64.b64encode(b"\x00\xff").decode()},
        "headers": [["a", "1"], ["a", None], ["b", {"base64": base64.b64encode(b"\xfe").decode()}]],
        "delay": "400ms",
        "id": "order-1",
    }
    answers = [
        replica.answer("POST", "/v1/messages", json=body, headers={"Idempotency-Key": f"{site.group}-1"})
        for replica in (asked, other)
    ]
    assert [answer.status_code for answer in answers] == [202, 202], [answer.text for answer in answers]
    accepted = answers[0].json()
    assert answers[1].json() == accepted
    [message] = site.kafka.read(target, 1)
    assert (message.key(), message.value()) == (b"k", b"\x00\xff")
    position = accepted["position"]
    assert message.headers() == [
        ("a", b"1"),
        ("a", None),
        ("b", b"\xfe"),
        ("tickover-origin", f"{source}/{position['partition']}/{position['offset']}".encode()),
        ("tickover-due", str(accepted["due"]).encode()),
        ("tickover-policy", f"{site.group}-rest-source@1".encode()),
        ("tickover-id", b"order-1"),
    ]
    assert 0 <= message.timestamp()[1] - accepted["due"] < LATE_MS
    assert len(site.kafka.read_all(target)) == 1


def test_policies_of_the_file_are_not_changed_by_rest(site: Site, replicas: tuple[Sidecar, Sidecar]) -> None:
    asked, _ = replicas
    current = asked.call("GET", "/v1/policies/of-the-file")
    answer = asked.call("DELETE", "/v1/policies/of-the-file", headers={"If-Match": current.headers["etag"]})
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "file-managed")
