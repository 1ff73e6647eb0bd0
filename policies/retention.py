"""How long topics must keep their records, for what the policies may ask to hold.

`longest_hold_ms` is the one place where the time is counted: topic creation, `doctor`, the raising of the ledger's
retention and the warnings of a running process all go by it. `short_retentions` is the one that judges by it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, assert_never

from policies.backoff import base_ms, spread_of
from policies.glob import compile_globs
from policies.model import DELAY_MAX_DEFAULT_MS, ExponentialBackoff, FixedBackoff, ListBackoff, Policy, Retry
from policies.table import PolicyTable

JOBS_KEPT_MS: Final = 30 * 86_400_000  # redrives and changes, since they were planned
NOTHING_HELD: Final[Mapping[str, int]] = MappingProxyType({})
MARGIN_MS: Final = 7 * 86_400_000  # beyond the longest hold: the contract's 7 days


def policies_of(table: PolicyTable) -> list[Policy]:
    """The policies of a table, without their versions."""
    return [versioned.policy for versioned in table.policies.values()]


def longest_hold_ms(policy: Policy) -> int:
    """The longest that the policy lets a record be held in one go, in milliseconds from the record's timestamp on.

        delay                    `max`: a header, a spread and a control record end there, too
        retry with a timeout     the timeout: a header may ask up to there, and up to 400 days
        retry without a timeout  the longest back-off that an attempt can meet, and the spread

    Jitter and `tickover-expires-at` only shorten. Order by key holds a record no longer than the one before it. What no
    policy limits counts while it is held (`short_retentions`): a time that a record or a reschedule asks for in a retry
    without a timeout, and what a removed policy held. A reschedule holds anew, by a block of its own in the ledger; but
    the payload stays as old as it is.
    """
    if policy.delay is not None:
        return policy.delay.max
    retry = policy.retry
    assert retry is not None, "a policy has one of them"
    by_backoff_ms = _longest_backoff_ms(retry) + spread_of(retry).max_ms
    if retry.timeout is None:
        return by_backoff_ms
    return min(retry.timeout, max(by_backoff_ms, DELAY_MAX_DEFAULT_MS))


def _longest_backoff_ms(retry: Retry) -> int:
    """Of the attempts that there may be: with three of them the fourth wait of a list is never met."""
    match backoff := retry.backoff:
        case FixedBackoff():
            return backoff.delay
        case ExponentialBackoff():  # it never shrinks
            return base_ms(backoff, max(retry.attempts, 1))
        case ListBackoff():
            return max(backoff.delays[: max(retry.attempts, 1)])
        case _:
            assert_never(backoff)


def longest_holds_ms(policies: Iterable[Policy], sources: Iterable[str]) -> dict[str, int]:
    """The longest hold of any policy that may match a record of each of these topics; 0 where none does."""
    holds_ms = dict.fromkeys(sources, 0)
    for policy in policies:
        matcher, hold_ms = compile_globs(policy.match.topics), longest_hold_ms(policy)
        for topic in holds_ms:
            if matcher is not None and matcher.matches(topic):
                holds_ms[topic] = max(holds_ms[topic], hold_ms)
    return holds_ms


def ledger_retention_ms(policies: Iterable[Policy]) -> int:
    """How long the ledger must keep its blocks."""
    return max(map(longest_hold_ms, policies), default=0) + MARGIN_MS


class Ledger(NamedTuple):
    """The ledger's name, and how long a setting says that it is kept; None: as long as the policies ask for."""

    topic: str
    kept_ms: int | None = None


def wanted_retentions_ms(
    policies: Collection[Policy], sources: Iterable[str], ledger: Ledger, held_ms: Mapping[str, int] = NOTHING_HELD
) -> dict[str, int]:
    """How long each source and the ledger are to keep their records. `held_ms`: how long something is held now, by
    source, where that is known.
    """
    by_policy_ms = longest_holds_ms(policies, sources)
    wanted_ms = {topic: max(hold_ms, held_ms.get(topic, 0)) for topic, hold_ms in by_policy_ms.items()}
    longest_ms = max((*wanted_ms.values(), *map(longest_hold_ms, policies), *held_ms.values()), default=0)
    wanted_ms[ledger.topic] = max(longest_ms, ledger.kept_ms or ledger_retention_ms(policies))
    return wanted_ms


class Short(NamedTuple):
    """A setting by which a topic may lose records while they are held: Redis is then not expendable."""

    topic: str
    setting: str
    value: int | str
    wanted_ms: int  # how long the topic is to keep its records


def short_retentions(
    configs: Mapping[str, Mapping[str, str]], wanted_retentions_ms: Mapping[str, int]
) -> Iterator[Short]:
    """Settings of sources and ledger that may take what is held, by how long each topic is to keep its records. The
    process, its metric and `doctor` all judge by this.

    A limit of bytes, or compaction, may do so at any time.
    """
    for topic, config in sorted(configs.items()):
        retention_ms, retention_bytes = (int(config.get(name, -1)) for name in ("retention.ms", "retention.bytes"))
        wanted_ms = wanted_retentions_ms[topic]
        if 0 <= retention_ms < wanted_ms:
            yield Short(topic, "retention.ms", retention_ms, wanted_ms)
        if retention_bytes >= 0 and wanted_ms:
            yield Short(topic, "retention.bytes", retention_bytes, wanted_ms)
        if "compact" in config.get("cleanup.policy", ""):
            yield Short(topic, "cleanup.policy", config["cleanup.policy"], wanted_ms)
