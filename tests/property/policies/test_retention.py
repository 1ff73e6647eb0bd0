"""No decision holds a record for longer than its policy is counted with, when topics are made and looked after."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.decide import decide
from policies.decision import Hold
from policies.duration import DURATION_MAX_MS
from policies.model import Backoff, Delay, Policy, Retry, Target
from policies.retention import longest_hold_ms
from tests.examples import examples
from tests.property.policies.test_policy_backoff import backoffs
from tests.unit.policy_world import DAY_MS, NOW_MS, facts, table

durations = st.integers(0, DURATION_MAX_MS)
maybe = st.none() | durations
ATTEMPTS = 3
MATCH: dict[str, Any] = {"topics": ["a"]}


def spreads(draw: st.DrawFn) -> dict[str, int | None]:
    usual, longest = draw(maybe), draw(maybe)
    return {"spread": usual, "spread_max": None if longest is None else max(longest, usual or 0)}


@st.composite
def retries(draw: st.DrawFn) -> Policy:
    backoff: Backoff = draw(backoffs)
    retry = Retry(attempts=ATTEMPTS, backoff=backoff, timeout=draw(maybe), **spreads(draw))
    return Policy.model_validate({"name": "p", "match": MATCH, "retry": retry, "target": Target(topic="b")})


@st.composite
def delays(draw: st.DrawFn) -> Policy:
    usual, longest = sorted((draw(durations), draw(durations)))
    delay = Delay(default=usual, max=longest, **spreads(draw))
    return Policy.model_validate({"name": "p", "match": MATCH, "delay": delay, "target": Target(topic="b")})


@settings(max_examples=examples(300))
@given(retries() | delays(), st.integers(1, ATTEMPTS), st.none() | st.integers(0, 400 * DAY_MS), maybe)
def test_no_record_is_held_for_longer_than_its_policy_is_counted_with(
    policy: Policy, attempt: int, asked_ms: int | None, spread_ms: int | None
) -> None:
    if policy.retry is not None and policy.retry.timeout is None:
        asked_ms = None  # no policy limits it: it is counted while it is held
    asked = {"delay": asked_ms, "spread": spread_ms, "attempt": attempt}
    headers = {name: b"%d" % number for name, number in asked.items() if number is not None}
    decision = decide(facts("a", **headers), table(policy.model_dump()))
    if isinstance(decision, Hold):
        assert decision.due_ms - NOW_MS <= longest_hold_ms(policy)
