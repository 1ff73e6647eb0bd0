from typing import Any

import pytest

from policies.model import Policy
from policies.retention import ledger_retention_ms, longest_hold_ms, longest_holds_ms, short_retentions
from tests.unit.policy_world import DAY_MS, DELAY, RETRY, retry_with


def policy(document: dict[str, Any]) -> Policy:
    return Policy.model_validate(document)


def held_by(backoff: dict[str, Any], **settings: Any) -> Policy:
    return policy(retry_with(**{"timeout": None, "backoff": backoff, **settings}))


@pytest.mark.parametrize(
    ("held", "longest_ms"),
    [
        (policy(DELAY), 400 * DAY_MS),
        (policy({**DELAY, "delay": {"max": "2d", "spread": "1d"}}), 2 * DAY_MS),
        (held_by({"kind": "fixed", "delay": "60d"}), 60 * DAY_MS),
        (held_by({"kind": "fixed", "delay": "60d", "jitter": "full"}), 60 * DAY_MS),
        (held_by({"kind": "list", "delays": ["30d", "1m"]}), 30 * DAY_MS),
        (held_by({"kind": "list", "delays": ["1d", "2d", "60d"]}, attempts=2), 2 * DAY_MS),
        (held_by({"kind": "list", "delays": ["1d", "2d"]}, attempts=0), DAY_MS),
        (held_by({"kind": "exponential", "initial": "1d", "max": "60d"}, attempts=10_000), 60 * DAY_MS),
        (held_by({"kind": "exponential", "initial": "1d", "max": "60d"}, attempts=3), 4 * DAY_MS),
        (held_by({"kind": "fixed", "delay": "1d"}, spread="2d"), 3 * DAY_MS),
        (held_by({"kind": "fixed", "delay": "1d"}, spread="2d", spread_max="9d"), 10 * DAY_MS),
        (held_by({"kind": "fixed", "delay": "1d"}, spread_max="9d"), 10 * DAY_MS),
        (policy(retry_with(timeout="2d")), 2 * DAY_MS),
        (policy(retry_with(timeout="3650d")), 400 * DAY_MS),
        (held_by({"kind": "fixed", "delay": "500d"}, timeout="3650d"), 500 * DAY_MS),
        (policy({**RETRY, "order": "key"}), DAY_MS // 24),
    ],
)
def test_the_longest_hold_is_what_the_policy_allows(held: Policy, longest_ms: int) -> None:
    assert longest_hold_ms(held) == longest_ms


def test_the_ledger_is_kept_seven_days_longer_than_the_most_patient_policy_holds() -> None:
    patient = held_by({"kind": "list", "delays": ["1m", "60d"]})
    assert ledger_retention_ms([]) == 7 * DAY_MS
    assert ledger_retention_ms([policy(RETRY), patient]) == 67 * DAY_MS
    assert ledger_retention_ms([policy(DELAY), patient]) == 407 * DAY_MS


def test_a_source_is_kept_for_as_long_as_the_policies_that_match_it_hold() -> None:
    both = [policy(DELAY), held_by({"kind": "fixed", "delay": "60d"})]
    holds_ms = longest_holds_ms(both, ["reminders", "orders-retry", "nobody"])
    assert holds_ms == {"reminders": 400 * DAY_MS, "orders-retry": 60 * DAY_MS, "nobody": 0}


def test_a_back_off_without_a_timeout_is_told_of_where_a_topic_keeps_less() -> None:
    holds_ms = longest_holds_ms([held_by({"kind": "fixed", "delay": "30d"})], ["orders-retry"])
    configs = {"orders-retry": {"retention.ms": str(7 * DAY_MS), "retention.bytes": "-1"}}
    [short] = short_retentions(configs, holds_ms)
    assert short == ("orders-retry", "retention.ms", 7 * DAY_MS, 30 * DAY_MS)
