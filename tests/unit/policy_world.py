"""Records and rulebooks for the tests of decisions."""

from collections.abc import Mapping
from typing import Any

from policies.decision import Control, Facts
from policies.model import Policy, Versioned
from policies.table import PolicyTable

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
    named: Mapping[str, Control] = {f"tickover-{name.replace('_', '-')}": value for name, value in controls.items()}
    return Facts(topic, 2, 41, timestamp_ms, [], named)


def retry_with(**settings: Any) -> dict[str, Any]:
    return {**RETRY, "retry": {**RETRY["retry"], **settings}}
