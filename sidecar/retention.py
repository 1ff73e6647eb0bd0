"""How long topics must keep their records, for what the policies may ask to hold."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from policies.model import ExponentialBackoff, FixedBackoff, Policy
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


def longest_hold_ms(policy: Policy) -> int:
    """The longest that this policy may hold a record in one go."""
    if policy.delay is not None:
        return policy.delay.max
    backoff = policy.retry.backoff if policy.retry else None
    match backoff:
        case None:
            return 0
        case FixedBackoff():
            return backoff.delay
        case ExponentialBackoff():
            return backoff.max
        case _:
            return max(backoff.delays)


def ledger_retention_ms(longest_ms: int) -> int:
    """How long the ledger must keep its blocks."""
    return longest_ms + MARGIN_MS


class Short(NamedTuple):
    """A topic that keeps its records for less than they may be held: Redis is then not expendable."""

    topic: str
    setting: str
    value: int


def short_retentions(configs: Mapping[str, Mapping[str, str]], longest_ms: int) -> Iterator[Short]:
    """Settings of sources and ledger that may take what is held. A limit of bytes may do so at any time."""
    for topic, config in sorted(configs.items()):
        retention_ms, retention_bytes = (int(config.get(name, -1)) for name in ("retention.ms", "retention.bytes"))
        if 0 <= retention_ms < longest_ms:
            yield Short(topic, "retention.ms", retention_ms)
        if retention_bytes >= 0 and longest_ms:
            yield Short(topic, "retention.bytes", retention_bytes)
