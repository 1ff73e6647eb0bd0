from typing import Any

import pytest

from sidecar.retention import ledger_retention_ms, longest_delay_ms
from tests.unit.policy_world import DAY_MS, DELAY, retry_with, table


@pytest.mark.parametrize(
    ("policies", "longest_ms"),
    [([], 0), ([DELAY], 400 * DAY_MS), ([retry_with(timeout="2d")], 2 * DAY_MS), ([DELAY, retry_with()], 400 * DAY_MS)],
    ids=["none", "delay", "retry", "both"],
)
def test_the_longest_hold_is_that_of_the_most_patient_policy(policies: list[dict[str, Any]], longest_ms: int) -> None:
    assert longest_delay_ms(table(*policies)) == longest_ms


def test_the_ledger_is_kept_seven_days_longer() -> None:
    assert ledger_retention_ms(400 * DAY_MS) == 407 * DAY_MS
