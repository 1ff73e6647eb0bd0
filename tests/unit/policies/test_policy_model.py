"""The policy model: what it takes, what it refuses, and that it reads back equal."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from policies.model import Policy, policy_document, policy_schema
from policies.topic.log import schema_of

RETRY: dict[str, Any] = {
    "name": "orders-retry",
    "match": {"topics": ["orders-retry"], "headers": {"tenant": "gold*"}},
    "retry": {
        "attempts": 5,
        "backoff": {"kind": "exponential", "initial": "1s", "factor": 2, "max": "10m", "jitter": "full"},
        "timeout": "24h",
        "retry_on": ["*"],
        "give_up_on": ["*.ValidationError"],
    },
    "target": {"topic": "orders", "allow": ["orders"]},
    "dead_letter": {"topic": "orders-dlq"},
}
DELAY: dict[str, Any] = {
    "name": "reminders",
    "match": {"topics": ["reminders"]},
    "delay": {"default": "15m", "max": "400d"},
    "target": {"allow": ["mail-*", "push"]},
    "dead_letter": {"topic": "reminders-dlq"},
}


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A deep copy of the document with one value set; `...` removes it."""
    document: dict[str, Any] = json.loads(json.dumps(base))
    *parents, last = path.split(".")
    place = document
    for parent in parents:
        place = place.setdefault(parent, {})
    if value is ...:
        place.pop(last)
    else:
        place[last] = value
    return document


@pytest.mark.parametrize("document", [RETRY, DELAY])
def test_the_examples_of_the_contract_are_policies_and_read_back_equal(document: dict[str, Any]) -> None:
    policy = Policy.model_validate(document)
    shown = json.loads(json.dumps(policy_document(policy)))
    assert Policy.model_validate(shown) == policy


def test_durations_are_held_as_milliseconds_and_shown_as_text() -> None:
    policy = Policy.model_validate(DELAY)
    assert policy.delay is not None
    assert policy.delay.default == 900_000
    assert policy_document(policy)["delay"] == {"default": "15m", "max": "400d"}


@pytest.mark.parametrize(
    ("base", "path", "value", "problem"),
    [
        (RETRY, "delay", {"default": "1s"}, "exactly one of retry and delay"),
        (RETRY, "retry", ..., "exactly one of retry and delay"),
        (DELAY, "target", ..., "nowhere to emit"),
        (DELAY, "delay.default", "401d", "longer than max"),
        (DELAY, "delay.default", "soon", "not a duration"),
        (DELAY, "delay.max", -1, "negative"),
        (DELAY, "delay.maximum", "1d", "maximum"),
        (DELAY, "extra", 1, "extra"),
        (DELAY, "match.topics", [], "at least 1"),
        (DELAY, "match.topics", "reminders", "tuple"),
        (DELAY, "match.topics", ["a b"], "topic name or glob"),
        (DELAY, "match.headers", {"tickover-id": "*"}, "own headers"),
        (DELAY, "match.headers", {"tenant": 5}, "string"),
        (DELAY, "target.topic", "mail-*", "topic name"),
        (DELAY, "target.topic", "..", "topic name"),
        (DELAY, "dead_letter.topic", "ä", "topic name"),
        (DELAY, "name", "Reminders", "pattern"),
        (DELAY, "name", "-reminders", "pattern"),
        (DELAY, "name", "reminders\n", "pattern"),
        (DELAY, "name", "a" * 64, "pattern"),
        (DELAY, "name", "\ud83d", "unicode"),
        (RETRY, "retry.attempts", -1, "greater than or equal to 0"),
        (RETRY, "retry.attempts", "5", "integer"),
        (RETRY, "retry.attempts", True, "integer"),
        (RETRY, "retry.attempts", 10_001, "less than or equal"),
        (RETRY, "retry.attempts", ..., "required"),
        (RETRY, "retry.backoff", ..., "required"),
        (RETRY, "retry.backoff.kind", "random", "'fixed', 'exponential', 'list'"),
        (RETRY, "retry.backoff.factor", 0.5, "greater than or equal to 1"),
        (RETRY, "retry.backoff.factor", float("nan"), "finite|greater"),
        (RETRY, "retry.backoff.max", "1ms", "shorter than initial"),
        (RETRY, "retry.backoff.jitter", "some", "'none', 'full' or 'equal'"),
        (RETRY, "retry.backoff", {"kind": "list", "delays": []}, "at least 1"),
        (RETRY, "retry.backoff", {"kind": "fixed", "delay": "1s", "max": "2s"}, "max"),
        (RETRY, "retry.retry_on", [], "at least 1"),
    ],
)
def test_everything_else_is_refused_and_says_why(base: dict[str, Any], path: str, value: Any, problem: str) -> None:
    document = changed(base, path, value) if value != "\ud83d" else {**base, "name": value}
    with pytest.raises(ValidationError, match=problem):
        Policy.model_validate(document)


def test_a_name_of_63_signs_is_the_longest() -> None:
    assert Policy.model_validate(changed(DELAY, "name", "a" * 63)).name == "a" * 63


def test_order_is_a_word_or_says_its_limits() -> None:
    word = Policy.model_validate({**RETRY, "order": "key"})
    spelt = Policy.model_validate({**RETRY, "order": {"by": "key", "parked_max": 100_000, "when_full": "pause"}})
    assert word == spelt
    assert policy_document(word)["order"] == {"by": "key", "parked_max": 100_000, "when_full": "pause"}
    assert Policy.model_validate(policy_document(word)) == word
    for wrong in ("offset", {"by": "key", "parked_max": 0}, {"by": "key", "when_full": "drop"}, {}):
        with pytest.raises(ValidationError):
            Policy.model_validate({**RETRY, "order": wrong})
    with pytest.raises(ValidationError, match="order is for retry policies"):
        Policy.model_validate({**DELAY, "order": "key"})


def test_a_policy_cannot_be_changed() -> None:
    policy = Policy.model_validate(DELAY)
    with pytest.raises(ValidationError, match="frozen"):
        policy.name = "other"  # type: ignore[misc]


def test_the_schema_is_json_and_names_every_public_field() -> None:
    schema = json.loads(json.dumps(policy_schema()))
    assert set(schema["properties"]) == {"name", "match", "retry", "delay", "order", "quota", "target", "dead_letter"}
    assert schema["additionalProperties"] is False
    assert [list(kind["required"]) for kind in schema["oneOf"]] == [["retry"], ["delay"]]
    assert set(schema["$defs"]["Retry"]["properties"]) == {
        "attempts",
        "backoff",
        "timeout",
        "retry_on",
        "give_up_on",
        "breaker",
        "spread",
        "spread_max",
    }


@pytest.mark.parametrize("quota", [{}, {"records": 0}, {"bytes": True}, {"records": "many"}, {"records": 1, "more": 2}])
def test_a_quota_says_how_much(quota: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="quota"):
        Policy.model_validate({**DELAY, "quota": quota})
    for good in ({"records": 1}, {"bytes": 1}, {"records": 5, "bytes": 10}):
        policy = Policy.model_validate({**DELAY, "quota": good})
        assert policy_document(policy)["quota"] == good
        assert schema_of(policy) == 2


def test_a_quota_in_units_is_written_as_the_number_that_older_replicas_read() -> None:
    policy = Policy.model_validate({**DELAY, "quota": {"bytes": "1.5GB"}})
    assert policy_document(policy)["quota"] == {"bytes": 1_500_000_000}
    with pytest.raises(ValidationError, match="a size needs its unit in full"):
        Policy.model_validate({**DELAY, "quota": {"bytes": "1G"}})
