"""How long topics must keep their records, for what the policies may ask to hold."""

from typing import Final

from policies.table import PolicyTable

MARGIN_MS: Final = 7 * 86_400_000  # beyond the longest delay: the contract's 7 days


def longest_delay_ms(table: PolicyTable) -> int:
    """The longest that any policy of the table may hold a record, 0 without policies."""
    longest = 0
    for versioned in table.policies.values():
        policy = versioned.policy
        if policy.delay is not None:
            longest = max(longest, policy.delay.max)
        elif policy.retry is not None:
            longest = max(longest, policy.retry.timeout or 0)
    return longest


def ledger_retention_ms(longest_ms: int) -> int:
    """How long the ledger must keep its blocks."""
    return longest_ms + MARGIN_MS
