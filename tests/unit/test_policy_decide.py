"""What becomes of a record: row by row."""

from collections.abc import Mapping
from typing import Any

import pytest

from policies.explain import explain
from policies.model import Policy, Versioned
from policies.table import REPEATED, Control, Dead, Facts, Hold, PolicyTable, Quarantine, decide

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000

DELAY: dict[str, Any] = {
    "name": "reminders",
    "match": {"topics": ["reminders"]},
    "delay": {"default": "15m", "max": "400d"},
    "target": {"topic": "push", "allow": ["mail-*", "remind*"]},
}
RETRY: dict[str, Any] = {
    "name": "orders",
    "match": {"topics": ["orders-retry"]},
    "retry": {
        "attempts": 5,
        "backoff": {"kind": "exponential", "initial": "1s", "factor": 2, "max": "10s"},
        "timeout": "1h",
        "give_up_on": ["*.ValidationError"],
    },
}


def table(*documents: dict[str, Any], version: int = 3) -> PolicyTable:
    policies = [Policy.model_validate(document) for document in documents]
    return PolicyTable(7, {policy.name: Versioned(policy, version, "me", 0, "api") for policy in policies})


def facts(topic: str = "reminders", timestamp_ms: int = NOW_MS, /, **controls: Control) -> Facts:
    named: Mapping[str, Control] = {
        f"tickover-{name.replace('_', '-')}": value for name, value in controls.items()
    }
    return Facts(topic, 2, 41, timestamp_ms, [], named)


def held(**controls: Control) -> Hold:
    decision = decide(facts(**controls), table(DELAY))
    assert isinstance(decision, Hold), decision
    return decision


def retried(document: dict[str, Any] | None = None, /, **controls: Control) -> Hold | Dead | Quarantine:
    return decide(facts("orders-retry", **controls), table(document or RETRY))


def retry_with(**settings: Any) -> dict[str, Any]:
    return {**RETRY, "retry": {**RETRY["retry"], **settings}}


def test_a_delay_policy_holds_for_its_default_with_its_default_target() -> None:
    assert held() == Hold(NOW_MS + 900_000, "push", -1, "reminders@3", 0, -1, -1, "reminders-dlq", None)


def test_headers_win_over_defaults() -> None:
    assert held(
        delay=b"90s", target=b"mail-a", target_partition=b"7", id=b"x", expires_at=b"1700000090000"
    ) == Hold(NOW_MS + 90_000, "mail-a", 7, "reminders@3", 0, -1, NOW_MS + 90_000, "reminders-dlq", "x")


@pytest.mark.parametrize(
    ("controls", "due_ms"),
    [
        ({"deliver_at": b"1700000005000"}, NOW_MS + 5_000),
        ({"deliver_at": b"2023-11-14T22:13:25Z"}, NOW_MS + 5_000),
        ({"deliver_at": b"1700000005000", "delay": b"1h"}, NOW_MS + 5_000),
        ({"deliver_at": b"5"}, 5),  # overdue means now
        ({"delay": b"0"}, NOW_MS),
        ({"delay": b"0.1ms"}, NOW_MS + 1),
        ({"delay": b"400d"}, NOW_MS + 400 * DAY_MS),
    ],
)
def test_due_is_the_time_asked_for(controls: dict[str, Control], due_ms: int) -> None:
    assert held(**controls).due_ms == due_ms


@pytest.mark.parametrize(
    ("controls", "reason"),
    [
        ({"delay": b"-1s"}, "bad_header"),
        ({"delay": b"nan"}, "bad_header"),
        ({"delay": b"3651d"}, "bad_header"),
        ({"delay": b"9" * 5_000}, "bad_header"),
        ({"delay": b""}, "bad_header"),
        ({"delay": b"\xff"}, "bad_header"),
        ({"delay": b"\xff" * 100}, "bad_header"),
        ({"delay": None}, "bad_header"),
        ({"delay": REPEATED}, "bad_header"),
        ({"delay": b"400d1ms"}, "bad_header"),
        ({"delay": b"34560000001"}, "too_far"),
        ({"deliver_at": str(NOW_MS + 400 * DAY_MS + 1).encode()}, "too_far"),
        ({"deliver_at": b"2023-11-14T22:13:25"}, "bad_header"),
        ({"deliver_at": b"1700000005000.5"}, "bad_header"),
        ({"deliver_at": None}, "bad_header"),
        ({"deliver_at": REPEATED}, "bad_header"),
        ({"deliver_at": b"1700000005000", "delay": b"soon"}, "bad_header"),
        ({"deliver_at": b"soon", "delay": b"1s"}, "bad_header"),
        ({"target": b""}, "bad_header"),
        ({"target": b"a b"}, "bad_header"),
        ({"target": b"\xff"}, "bad_header"),
        ({"target": None}, "bad_header"),
        ({"target": REPEATED}, "bad_header"),
        ({"target": b"other"}, "target_not_allowed"),
        ({"target": b"Mail-a"}, "target_not_allowed"),
        ({"target": b"reminders"}, "loop"),
        ({"target_partition": b"-1"}, "bad_header"),
        ({"target_partition": b"2147483648"}, "bad_header"),
        ({"target_partition": b"9" * 5_000}, "bad_header"),
        ({"target_partition": "٣".encode()}, "bad_header"),
        ({"target_partition": b""}, "bad_header"),
        ({"id": b""}, "bad_header"),
        ({"id": None}, "bad_header"),
        ({"id": REPEATED}, "bad_header"),
        ({"id": b"\xff"}, "bad_header"),
        ({"id": b"i" * 1_025}, "bad_header"),
        ({"expires_at": b"-1"}, "bad_header"),
        ({"expires_at": b"2023-11-14T22:13:25"}, "bad_header"),
        ({"action": b"cancel"}, "bad_header"),
        ({"action": b"explode", "id": b"x"}, "bad_header"),
        ({"action": None, "id": b"x"}, "bad_header"),
        ({"action": REPEATED, "id": b"x"}, "bad_header"),
        ({"action": b"cancel", "id": b"x"}, "unsupported_action"),
        ({"action": b"reschedule", "id": b"x", "delay": b"1s"}, "unsupported_action"),
        ({"action": b"fire", "id": b"x"}, "unsupported_action"),
    ],
)
def test_what_cannot_be_done_is_quarantined(controls: dict[str, Control], reason: str) -> None:
    decision = decide(facts(**controls), table(DELAY))
    assert isinstance(decision, Quarantine)
    assert decision.reason == reason
    assert decision.detail


def test_a_detail_never_shows_a_value() -> None:
    for controls in (
        {"delay": b"secret"},
        {"target": b"secret"},
        {"action": b"secret"},
        {"expires_at": b"secret"},
    ):
        decision = decide(facts(**controls), table(DELAY))
        assert isinstance(decision, Quarantine)
        assert "secret" not in decision.detail


@pytest.mark.parametrize("timestamp_ms", [-1, -5, 253_402_300_800_000, 1 << 63])
def test_a_record_without_a_sensible_timestamp_is_quarantined(timestamp_ms: int) -> None:
    decision = decide(facts("reminders", timestamp_ms, deliver_at=b"1700000005000"), table(DELAY))
    assert isinstance(decision, Quarantine)
    assert decision.reason == "bad_timestamp"


def test_the_largest_target_partition_and_id_are_taken() -> None:
    hold = held(target_partition=b"2147483647", id=b"i" * 1_024)
    assert (hold.target_partition, len(hold.id or "")) == (2_147_483_647, 1_024)


def test_headers_that_a_policy_does_not_read_are_not_checked() -> None:
    assert (
        held(attempt=b"x", first_failure=None, error_class=REPEATED, error_message=b"\xff", due=b"?").attempt
        == 0
    )
    decision = decide(facts("unknown", delay=b"x"), table(DELAY))
    assert isinstance(decision, Quarantine)
    assert decision.reason == "no_policy"


def test_without_delay_or_target_there_is_nothing_to_do() -> None:
    bare = {**DELAY, "delay": {}, "target": {"allow": ["mail-*"]}}
    for controls in ({"target": b"mail-a"}, {"delay": b"1s"}):
        decision = decide(facts(**controls), table(bare))
        assert isinstance(decision, Quarantine)
        assert decision.reason == "bad_header"
    assert isinstance(decide(facts(delay=b"1s", target=b"mail-a"), table(bare)), Hold)


def test_what_expires_before_it_is_due_is_dead() -> None:
    document = {**DELAY, "dead_letter": {"topic": "lost"}}
    dead = decide(facts(delay=b"1s", expires_at=b"1700000000999", id=b"x"), table(document))
    assert dead == Dead("expired", "lost", "reminders@3", 0, -1, "x", NOW_MS)
    assert isinstance(decide(facts(delay=b"1s", expires_at=b"1700000001000"), table(document)), Hold)


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
    ("controls", "reason"),
    [
        ({"attempt": b"6"}, "attempts_exhausted"),
        ({"attempt": b"2147483646"}, "attempts_exhausted"),
        ({"error_class": b"app.ValidationError"}, "not_retryable"),
        ({"first_failure": b"1699996400999"}, "timeout"),
        ({"delay": b"3600001"}, "timeout"),
        ({"deliver_at": b"1700003600001"}, "timeout"),
        ({"expires_at": b"1700000000999"}, "expired"),
        ({"attempt": b"6", "delay": b"500d"}, "attempts_exhausted"),
    ],
)
def test_a_retry_that_has_no_future_is_dead(controls: dict[str, Control], reason: str) -> None:
    dead = retried(**controls)
    assert isinstance(dead, Dead)
    attempt = int(controls.get("attempt", b"1"))  # type: ignore[arg-type]
    assert (dead.reason, dead.topic, dead.attempt, dead.due_ms) == (reason, "orders-dlq", attempt, NOW_MS)


@pytest.mark.parametrize(
    "controls",
    [
        {"first_failure": b"1699996401000"},  # due exactly at the timeout
        {"delay": b"1h"},
        {"deliver_at": b"1"},
        {"expires_at": b"1700000001000"},
        {"error_class": b"ValidationError"},
        {"error_class": b"app.ValidationErrors", "error_message": b""},
        {"error_class": b"x" * 5_000, "error_message": b"y" * 20_000},
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
        ({"error_class": None}, "bad_header"),
        ({"error_class": b"\xff"}, "bad_header"),
        ({"error_message": REPEATED}, "bad_header"),
        ({"error_message": b"\xff"}, "bad_header"),
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
        assert decision.reason == expected


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
