"""Policies: which one decides, and what explain shows of it."""

from typing import Any

import pytest

from policies.decide import decide
from policies.decision import Facts, Hold
from policies.explain import explain
from tests.unit.policy_world import DELAY, NOW_MS, RETRY, facts, retry_with, table


def named(name: str, topics: list[str], headers: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "match": {"topics": topics, "headers": headers or {}},
        "delay": {"default": "1s"},
        "target": {"topic": "t"},
    }


@pytest.mark.parametrize(
    ("documents", "winner"),
    [
        ([named("a", ["rem*"]), named("b", ["reminders"])], "b"),
        ([named("a", ["*minders*"]), named("b", ["remind*"])], "a"),
        ([named("a", ["r*"]), named("b", ["*", "remind*"])], "b"),
        ([named("a", ["[a-z]eminders"]), named("b", ["remi*"])], "a"),
        ([named("a", ["reminders"]), named("b", ["reminders"], {"k": "v*"})], "b"),
        ([named("a", ["reminders"], {"k": "*"}), named("b", ["reminders"], {"k": "v*", "n": "*"})], "b"),
        ([named("a", ["reminders"]), named("b", ["remi*"], {"k": "v*"})], "a"),
        ([named("b", ["reminders"]), named("a", ["reminders"])], "a"),
        ([named("a", ["reminders"], {"k": "w*"}), named("b", ["*"])], "b"),
        ([named("a", ["reminders"], {"none": "*"}), named("b", ["*"])], "b"),
        ([named("a", ["reminders"], {"null": "*"}), named("b", ["*"])], "b"),
        ([named("a", ["reminders"], {"bytes": "*"}), named("b", ["*"])], "a"),
        ([named("a", ["reminders"], {"k": "second"}), named("b", ["*"])], "a"),
        ([named("a", ["Reminders"]), named("b", ["*"])], "b"),
    ],
)
def test_the_policy_that_knows_best_decides(documents: list[dict[str, Any]], winner: str) -> None:
    headers = [("k", b"value"), ("k", b"second"), ("n", b"1"), ("null", None), ("bytes", b"\xff")]
    for order in (documents, documents[::-1]):
        decision = decide(Facts("reminders", 0, 0, NOW_MS, headers, {}), table(*order))
        assert isinstance(decision, Hold)
        assert decision.policy == f"{winner}@3"


def test_records_of_one_policy_share_their_strings() -> None:
    rulebook = table(DELAY)
    first, second = (decide(facts(target=b"mail-" + b"a"), rulebook) for _ in range(2))
    assert isinstance(first, Hold)
    assert isinstance(second, Hold)
    assert first.policy is second.policy
    assert first.target is second.target
    assert first.dead_letter is second.dead_letter


def test_explain_lays_out_every_attempt() -> None:
    explanation = explain(facts("orders-retry", attempt=b"2"), table(RETRY))
    assert explanation.policy == "orders@3"
    assert [(step.attempt, step.delay_min_ms, step.due_max_ms - NOW_MS) for step in explanation.schedule] == [
        (3, 2_000, 2_000),
        (4, 4_000, 6_000),
        (5, 8_000, 14_000),
        (6, 10_000, 24_000),
    ]
    assert (explanation.end, explanation.truncated) == ("attempts_exhausted", False)


def test_explain_shows_the_range_of_jitter_and_the_timeout() -> None:
    document = retry_with(timeout="8s", backoff={"kind": "fixed", "delay": "3s", "jitter": "equal"})
    explanation = explain(facts("orders-retry"), table(document))
    known, *later = explanation.schedule
    assert known.delay_min_ms == known.delay_max_ms
    assert {(step.delay_min_ms, step.delay_max_ms) for step in later} == {(1_500, 3_000)}
    assert explanation.end == "timeout"


def test_explain_of_what_is_not_held_has_no_schedule() -> None:
    assert explain(facts("nowhere"), table(DELAY)).policy is None
    refused = explain(facts(delay=b"x"), table(DELAY))
    assert (refused.policy, refused.schedule) == ("reminders@3", ())
    assert explain(facts("orders-retry", attempt=b"9"), table(RETRY)).end == "attempts_exhausted"
    long = explain(facts("orders-retry"), table(retry_with(attempts=10_000, timeout=None)))
    assert (len(long.schedule), long.truncated) == (1_000, True)
