"""Find the policy that a record meets, and decide by it. Pure: the same facts and the same table give the same
decision, always, in the engine, in `explain` and in a backtest.

Matching order: an exact topic before a glob, then the glob with the longer literal part, then more header
conditions, then the name. The first whose header conditions hold decides.

Order of questions, the first that says no ends it:
    policy        no_policy             Headers that the policy does not read are never looked at.
    timestamp     bad_timestamp, too_far
    headers       bad_header
    action        bad_header, too_far   (a control record has no target, no attempts and no end)
    target        bad_header, loop, target_not_allowed
    attempt       attempts_exhausted, not_retryable   (retry)
    due           bad_header, too_far, timeout (retry), expired
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from policies.backoff import delay_ms
from policies.conditions import Conditions, conditions_of, holds
from policies.control import act, too_far
from policies.decision import (
    ATTEMPTS_EXHAUSTED,
    BAD_HEADER,
    BAD_TIMESTAMP,
    EXPIRED,
    LOOP,
    NO_POLICY,
    NOT_RETRYABLE,
    REPEATED,
    TARGET_NOT_ALLOWED,
    TIMEOUT,
    TOO_FAR,
    Act,
    Control,
    Dead,
    Decision,
    Facts,
    Hold,
    Quarantine,
    Refusal,
    Repeated,
)
from policies.duration import TIME_MAX_MS, format_duration
from policies.fields import is_topic
from policies.glob import Matcher, compile_globs, is_exact, literal_length
from policies.headers import ACTION, OFFSET_MAX, TARGET
from policies.model import DELAY_MAX_DEFAULT_MS, Policy, Retry, Versioned
from policies.request import ABSENT, Found, Request, read_failure, read_request, text_of
from policies.spread import Spread, spread_due_ms, spread_of

__all__ = [
    "EMPTY_TABLE",
    "REPEATED",
    "Act",
    "Control",
    "Dead",
    "Decision",
    "Facts",
    "Hold",
    "PolicyTable",
    "Quarantine",
    "Repeated",
    "Rule",
    "decide",
    "depends_on_request_alone",
]

RETRY_SUFFIX: Final = "-retry"
DEAD_LETTER_SUFFIX: Final = "-dlq"
TOPICS_CACHED_MAX: Final = 10_000
TARGETS_CACHED_MAX: Final = 1_024

_new_tuple: Final = tuple.__new__


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
    _rules: dict[str, tuple[Rule, ...]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        orders = any(versioned.policy.order is not None for versioned in self.policies.values())
        object.__setattr__(self, "orders", orders)

    def rules(self, topic: str) -> tuple[Rule, ...]:
        """The policies that may match records of this topic, in matching order."""
        rules = self._rules.get(topic)
        if rules is None:
            ranked = sorted(
                (rank, name) for name, versioned in self.policies.items() if (rank := _rank(versioned.policy, topic))
            )
            rules = tuple(_compile(self.policies[name], topic) for _, name in ranked)
            if len(self._rules) >= TOPICS_CACHED_MAX:
                self._rules.clear()
            self._rules[topic] = rules
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


def decide(facts: Facts, table: PolicyTable) -> Decision:
    """Decide what becomes of the record. Never raises, whatever the headers hold."""
    topic, _, _, timestamp_ms, headers, controls, arrived_ms = facts
    for rule in table._rules.get(topic) or table.rules(topic):
        if not rule.conditions or holds(rule.conditions, headers):
            break
    else:
        rules = table.rules(topic)
        if ACTION not in controls or not rules:
            return Quarantine(NO_POLICY, "no policy matches the topic and headers")
        rule = rules[0]  # a control record is about a record that one matched: it needs no headers of the user's
    if not 0 <= timestamp_ms <= TIME_MAX_MS:
        return Quarantine(BAD_TIMESTAMP, "missing" if timestamp_ms == -1 else "before 1970 or after the year 9999")
    if 0 <= arrived_ms < timestamp_ms - rule.delay_max_ms:
        limit = format_duration(rule.delay_max_ms)
        return Quarantine(TOO_FAR, f"its timestamp is more than {limit} after it came (policy {rule.label})")
    try:
        request = read_request(controls)
        if request.action:
            return act(request, controls, timestamp_ms, rule.label, rule.delay_max_ms)
        if rule.retry is None:
            return _decide_delay(rule, facts, request)
        return _decide_retry(rule, rule.retry, facts, request)
    except Refusal as refusal:
        return Quarantine(refusal.reason, refusal.detail)


def depends_on_request_alone(topic: str, table: PolicyTable) -> bool:
    """Whether for this topic delay, target and partition asked for decide, whatever the record: the due time then
    moves with the record's timestamp, and nothing else changes."""
    rules = table.rules(topic)
    return bool(rules) and rules[0].retry is None and not rules[0].conditions and not rules[0].spread.usual_ms


def _decide_delay(rule: Rule, facts: Facts, request: Request) -> Hold | Dead:
    deliver_at_ms, wait_ms, raw_target, target_partition, message_id, expires_ms, _, _ = request
    timestamp_ms = facts.timestamp_ms
    target, dead_letter = rule.topics_of(raw_target)
    if deliver_at_ms >= 0:
        due_ms = deliver_at_ms
    else:
        if wait_ms < 0:
            wait_ms = rule.default_delay_ms
            if wait_ms < 0:
                raise Refusal(BAD_HEADER, f"no delay asked for, and policy {rule.label} has no default")
        due_ms = timestamp_ms + wait_ms
    if due_ms - timestamp_ms > rule.delay_max_ms:
        raise too_far(rule.label, rule.delay_max_ms)
    if 0 <= expires_ms < due_ms:
        return Dead(EXPIRED, dead_letter, rule.label, 0, -1, message_id, timestamp_ms, fires_ms=due_ms)
    if rule.spread.max_ms:
        due_ms = _spread(rule, facts, request, due_ms, timestamp_ms + rule.delay_max_ms)
    # Hot: half the time of Hold(...), which is a Python function that does this.
    return _new_tuple(Hold, (due_ms, target, target_partition, rule.label, 0, -1, expires_ms, dead_letter, message_id))


def _decide_retry(rule: Rule, retry: Retry, facts: Facts, request: Request) -> Hold | Dead:
    timestamp_ms = facts.timestamp_ms
    if facts.arrived_ms > timestamp_ms and rule.policy.order is None:  # an order of due times comes from the records
        timestamp_ms = facts.arrived_ms
    name = rule.policy.name
    failed, first_failure_ms, error_class = read_failure(facts.controls, timestamp_ms, name, facts.topic)
    target, dead_letter = rule.topics_of(request.target)

    if_dead = dead_letter, rule.label, failed, first_failure_ms, request.id, timestamp_ms, target
    if failed > retry.attempts:
        return Dead(ATTEMPTS_EXHAUSTED, *if_dead)
    if not _is_retryable(rule, retry, error_class):
        return Dead(NOT_RETRYABLE, *if_dead)
    if request.deliver_at_ms >= 0:
        due_ms = request.deliver_at_ms
    elif request.delay_ms >= 0:
        due_ms = timestamp_ms + request.delay_ms
    else:
        due_ms = timestamp_ms + delay_ms(retry.backoff, failed, (facts.topic, facts.partition, facts.offset))
    asked = request.deliver_at_ms >= 0 or request.delay_ms >= 0
    if asked and due_ms - timestamp_ms > rule.delay_max_ms:
        raise too_far(rule.label, rule.delay_max_ms)
    if retry.timeout is not None and due_ms > first_failure_ms + retry.timeout:
        return Dead(TIMEOUT, *if_dead, due_ms)
    if 0 <= request.expires_ms < due_ms:
        return Dead(EXPIRED, *if_dead, due_ms)
    if rule.spread.max_ms:
        too_far_ms = timestamp_ms + rule.delay_max_ms if asked else OFFSET_MAX
        timeout_ms = OFFSET_MAX if retry.timeout is None else first_failure_ms + retry.timeout
        due_ms = _spread(rule, facts, request, due_ms, min(too_far_ms, timeout_ms))
    fields = (
        due_ms, target, request.target_partition, rule.label, failed + 1, first_failure_ms, request.expires_ms,
        dead_letter, request.id,
    )  # fmt: skip
    return _new_tuple(Hold, fields)  # as above


def _spread(rule: Rule, facts: Facts, request: Request, due_ms: int, latest_ms: int) -> int:
    if request.expires_ms >= 0:  # half of the time that is left stays for whatever makes it late
        latest_ms = min(latest_ms, due_ms + (request.expires_ms - due_ms) // 2)
    identity = facts.topic, facts.partition, facts.offset
    return spread_due_ms(due_ms, rule.spread, request.spread_ms, latest_ms, identity)


def _is_retryable(rule: Rule, retry: Retry, error_class: str | None) -> bool:
    if error_class is None:  # matches only `*`, and nothing of the more specific
        return "*" in retry.retry_on and "*" not in retry.give_up_on
    if rule.give_up_on is not None and rule.give_up_on.matches(error_class):
        return False
    return rule.retry_on is not None and rule.retry_on.matches(error_class)
