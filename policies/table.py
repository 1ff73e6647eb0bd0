"""Find the policies that may match a record, and the limits of a target: policies compiled by source topic. Pure.

Matching order: an exact topic before a glob, then the glob with the longer literal part, then more header
conditions, then the name. The first whose header conditions hold decides (`decide.py`).

A policy leads to its `target.topic`, and to targets that its `target.allow` matches, for some source that there is. Of
several policies that limit one target the lowest rate counts, for all records that go there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from policies.backoff import Spread, spread_of
from policies.decision import BAD_HEADER, LOOP, TARGET_NOT_ALLOWED, Refusal
from policies.fields import HOUR_S, is_topic
from policies.glob import Matcher, compile_globs, is_exact, literal_length
from policies.headers import TARGET
from policies.model import DELAY_MAX_DEFAULT_MS, Match, Policy, Retry, Versioned
from policies.request import ABSENT, Found, text_of

RETRY_SUFFIX: Final = "-retry"
DEAD_LETTER_SUFFIX: Final = "-dlq"
TOPICS_CACHED_MAX: Final = 10_000
TARGETS_CACHED_MAX: Final = 1_024
HEADER_VALUE_BYTES_MAX: Final = 4_096  # of a header value, this much is compared with a condition's glob

Conditions = tuple[tuple[str, Matcher], ...]


def conditions_of(match: Match) -> Conditions:
    """Each header's name, and what one of its values must match."""
    return tuple((name, matcher) for name, glob in match.headers.items() if (matcher := compile_globs((glob,))))


def holds(conditions: Conditions, headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether for every condition some header of its name has a value that matches; null never does."""
    return all(
        any(name == wanted and value is not None and matcher.matches(_text(value)) for name, value in headers)
        for wanted, matcher in conditions
    )


def _text(value: bytes) -> str:
    return value[:HEADER_VALUE_BYTES_MAX].decode(errors="replace")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One version of a policy, compiled for one source topic."""

    policy: Policy
    retry: Retry | None
    topic: str
    label: str  # name@version
    conditions: Conditions
    default_target: str | None
    default_delay_ms: int  # -1: none
    delay_max_ms: int
    spread: Spread
    allow: Matcher | None
    retry_on: Matcher | None
    give_up_on: Matcher | None
    # By raw header: the target and its dead-letter topic, one pair of strings for all records that name it.
    _topics: dict[Found, tuple[str, str]] = field(default_factory=dict, repr=False)

    def topics_of(self, raw: Found) -> tuple[str, str]:
        """The target and the dead-letter topic. Raises Refusal (bad_header, loop, target_not_allowed)."""
        topics = self._topics.get(raw)
        if topics is None:
            target = self._resolve_target(raw)
            topics = target, self._dead_letter_of(target)
            if len(self._topics) >= TARGETS_CACHED_MAX:
                self._topics.clear()
            self._topics[raw] = topics
        return topics

    def _resolve_target(self, raw: Found) -> str:
        target = self.default_target if raw is ABSENT else text_of(TARGET, raw)
        if target is None:
            raise Refusal(BAD_HEADER, f"{TARGET}: missing, and policy {self.label} has no target.topic")
        if not is_topic(target):
            raise Refusal(BAD_HEADER, f"{TARGET}: not a topic name")
        if target == self.topic:
            raise Refusal(LOOP, "the target is the source topic")
        if target != self.default_target and (self.allow is None or not self.allow.matches(target)):
            raise Refusal(TARGET_NOT_ALLOWED, f"{TARGET}: not allowed by policy {self.label}")
        return target

    def _dead_letter_of(self, target: str) -> str:
        if self.policy.dead_letter is not None:
            return self.policy.dead_letter.topic
        return (self.topic if self.retry is None else target) + DEAD_LETTER_SUFFIX


@dataclass(frozen=True, slots=True, eq=False)
class PolicyTable:
    """The policies of one moment. `version`: offset + 1 of the last record of the topic that counts."""

    version: int
    policies: Mapping[str, Versioned]
    orders: bool = field(default=False, init=False)  # some policy orders by key
    rules_by_topic: dict[str, tuple[Rule, ...]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        orders = any(versioned.policy.order is not None for versioned in self.policies.values())
        object.__setattr__(self, "orders", orders)

    def rules(self, topic: str) -> tuple[Rule, ...]:
        """The policies that may match records of this topic, in matching order."""
        rules = self.rules_by_topic.get(topic)
        if rules is None:
            ranked = sorted(
                (rank, name) for name, versioned in self.policies.items() if (rank := _rank(versioned.policy, topic))
            )
            rules = tuple(_compile(self.policies[name], topic) for _, name in ranked)
            if len(self.rules_by_topic) >= TOPICS_CACHED_MAX:
                self.rules_by_topic.clear()
            self.rules_by_topic[topic] = rules
        return rules


EMPTY_TABLE: Final = PolicyTable(0, MappingProxyType({}))


def _rank(policy: Policy, topic: str) -> tuple[int, int, int] | None:
    """The place of the policy in the matching order (smaller is first); None when no topic glob matches."""
    best = None
    for glob in policy.match.topics:
        matcher = compile_globs((glob,))
        if glob == topic or (matcher is not None and matcher.matches(topic)):
            rank = (0 if is_exact(glob) else 1, -literal_length(glob), -len(policy.match.headers))
            best = rank if best is None else min(best, rank)
    return best


def _compile(versioned: Versioned, topic: str) -> Rule:
    policy = versioned.policy
    default_target = policy.target.topic
    if default_target is None and policy.retry is not None and topic.endswith(RETRY_SUFFIX):
        default_target = topic.removesuffix(RETRY_SUFFIX) or None
    delay, retry = policy.delay, policy.retry
    part = retry or delay
    assert part is not None, "a policy has one of them"
    return Rule(
        policy=policy,
        retry=retry,
        topic=topic,
        label=f"{policy.name}@{versioned.version}",
        conditions=conditions_of(policy.match),
        default_target=default_target,
        default_delay_ms=-1 if delay is None or delay.default is None else delay.default,
        delay_max_ms=DELAY_MAX_DEFAULT_MS if delay is None else delay.max,
        spread=spread_of(part),
        allow=compile_globs(policy.target.allow),
        retry_on=None if retry is None else compile_globs(retry.retry_on),
        give_up_on=None if retry is None else compile_globs(retry.give_up_on),
    )


class Limit(NamedTuple):
    """How fast all replicas together may emit to a target."""

    rate: float  # records a second
    burst: int  # records at once, after a pause


class BreakerRule(NamedTuple):
    """When retries to a target pause (`model.Breaker`); of several rules the one that is easiest to break."""

    failures: float  # share, 0..1
    minimum: int
    window_ms: int
    open_ms: int
    probes: int


class TargetLimits(NamedTuple):
    """Limits of a target, and the sources that lead to it."""

    limit: Limit | None
    breaker: BreakerRule | None
    sources: tuple[str, ...]


def is_limiting(table: PolicyTable) -> bool:
    """Whether any policy limits any target: else nothing has to be found out about targets."""
    policies = [versioned.policy for versioned in table.policies.values()]
    return any(
        policy.target.rate is not None or (policy.retry is not None and policy.retry.breaker is not None)
        for policy in policies
    )


def limits_of(target: str, sources: Mapping[str, int], table: PolicyTable) -> TargetLimits:
    """The limits of a target; `sources` are the source topics that there are."""
    leading = [(source, rule) for source in sources for rule in table.rules(source) if _leads(rule, target)]
    limits = [
        Limit(rate / HOUR_S, target_rule.burst or -(-rate // HOUR_S))
        for _, rule in leading
        if (rate := (target_rule := rule.policy.target).rate) is not None
    ]
    breakers = [
        BreakerRule(asked.failures / 100, asked.minimum, asked.window, asked.open, asked.probes)
        for _, rule in leading
        if rule.retry is not None and (asked := rule.retry.breaker) is not None
    ]
    return TargetLimits(
        min(limits, default=None), min(breakers, default=None), tuple(sorted({source for source, _ in leading}))
    )


def _leads(rule: Rule, target: str) -> bool:
    return target == rule.default_target or (rule.allow is not None and rule.allow.matches(target))
