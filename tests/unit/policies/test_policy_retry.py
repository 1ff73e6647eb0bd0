"""Decisions of a retry policy on records: row by row."""

from typing import Any

import pytest

from policies.decide import decide
from policies.decision import REPEATED, Control, Dead, Decision, Hold, Quarantine
from tests.unit.policy_world import NOW_MS, RETRY, facts, retry_with, table


def retried(document: dict[str, Any] | None = None, /, **controls: Control) -> Decision:
    return decide(facts("orders-retry", **controls), table(document or RETRY))


def test_a_retry_goes_back_to_where_it_came_from_with_the_next_attempt() -> None:
    assert retried() == Hold(NOW_MS + 1_000, "orders", -1, "orders@3", 2, NOW_MS, -1, "orders-dlq", None)


@pytest.mark.parametrize(
    ("attempt", "wait_ms"), [(b"1", 1_000), (b"2", 2_000), (b"3", 4_000), (b"4", 8_000), (b"5", 10_000)]
)
def test_the_backoff_grows_with_the_failed_attempt(attempt: bytes, wait_ms: int) -> None:
    hold = retried(attempt=attempt)
    assert isinstance(hold, Hold)
    assert (hold.due_ms, hold.attempt) == (NOW_MS + wait_ms, int(attempt) + 1)


def test_first_failure_is_kept_when_it_comes_back() -> None:
    hold = retried(attempt=b"2", first_failure=b"1699999999999")
    assert isinstance(hold, Hold)
    assert hold.first_failure_ms == NOW_MS - 1


@pytest.mark.parametrize(
    ("controls", "reason", "fires_ms"),
    [
        ({"attempt": b"6"}, "attempts_exhausted", -1),
        ({"attempt": b"2147483646"}, "attempts_exhausted", -1),
        ({"error_class": b"app.ValidationError"}, "not_retryable", -1),
        ({"error_class": b"\xff.ValidationError"}, "not_retryable", -1),
        ({"first_failure": b"1699996400999"}, "timeout", NOW_MS + 1_000),
        ({"delay": b"3600001"}, "timeout", NOW_MS + 3_600_001),
        ({"deliver_at": b"1700003600001"}, "timeout", 1_700_003_600_001),
        ({"expires_at": b"1700000000999"}, "expired", NOW_MS + 1_000),
        ({"attempt": b"6", "delay": b"500d"}, "attempts_exhausted", -1),
    ],
)
def test_a_retry_that_has_no_future_is_dead(controls: dict[str, Control], reason: str, fires_ms: int) -> None:
    dead = retried(**controls)
    assert isinstance(dead, Dead)
    attempt = int(controls.get("attempt", b"1"))  # type: ignore[arg-type]
    assert (dead.reason, dead.topic, dead.attempt, dead.due_ms) == (reason, "orders-dlq", attempt, NOW_MS)
    assert dead.fires_ms == fires_ms


@pytest.mark.parametrize(
    "controls",
    [
        {"first_failure": b"1699996401000"},  # due exactly at the timeout
        {"delay": b"1h"},
        {"deliver_at": b"100000000000"},
        {"expires_at": b"1700000001000"},
        {"error_class": b"ValidationError"},
        {"error_class": b"app.ValidationErrors", "error_message": b""},
        {"error_class": b"x" * 5_000, "error_message": b"y" * 20_000},
        {"error_class": b"caf\xc3", "error_message": b"at line 7, caf\xc3"},  # cut in the middle of a character
        {"error_class": None, "error_message": None},
        {"error_class": REPEATED, "error_message": REPEATED},
        {"attempt": b"5"},
        {"attempt": b"0005"},
    ],
)
def test_a_retry_on_the_edge_is_still_held(controls: dict[str, Control]) -> None:
    assert isinstance(retried(**controls), Hold)


@pytest.mark.parametrize(
    ("controls", "reason"),
    [
        ({"attempt": b"0"}, "bad_header"),
        ({"attempt": b"-1"}, "bad_header"),
        ({"attempt": b"1.5"}, "bad_header"),
        ({"attempt": b"2147483647"}, "bad_header"),
        ({"attempt": None}, "bad_header"),
        ({"attempt": REPEATED}, "bad_header"),
        ({"first_failure": b"-1"}, "bad_header"),
        ({"first_failure": b"253402300800000"}, "bad_header"),
        ({"first_failure": b"2023-11-14T22:13:25Z"}, "bad_header"),
        ({"delay": b"400d1"}, "bad_header"),
        ({"target": b"other"}, "target_not_allowed"),
        ({"target": b"orders-retry"}, "loop"),
    ],
)
def test_a_retry_with_bad_headers_is_quarantined(controls: dict[str, Control], reason: str) -> None:
    decision = retried(**controls)
    assert isinstance(decision, Quarantine)
    assert decision.reason == reason


def test_an_override_of_a_retry_is_limited_too() -> None:
    decision = retried(retry_with(timeout=None), delay=b"401d")
    assert isinstance(decision, Quarantine)
    assert decision.reason == "too_far"


def test_a_missing_error_class_matches_only_the_star() -> None:
    for settings, dead in (
        ({"retry_on": ["*"]}, False),
        ({"retry_on": ["a*"]}, True),
        ({"retry_on": ["a*", "*"]}, False),
        ({"retry_on": ["**"]}, True),
        ({"give_up_on": ["*"]}, True),
        ({"give_up_on": ["?*"]}, False),
    ):
        assert isinstance(retried(retry_with(**settings)), Dead) is dead, settings


def test_error_classes_are_compared_by_their_first_1024_bytes() -> None:
    cut = retry_with(give_up_on=["x" * 1_023 + "?"])
    assert isinstance(retried(cut, error_class=b"x" * 9_000), Dead)
    half = "x" * 1_023 + "ä"  # the cut falls into the last character
    assert isinstance(retried(retry_with(give_up_on=["x" * 1_023]), error_class=half.encode()), Dead)


@pytest.mark.parametrize(
    ("topic", "target", "controls", "expected"),
    [
        ("orders-retry", {}, {}, ("orders", "orders-dlq")),
        ("orders-retry", {}, {"target": b"orders"}, ("orders", "orders-dlq")),
        ("orders-retry", {"topic": "o"}, {}, ("o", "o-dlq")),
        ("orders-retry", {"topic": "o"}, {"target": b"o"}, ("o", "o-dlq")),
        ("orders-retry", {"topic": "o"}, {"target": b"orders"}, "target_not_allowed"),
        ("orders-retry", {"allow": ["or*"]}, {"target": b"orange"}, ("orange", "orange-dlq")),
        ("orders-retry", {"allow": ["x"]}, {}, ("orders", "orders-dlq")),
        ("failed", {}, {}, "bad_header"),
        ("failed", {"allow": ["o*"]}, {"target": b"orders"}, ("orders", "orders-dlq")),
        ("failed", {"topic": "failed"}, {}, "loop"),
        ("-retry", {}, {}, "bad_header"),
    ],
)
def test_the_target_of_a_retry(
    topic: str, target: dict[str, Any], controls: dict[str, Control], expected: tuple[str, str] | str
) -> None:
    document = {**RETRY, "match": {"topics": ["*"]}, "target": target}
    decision = decide(facts(topic, **controls), table(document))
    if isinstance(decision, Hold):
        assert (decision.target, decision.dead_letter) == expected
    else:
        assert isinstance(decision, Quarantine)
        assert decision.reason == expected


@pytest.mark.parametrize(
    ("said", "is_believed"),
    [
        ({}, True),
        ({"policy": b"orders@1"}, True),  # whatever the version
        ({"policy": b"orders@9", "origin": b"elsewhere/0/7"}, True),  # a delayed message that has failed before
        ({"policy": b"former@2", "origin": b"orders-retry/1/7"}, True),  # the policy has another name now
        ({"policy": b"others@2", "origin": b"others-retry/0/7"}, False),
        ({"policy": b"reminders@2", "origin": b"reminders/0/7"}, False),
        ({"policy": b"others@2"}, False),
        ({"policy": b"others@2", "origin": b"\xff"}, False),
        ({"policy": None, "origin": b"others-retry/0/7"}, True),  # nobody says who counted
        ({"policy": b"ordersx@1", "origin": b"orders-retry-2/0/1"}, False),
    ],
)
def test_attempts_that_another_policy_counted_elsewhere_are_not_this_record_s(
    said: dict[str, Control], is_believed: bool
) -> None:
    """A consumer that copies all headers of a message onto another one copies its attempts."""
    hold = retried(attempt=b"3", first_failure=b"1699999999999", **said)
    assert isinstance(hold, Hold)
    expected = (4, NOW_MS - 1, 4_000) if is_believed else (2, NOW_MS, 1_000)
    assert (hold.attempt, hold.first_failure_ms, hold.due_ms - NOW_MS) == expected


def test_a_first_failure_is_none_of_another_event_s_attempts() -> None:
    copied = {"policy": b"others@2", "origin": b"others-retry/0/7"}
    assert isinstance(retried(attempt=b"6", first_failure=b"1", **copied), Hold)
    assert isinstance(retried(attempt=b"6", first_failure=b"1"), Dead)
