"""Limits of a target: found from the policies that lead to it. Pure.

A policy leads to its `target.topic`, and to targets that its `target.allow` matches, for some source that there is. Of
several policies that limit one target the lowest rate counts, for all records that go there.
"""

from collections.abc import Mapping
from typing import NamedTuple

from policies.rate import HOUR_S
from policies.table import PolicyTable, Rule


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
