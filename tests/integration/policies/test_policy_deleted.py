"""A policy is deleted, or matches another topic from now on, while records that it has decided are held."""

from typing import Any

import pytest

from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SOON_S = 30
DELAY = "9s"  # beyond the tests' horizon: Redis has it


@pytest.fixture(name="site")
def site_fixture(new_site: NewSite) -> Site:
    site = new_site()
    for role in ("reminders", "reminders-v2", "other"):
        site.topic(role)
    site.target("mail")
    site.policies('name: other\nmatch: {topics: ["~other"]}\ndelay: {default: 1m}\ntarget: {allow: ["~mail"]}\n')
    return site


@pytest.fixture(name="sidecar")
def sidecar_fixture(site: Site) -> Sidecar:
    return site.sidecar("one").start()


def policy(site: Site, topic: str) -> dict[str, Any]:
    match, target = {"topics": [site.name(topic)]}, {"allow": [site.name("mail")]}
    return {"match": match, "delay": {"default": "15m", "max": "30d"}, "target": target}


def send(site: Site, id: str, delay: str) -> None:
    headers = [("tickover-id", id.encode()), ("tickover-delay", delay.encode())]
    target = ("tickover-target", site.name("mail").encode())
    site.send(site.name("reminders"), [*headers, target], value=id.encode())


def is_held(sidecar: Sidecar, id: str) -> bool:
    answer = sidecar.call("GET", f"/v1/messages/{id}")
    return answer.is_success and answer.json()["state"] == "held"


def warnings(sidecar: Sidecar) -> str:
    answer = sidecar.call("GET", "/readyz")
    return " ".join(answer.json().get("warnings", ())) if answer.is_success else ""


@pytest.mark.parametrize("change", ["delete", "rename"])
def test_what_a_policy_has_decided_is_emitted_although_no_policy_wants_its_topic_any_more(
    site: Site, sidecar: Sidecar, change: str
) -> None:
    created = sidecar.call(
        "PUT", "/v1/policies/reminders", json=policy(site, "reminders"), headers={"If-None-Match": "*"}
    )
    assert created.status_code == 201, created.text
    send(site, "far", DELAY)
    send(site, "later", "11s")
    for id in ("far", "later"):
        wait_until(lambda id=id: is_held(sidecar, id), otherwise=sidecar.last_words)  # type: ignore[misc]

    def put_away(query: str) -> Any:
        headers = {"If-Match": created.headers["etag"]}
        if change == "delete":
            return sidecar.call("DELETE", f"/v1/policies/reminders{query}", headers=headers)
        renamed = policy(site, "reminders-v2")
        return sidecar.call("PUT", f"/v1/policies/reminders{query}", json=renamed, headers=headers)

    refused = put_away("")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/holds-messages")
    assert site.name("reminders") in refused.json()["topics"]
    assert put_away("?force=true").is_success
    wait_until(lambda: site.name("reminders") in warnings(sidecar), SOON_S, sidecar.last_words)
    send(site, "new", "1s")
    emitted = [message.value() for message in site.kafka.read(site.name("mail"), 2)]
    assert sorted(value or b"" for value in emitted) == [b"far", b"later"]
    wait_until(lambda: site.name("reminders") not in warnings(sidecar), SOON_S, sidecar.last_words)
    [odd] = site.kafka.read(site.quarantine, 1)
    assert dict(odd.headers() or ())["tickover-reason"] == b"no_policy"
    assert sidecar.stop() == 0
    assert len(site.kafka.read_all(site.name("mail"))) == 2
