"""No message comes from tickover's own topics or goes there, whatever a policy says."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from api.access.auth import Role, load_tokens
from policies.errors import PolicyFileError
from policies.model import Policy
from sidecar.kafka.topics import source_topics
from sidecar.model.reserved_topics import ReservedTopics
from sidecar.service.sources import Sources
from sidecar.service.watched_files import read_policies
from sidecar.settings.settings import Settings
from tests.unit.api.access.test_api_auth import bearer, tokens_file
from tests.unit.api.routes.test_api_held import row
from tests.unit.api_world import NOW_MS, REMINDERS, World, problem, world
from tests.unit.policy_world import DELAY
from tests.unit.service.test_sources import Cluster

RENAMED = {
    "ledger": {"topic": "team.ledger"},
    "policies": {"topic": "team.policies"},
    "quarantine": {"topic": "team.quarantine"},
    "audit": {"topic": "team.audit"},
    "redrive": {"topic": "team.redrives", "redriven_topic": "team.redriven"},
    "changes": {"topic": "team.changes"},
    "schedules": {"topic": "team.schedules"},
    "pauses": {"topic": "team.pauses"},
}


@pytest.mark.parametrize("given", [{}, {"group": "a.b"}, RENAMED])
@pytest.mark.parametrize("glob", ["*", "team.*", "tickover.*", "t*", "__*"])
def test_whatever_a_policy_matches_no_own_topic_is_a_source(given: dict[str, object], glob: str) -> None:
    settings = Settings.model_validate(given)
    policies = [Policy.model_validate({**DELAY, "match": {"topics": [glob, *sorted(settings.own_topics)]}})]
    existing = [*settings.own_topics, "team.orders", "__consumer_offsets", "tickover.another.ledger"]
    assert len(settings.own_topics) == 9
    assert set(source_topics(settings, policies, existing)) <= {"team.orders"}
    named = settings.model_copy(update={"sources": tuple(existing)})
    assert source_topics(named, policies, existing) == ["team.orders"]


@pytest.mark.parametrize(
    "topic",
    [
        "__consumer_offsets", "__transaction_state", "__", "tickover.policies", "tickover.quarantine",
        "tickover.g.ledger", "tickover.a.b.audit", "tickover.g.redrives", "tickover.g.redriven", "tickover.g.changes",
        "tickover.g.schedules", "tickover.g.pauses",
    ],
)  # fmt: skip
def test_topics_of_kafka_and_of_other_groups_are_reserved(topic: str) -> None:
    assert topic in ReservedTopics()


@pytest.mark.parametrize(
    "topic",
    ["orders", "_orders", "tickover", "tickover.", "tickover.orders", "tickover.ledger", "my.tickover.policies",
     "tickover.policies-retry", "tickover.g.ledger.copy", "Tickover.policies", ""],
)  # fmt: skip
def test_no_other_topic_is_reserved(topic: str) -> None:
    assert topic not in ReservedTopics()


# --- REST -------------------------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {**REMINDERS, "match": {"topics": ["*"]}, "target": {"allow": ["*"]}}
REPORT: dict[str, Any] = {"cron": "0 9 * * *", "target": "push"}
SETTINGS = Settings.model_validate({"group": "g", **RENAMED})
CLOSED = sorted({*SETTINGS.own_topics, *Settings(group="another").own_topics, "__consumer_offsets"})
UNUSED = ["push-dlq", "logs"]


class Caller:
    """Somebody with one role, under a policy for all that there is, and what the process really knows of sources."""

    def __init__(self, api: World, token: str, cluster: Cluster) -> None:
        self.api = api
        self.cluster = cluster
        self._token = token

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return self.api.call(method, path, json=body, headers={**bearer(self._token), **headers})


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Caller]:
    yield from _caller(tmp_path, Role.WRITE)


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Caller]:
    yield from _caller(tmp_path, Role.ADMIN)


def _caller(tmp_path: Path, role: Role) -> Iterator[Caller]:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    cluster = Cluster("reminders", "push", *UNUSED, *CLOSED)
    machinery: Any = cluster
    leftovers: Any = cluster.leftovers
    there: Any = SimpleNamespace(api=None)
    sources: Any = Sources(SETTINGS, machinery, machinery, lambda: there.api.policies.table, leftovers)
    with world(tokens=load_tokens(path), sources=sources) as api:
        there.api = api
        api.add({**EVERYTHING, "dead_letter": {"topic": "push-dlq"}})
        api.add({**REMINDERS, "name": "unlimited", "target": {"allow": ["*"]}})
        api.sender.topics = dict.fromkeys(cluster.settings, 1)
        sources.look()
        yield Caller(api, given[role], cluster)


@pytest.mark.parametrize("topic", CLOSED)
def test_who_may_send_messages_sends_none_into_an_own_topic(writer: Caller, topic: str) -> None:
    """In the topic of policies it would be a policy, in the ledger a block, in the audit topic an entry."""
    body = {"source": topic, "target": "push", "key": "anything", "value": "{}"}
    assert "own topics" in problem(writer.call("POST", "/v1/messages", body), 422, "not-a-source")["detail"]
    keyed = writer.call("POST", "/v1/messages", body, **{"idempotency-key": "k"})
    problem(keyed, 422, "not-a-source")
    refused = problem(writer.call("POST", "/v1/messages", {"source": "reminders", "target": topic}), 422,
                      "target-not-allowed")  # fmt: skip
    assert (refused["reason"], topic in refused["detail"]) == ("target_not_allowed", True)
    assert writer.api.sender.sent == []
    assert writer.call("POST", "/v1/messages", {"source": "reminders", "target": "push"}).status_code == 202


@pytest.mark.parametrize(("method", "path", "body"), [
    ("DELETE", "", None), ("PATCH", "", {"delay": "2h"}), ("POST", "/fire", None),
])  # fmt: skip
def test_no_control_record_goes_where_a_forged_answer_says_that_a_message_is_held(
    writer: Caller, method: str, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.actions.AGAIN_S", ())
    for topic in CLOSED:
        forged = row(8, id="a")
        forged["source"] = forged["position"]["topic"] = topic
        writer.api.held.rows = [forged]
        problem(writer.call(method, f"/v1/messages/a{path}", body), 422, "not-a-source")
    assert writer.api.sender.sent == []


def test_a_topic_that_nobody_consumes_takes_no_messages(writer: Caller) -> None:
    """The topic has dead letters, or policies have changed since somebody looked: the message would never arrive."""
    body = {"source": "push-dlq", "target": "push"}
    problem(writer.call("POST", "/v1/messages", body), 422, "not-a-source")
    writer.api.add({**EVERYTHING, "dead_letter": {"topic": "logs"}})
    problem(writer.call("POST", "/v1/messages", {**body, "source": "logs"}), 422, "not-a-source")
    assert writer.api.sender.sent == []


@pytest.mark.parametrize("topic", CLOSED)
def test_no_schedule_comes_from_an_own_topic_or_leads_to_one(admin: Caller, topic: str) -> None:
    fresh = {"if-none-match": "*"}
    for given, type in (
        ({"source": topic}, "not-a-source"),
        ({"source": "reminders", "target": topic}, "target-not-allowed"),
    ):
        problem(admin.call("PUT", "/v1/schedules/report", {**REPORT, **given}, **fresh), 422, type)
    assert admin.api.schedules.topic.records == []


def test_no_schedule_comes_from_a_topic_that_nobody_consumes(admin: Caller) -> None:
    body = {**REPORT, "source": "push-dlq"}
    problem(admin.call("PUT", "/v1/schedules/report", body, **{"if-none-match": "*"}), 422, "not-a-source")


@pytest.mark.parametrize("field", [
    {"match": {"topics": ["fine", "{}"]}}, {"target": {"topic": "{}", "allow": ["push"]}},
    {"target": {"allow": ["*", "{}"]}}, {"dead_letter": {"topic": "{}"}},
])  # fmt: skip
def test_no_policy_names_an_own_topic(admin: Caller, field: dict[str, Any], tmp_path: Path) -> None:
    for topic in CLOSED:
        named = yaml.safe_load(yaml.safe_dump({**REMINDERS, "name": "bad", **field}).replace("{}", topic))
        if named.get("dead_letter") == {"topic": SETTINGS.quarantine.topic}:
            continue  # letters may go where the quarantine is
        refused = problem(admin.call("PUT", "/v1/policies/bad", named, **{"if-none-match": "*"}), 422, "reserved-topic")
        assert topic in refused["detail"]
        file = tmp_path / "policies.yaml"
        file.write_text(yaml.safe_dump(named))
        settings = SETTINGS.model_copy(update={"policies": SETTINGS.policies.model_copy(update={"file": str(file)})})
        with pytest.raises(PolicyFileError, match=r"policy bad can't .*own topics"):
            read_policies(settings)
        admin.api.add(named)  # as a program wrote it that knew of no such rule
        back = admin.call(
            "POST", "/v1/policies/bad/rollback", {"version": admin.api.policies.table.policies["bad"].version}
        )
        problem(back, 422, "reserved-topic")


def test_a_policy_may_have_globs_and_the_quarantine_for_its_letters(admin: Caller) -> None:
    globs = ["*", "__*", "tickover.*", "team.*"]
    body = {**REMINDERS, "name": "fine", "match": {"topics": globs}, "target": {"allow": globs},
            "dead_letter": {"topic": SETTINGS.quarantine.topic}}  # fmt: skip
    assert admin.call("PUT", "/v1/policies/fine", body, **{"if-none-match": "*"}).status_code == 201


def test_what_is_explained_is_what_would_be_done(admin: Caller) -> None:
    record = {"topic": "reminders", "headers": {"tickover-target": "__consumer_offsets"}, "timestamp": NOW_MS}
    told = admin.call("POST", "/v1/policies/explain", {"record": record}).json()
    assert (told["decision"]["kind"], told["decision"]["reason"]) == ("quarantine", "target_not_allowed")
    assert (told["schedule"], told["end"]) == ([], None)
