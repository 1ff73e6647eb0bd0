"""decide, for any headers: no exception, one answer, never too early."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from policies.decide import decide
from policies.decision import REPEATED, Control, Dead, Decision, Facts, Hold, Quarantine
from policies.duration import TIME_MAX_MS
from policies.explain import explain
from policies.model import DELAY_MAX_DEFAULT_MS, Policy, Versioned
from policies.table import PolicyTable

DOCUMENTS: list[dict[str, Any]] = [
    {
        "name": "reminders",
        "match": {"topics": ["reminders"]},
        "delay": {"default": "15m", "max": "400d", "spread_max": "5m"},
        "target": {"topic": "push", "allow": ["mail-*"]},
    },
    {
        "name": "orders",
        "match": {"topics": ["orders-*"], "headers": {"tenant": "g*"}},
        "retry": {
            "attempts": 5,
            "backoff": {"kind": "exponential", "initial": "1s", "max": "1h", "jitter": "full"},
            "timeout": "24h",
            "give_up_on": ["*Fatal"],
            "spread": "30s",
        },
    },
    {
        "name": "others",
        "match": {"topics": ["*"]},
        "retry": {"attempts": 9, "backoff": {"kind": "list", "delays": [1, "1m"], "jitter": "equal"}},
        "target": {"allow": ["*"]},
    },
]


def fresh_table() -> PolicyTable:
    policies = [Policy.model_validate(document) for document in DOCUMENTS]
    return PolicyTable(9, {policy.name: Versioned(policy, 1, "me", 0, "api") for policy in policies})


SHARED = fresh_table()
NAMES = [
    "deliver-at",
    "delay",
    "target",
    "target-partition",
    "id",
    "action",
    "expires-at",
    "spread",
    "attempt",
    "first-failure",
    "error-class",
    "error-message",
    "origin",
    "unheard-of",
]
numbers = st.one_of(st.integers(-5, 20), st.integers(0, 1 << 70)).map(lambda number: str(number).encode())
words = st.sampled_from(
    [
        b"push",
        b"mail-a",
        b"orders",
        b"reminders",
        b"90s",
        b"PT1H",
        b"nan",
        b"cancel",
        b"2023-11-14T22:13:20Z",
        b"",
    ]
)
values: st.SearchStrategy[Control] = st.one_of(numbers, words, st.binary(max_size=80), st.none(), st.just(REPEATED))
controls = st.dictionaries(st.sampled_from(NAMES).map(lambda name: f"tickover-{name}"), values, max_size=6)
headers = st.lists(st.tuples(st.sampled_from(["tenant", "other"]), st.none() | st.binary(max_size=5)), max_size=3)
records = st.builds(
    Facts,
    topic=st.sampled_from(["reminders", "orders-retry", "orders-x", "-retry", "x"]),
    partition=st.integers(0, 99),
    offset=st.integers(0, 1 << 62),
    timestamp_ms=st.one_of(st.integers(0, TIME_MAX_MS), st.integers(-2, 2), st.integers(-(1 << 63), 1 << 63)),
    headers=headers,
    controls=controls,
)


@given(records)
@example(Facts("reminders", 0, 0, 0, [], {"tickover-delay": b"\xff"}))
def test_any_record_gets_one_decision(facts: Facts) -> None:
    decision = decide(facts, SHARED)
    # A table without filled caches decides the same.
    assert decide(facts, fresh_table()) == decision
    assert explain(facts, SHARED).decision == decision
    check(facts, decision)


def check(facts: Facts, decision: Decision) -> None:
    match decision:
        case Hold():
            asked = "tickover-deliver-at" in facts.controls
            assert asked or decision.due_ms >= facts.timestamp_ms
            assert decision.due_ms <= facts.timestamp_ms + DELAY_MAX_DEFAULT_MS
            assert decision.target not in ("", facts.topic)
            assert -1 <= decision.target_partition < 1 << 31
            assert decision.expires_ms == -1 or decision.due_ms <= decision.expires_ms
            assert decision.attempt != 1
            assert (decision.attempt == 0) == (decision.first_failure_ms == -1)
        case Dead():
            assert decision.topic.endswith("-dlq")
            assert decision.due_ms == facts.timestamp_ms
        case Quarantine():
            assert decision.reason
            assert decision.detail


plain = st.builds(
    Facts,
    topic=st.just("reminders"),
    partition=st.just(0),
    offset=st.integers(0, 9),
    timestamp_ms=st.integers(0, TIME_MAX_MS),
    headers=st.just([]),
    controls=st.integers(0, DELAY_MAX_DEFAULT_MS).map(lambda number: {"tickover-delay": str(number).encode()}),
    arrived_ms=st.just(-1),
)


@given(plain)
def test_a_delay_within_the_limit_is_held_exactly_that_long(facts: Facts) -> None:
    decision = decide(facts, SHARED)
    assert isinstance(decision, Hold)
    raw = facts.controls["tickover-delay"]
    assert isinstance(raw, bytes)
    assert decision.due_ms - facts.timestamp_ms == int(raw)
