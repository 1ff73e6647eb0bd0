"""Faults of what users write: all at once, unknown keys first, in plain words."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from api.routes.explain import ExplainRequest
from policies.faults.faults import faults_of
from policies.model import Policy
from sidecar.operations.schedules.schedule import Schedule

DELAY: dict[str, Any] = {"name": "a", "match": {"topics": ["a"]}, "target": {"topic": "b"}, "delay": {}}
RETRY: dict[str, Any] = {
    "name": "a",
    "match": {"topics": ["a"]},
    "retry": {"attempts": 1, "backoff": {"kind": "fixed", "delay": "1s"}},
}
SCHEDULE: dict[str, Any] = {"name": "a", "cron": "0 9 * * *", "target": "b"}


def told(model: type[BaseModel], value: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return [str(fault) for fault in faults_of(caught.value, model, value)]


def retry(**changes: Any) -> dict[str, Any]:
    return {**RETRY, "retry": {**RETRY["retry"], **changes}}


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ({}, ["name: is missing", "match: is missing"]),
        ({**DELAY, "name": 5}, ["name: must be a text: put it in quotes"]),
        (
            {**DELAY, "name": "A b"},
            ["name: must be 1 to 63 of a-z 0-9 . - and begin with a letter or digit"],
        ),
        ({**DELAY, "match": "a"}, ["match: must be a mapping, such as {key: value}"]),
        ({**DELAY, "match": {"topics": "a"}}, ["match.topics: must be a list, such as [a, b]"]),
        ({**DELAY, "match": {"topics": []}}, ["match.topics: must not be empty"]),
        ({**DELAY, "match": {"topics": ["a"], "headers": {"x": ""}}}, ["match.headers.x: must not be empty"]),
        ({**DELAY, "delay": {"default": -1}}, ["delay.default: a duration cannot be negative"]),
        ({**DELAY, "delay": {"default": "2d", "max": "1d"}}, ["delay: default cannot be longer than max"]),
        ({**DELAY, "retry": RETRY["retry"]}, ["a policy has exactly one of retry and delay"]),
        (retry(attempts="5"), ["retry.attempts: must be a whole number, without quotes"]),
        (retry(attempts=-1), ["retry.attempts: must be at least 0"]),
        (retry(backoff={"kind": "fixd"}), ["retry.backoff.kind: must be one of fixed, exponential, list"]),
        (retry(backoff={"delay": "1s"}), ["retry.backoff.kind: is missing"]),
        (
            retry(backoff={"kind": "fixed", "delay": "1s", "jitter": "ful"}),
            ["retry.backoff.jitter: must be none, full or equal"],
        ),
        (retry(breaker={"window": "10ms"}), ["retry.breaker.window: must be at least 1s"]),
        (retry(breaker={"failures": "101%"}), ["retry.breaker.failures: must be at most 100%"]),
        ({**RETRY, "order": "value"}, ["order: must be key"]),
    ],
)
def test_a_fault_of_a_policy_is_told_in_plain_words(value: dict[str, Any], faults: list[str]) -> None:
    assert told(Policy, value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ({"name": "a", "Match": {"topics": ["a"]}, "delay": {}}, ["Match: unknown key; did you mean match?"]),
        ({**DELAY, "dead-letter": {"topic": "d"}}, ["dead-letter: unknown key; did you mean dead_letter?"]),
        ({**RETRY, "attempts": 3}, ["attempts: unknown key; did you mean retry.attempts?"]),
        (
            retry(backoff={"kind": "fixed", "delay": "1s", "factor": 2}),
            ["retry.backoff.factor: unknown key; known here: kind, delay, jitter"],
        ),
        # Told once: what is missing is what was misspelt.
        ({"name": "a", "match": {"topcs": ["a"]}, "delay": {}}, ["match.topcs: unknown key; did you mean topics?"]),
    ],
)
def test_an_unknown_key_is_told_with_the_one_that_was_meant(value: dict[str, Any], faults: list[str]) -> None:
    assert told(Policy, value) == faults


def test_all_faults_are_told_unknown_keys_first() -> None:
    value = {"name": "A", "match": {"topics": []}, "retry": {"atempts": 1, "backoff": {"kind": "none"}}, "tagret": {}}
    assert told(Policy, value) == [
        "retry.atempts: unknown key; did you mean attempts?",
        "tagret: unknown key; did you mean target?",
        "name: must be 1 to 63 of a-z 0-9 . - and begin with a letter or digit",
        "match.topics: must not be empty",
        "retry.backoff.kind: must be one of fixed, exponential, list",
    ]


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"cron": "daily"}, ["cron: "]),
        ({"time_zone": "Berlin"}, ["time_zone: not an IANA time zone like Europe/Berlin; did you mean Europe/Berlin?"]),
        ({"missed": "some"}, ["missed: must be skip, once or all"]),
        ({"paused": 1}, ["paused: must be true or false"]),
        ({"crno": "x", "name": "A"}, ["crno: unknown key", "name: must be 1 to 63"]),
        ({"value": 5}, ["value: must be a text or a mapping"]),
        ({"headers": [["a", 5]]}, ["headers.0.1: must be a text or a mapping"]),
        ({"headers": "a"}, ["headers: must be a list or a mapping"]),
    ],
)
def test_faults_of_a_schedule_are_told_the_same_way(changes: dict[str, Any], faults: list[str]) -> None:
    found = told(Schedule, SCHEDULE | changes)
    assert len(found) == len(faults)
    for fault, beginning in zip(found, faults, strict=True):
        assert fault.startswith(beginning)


def test_of_kinds_that_a_value_may_be_of_those_that_nobody_meant_are_silent() -> None:
    """`policy` may be a policy, a name or null: who gave a mapping meant a policy."""
    value = {"policy": {**DELAY, "delai": {}}, "record": {"topic": "a"}}
    assert told(ExplainRequest, value) == ["policy.delai: unknown key; known here: " + ", ".join(Policy.model_fields)]


@pytest.mark.parametrize("value", [{**DELAY, "name": "hunter2!"}, {**DELAY, "delay": {"default": "hunter2"}}])
def test_what_was_given_is_never_shown(value: dict[str, Any]) -> None:
    assert "hunter2" not in str(told(Policy, value))


def test_a_long_key_is_compared_with_none() -> None:
    """To compare takes long for each, and others wait: 20 keys that fill a body took 190 ms of the API's loop."""
    key = "dead_letter" * 6
    [fault] = told(Policy, {**DELAY, key: 1})
    assert fault.startswith(f"{key}: unknown key")
    assert "did you mean" not in fault
    assert told(Policy, {**DELAY, "dead_leter": 1}) == ["dead_leter: unknown key; did you mean dead_letter?"]
