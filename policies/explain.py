"""Explain what would become of a record, and of its later attempts, without any side effect."""

from dataclasses import dataclass
from typing import Final, Literal

from policies.backoff import delay_range_ms, spread_of
from policies.decide import decide
from policies.decision import ATTEMPTS_EXHAUSTED, TIMEOUT, Dead, Decision, Facts, Hold
from policies.model import Retry
from policies.table import PolicyTable, Rule, holds

STEPS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Step:
    """One delivery to come. The times assume that every attempt fails the moment it is delivered.

    A wait has a range, because jitter and spread depend on the offset that the record will have when it comes back;
    the wait of the record at hand is known, so its range is a point.
    """

    attempt: int  # the number of the delivery; 0: a delay policy
    delay_min_ms: int
    delay_max_ms: int
    due_min_ms: int
    due_max_ms: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision for one record, the policies that compete for its topic (best first), and what follows."""

    decision: Decision
    policy: str | None  # name@version of the policy that decided
    candidates: tuple[str, ...]
    schedule: tuple[Step, ...]
    end: Literal["attempts_exhausted", "timeout"] | None  # why the record is given up if all attempts fail
    truncated: bool  # the schedule is longer than what is shown


def explain(facts: Facts, table: PolicyTable) -> Explanation:
    """Decide, and lay out every attempt that would follow if each one failed at once."""
    decision = decide(facts, table)
    rules = table.rules(facts.topic)
    rule = next((rule for rule in rules if holds(rule.conditions, facts.headers)), None)
    schedule: tuple[Step, ...] = ()
    end: Literal["attempts_exhausted", "timeout"] | None = None
    truncated = False
    if isinstance(decision, Hold) and rule is not None:
        wait_ms = decision.due_ms - facts.timestamp_ms
        first = Step(decision.attempt, wait_ms, wait_ms, decision.due_ms, decision.due_ms)
        schedule = (first,)
        if rule.retry is not None:
            schedule, end, truncated = _schedule(rule.retry, first, decision.first_failure_ms)
    elif isinstance(decision, Dead) and decision.reason in (ATTEMPTS_EXHAUSTED, TIMEOUT):
        end = "timeout" if decision.reason == TIMEOUT else "attempts_exhausted"
    return Explanation(
        decision=decision,
        policy=_label(rule),
        candidates=tuple(candidate.label for candidate in rules),
        schedule=schedule,
        end=end,
        truncated=truncated,
    )


def _label(rule: Rule | None) -> str | None:
    return None if rule is None else rule.label


def _schedule(
    retry: Retry, first: Step, first_failure_ms: int
) -> tuple[tuple[Step, ...], Literal["attempts_exhausted", "timeout"] | None, bool]:
    steps = [first]
    for failed in range(first.attempt, retry.attempts + 1):
        if len(steps) >= STEPS_MAX:
            return tuple(steps), None, True
        delay_min_ms, delay_max_ms = delay_range_ms(retry.backoff, failed)
        delay_max_ms += spread_of(retry).usual_ms
        due_min_ms, due_max_ms = steps[-1].due_min_ms + delay_min_ms, steps[-1].due_max_ms + delay_max_ms
        if retry.timeout is not None and due_min_ms > first_failure_ms + retry.timeout:
            return tuple(steps), "timeout", False
        steps.append(Step(failed + 1, delay_min_ms, delay_max_ms, due_min_ms, due_max_ms))
    return tuple(steps), "attempts_exhausted", False
