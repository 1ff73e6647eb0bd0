"""A quota on a real Kafka and Redis: what is held is known again after a kill, and what was refused comes back."""

import pytest

from tests.integration.conftest import NewSite
from tests.services.site import headers_of
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: {group}-reminders
match: {{topics: ["~reminders"]}}
delay: {{default: 1h}}
target: {{topic: "~mail"}}
quota: {{records: 3}}
"""


def test_a_quota_holds_over_a_kill_and_what_was_refused_is_redriven(new_site: NewSite) -> None:
    site = new_site()
    source, target = site.topic("reminders"), site.target("mail")
    policy = f"{site.group}-reminders"
    site.policies(POLICIES.format(group=site.group))
    sidecar = site.sidecar("only", GUARANTEE="exactly_once", REDRIVE__WATCH="0ms").start()

    def use() -> int:
        count: int = sidecar.stats()["quotas"].get(policy, {"records": -1})["records"]
        return count

    for number in range(5):
        site.send(source, [("tickover-id", b"%d" % number)], value=b"%d" % number)
    refused = site.kafka.read(site.quarantine, 2)
    assert sorted(message.value() or b"" for message in refused) == [b"3", b"4"]  # two intervals may swap places
    headers = dict(headers_of(refused[0]))
    assert headers["tickover-reason"] == b"quota_exceeded"
    assert f"policy {policy}@1 holds 3 records".encode() in (headers["tickover-detail"] or b"")
    wait_until(lambda: sidecar.stats()["topics"][source]["held"]["overflow"] == 3, otherwise=sidecar.last_words)

    sidecar.kill()
    sidecar.start()
    wait_until(lambda: use() == 3, otherwise=sidecar.last_words)
    site.send(source, [("tickover-id", b"5")], value=b"5")
    assert [message.value() for message in site.kafka.read(site.quarantine, 3)][-1] == b"5"

    for number in range(2):
        wait_until(lambda id=number: sidecar.call("POST", f"/v1/messages/{id}/fire").status_code in (200, 409))  # type: ignore[misc]
    assert len(site.kafka.read(target, 2)) == 2
    wait_until(lambda: use() == 1, otherwise=sidecar.last_words)
    plan = sidecar.call("POST", "/v1/redrives", json={"topic": site.quarantine, "confirm_all": True}).json()
    path = f"/v1/redrives/{plan['id']}"
    wait_until(lambda: sidecar.call("GET", path).json()["state"] == "planned", otherwise=sidecar.last_words)
    token = sidecar.call("GET", path).json().get("token")
    assert sidecar.call("POST", f"{path}/run", json={"token": token}).is_success
    again = site.kafka.read(site.quarantine, 4)  # there is room for two of the three
    assert dict(headers_of(again[-1]))["tickover-reason"] == b"quota_exceeded"
    wait_until(lambda: use() == 3, otherwise=sidecar.last_words)
    assert sidecar.stop() == 0
