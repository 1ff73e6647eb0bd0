"""No message comes from tickover's own topics or goes there, whatever a policy says."""

import pytest

from policies.model import Policy
from sidecar.config import Settings
from sidecar.reserved_topics import ReservedTopics
from sidecar.topics import source_topics
from tests.unit.policy_world import DELAY

RENAMED = {
    "ledger": {"topic": "team.ledger"},
    "policies": {"topic": "team.policies"},
    "quarantine": {"topic": "team.quarantine"},
    "audit": {"topic": "team.audit"},
    "redrive": {"topic": "team.redrives", "redriven_topic": "team.redriven"},
    "changes": {"topic": "team.changes"},
    "schedules": {"topic": "team.schedules"},
}


@pytest.mark.parametrize("given", [{}, {"group": "a.b"}, RENAMED])
@pytest.mark.parametrize("glob", ["*", "team.*", "tickover.*", "t*", "__*"])
def test_whatever_a_policy_matches_no_own_topic_is_a_source(given: dict[str, object], glob: str) -> None:
    settings = Settings.model_validate(given)
    policies = [Policy.model_validate({**DELAY, "match": {"topics": [glob, *sorted(settings.own_topics)]}})]
    existing = [*settings.own_topics, "team.orders", "__consumer_offsets", "tickover.another.ledger"]
    assert len(settings.own_topics) == 8
    assert set(source_topics(settings, policies, existing)) <= {"team.orders"}
    named = settings.model_copy(update={"sources": tuple(existing)})
    assert source_topics(named, policies, existing) == ["team.orders"]


@pytest.mark.parametrize(
    "topic",
    [
        "__consumer_offsets", "__transaction_state", "__", "tickover.policies", "tickover.quarantine",
        "tickover.g.ledger", "tickover.a.b.audit", "tickover.g.redrives", "tickover.g.redriven", "tickover.g.changes",
        "tickover.g.schedules",
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
