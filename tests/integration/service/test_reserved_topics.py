"""A process under policies that match all that there is: what the role `write` can bring into its topics."""

from pathlib import Path

import pytest

from api.access.auth import Role
from sidecar.settings.settings import Settings
from tests.integration.conftest import NewSite
from tests.services.site import Site, headers_of
from tests.unit.api.access.test_api_auth import bearer, tokens_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

POLICIES = """
name: everything
match: {topics: ["GROUP*", "tickover.*"]}
delay: {default: 1s}
target: {allow: ["*"]}
"""


@pytest.fixture(name="site")
def site_fixture(new_site: NewSite) -> Site:
    site = new_site()
    site.topic("in")
    site.target("out")
    site.policies(POLICIES.replace("GROUP", site.group))
    return site


def test_a_writer_gets_nothing_into_an_own_topic_under_policies_for_everything(site: Site, tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    sidecar = site.sidecar("one", API__TOKENS_FILE=str(path)).start()
    writer = bearer(given[Role.WRITE])
    named = {"policies": {"topic": f"{site.group}.policies"}, "quarantine": {"topic": site.quarantine}}
    own = sorted(Settings.model_validate({"group": site.group, **named}).own_topics)
    # The audit topic has a record of each call, and the ledger its blocks: what is sent must not be among these.
    quiet = [topic for topic in own if not topic.endswith((".audit", ".ledger", ".quarantine"))]
    before = {topic: len(site.kafka.read_all(topic)) for topic in quiet}
    mark = "a-forged-record"
    for topic in [*own, "tickover.another.ledger", "__consumer_offsets"]:
        from_there = {"source": topic, "target": site.name("out"), "key": mark, "value": mark}
        refused = sidecar.call("POST", "/v1/messages", headers=writer, json=from_there)
        assert refused.status_code == 422, refused.text
        assert refused.json()["type"] in ("/problems/not-a-source", "/problems/unknown-source")
        there = {"source": site.name("in"), "target": topic, "value": mark}
        refused = sidecar.call("POST", "/v1/messages", headers=writer, json=there)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/target-not-allowed")
        site.send(site.name("in"), [("tickover-target", topic.encode())], value=mark.encode())
    set_aside = site.kafka.read(site.quarantine, len(own) + 2)
    assert {dict(headers_of(message))["tickover-reason"] for message in set_aside} == {b"target_not_allowed"}
    sent = {"source": site.name("in"), "target": site.name("out"), "value": "fine"}
    assert sidecar.call("POST", "/v1/messages", headers=writer, json=sent).status_code == 202
    assert [message.value() for message in site.kafka.read(site.name("out"), 1)] == [b"fine"]
    assert {topic: len(site.kafka.read_all(topic)) for topic in quiet} == before
    for topic in own:
        if topic != site.quarantine:
            assert mark.encode() not in [message.value() for message in site.kafka.read_all(topic)]
    assert sidecar.stop() == 0
