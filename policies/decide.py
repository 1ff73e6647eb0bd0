"""Decide by the policy that a record meets. Pure: the same facts and the same table give the same decision, always, in
the engine, in `explain` and in a backtest.

Order of questions, the first that says no ends it:
    policy        no_policy             Headers that the policy does not read are never looked at.
    timestamp     bad_timestamp, too_far
    headers       bad_header
    action        bad_header, too_far   (a control record has no target, no attempts and no end: only an id and,
                                        to reschedule, a time)
    target        bad_header, loop, target_not_allowed
    attempt       attempts_exhausted, not_retryable   (retry)
    due           bad_header, too_far, timeout (retry), expired
"""

from collections.abc import Mapping
from typing import Final

from policies.backoff import delay_ms, spread_due_ms
from policies.decision import (
    ATTEMPTS_EXHAUSTED,
    BAD_HEADER,
    BAD_TIMESTAMP,
    EXPIRED,
    NO_POLICY,
    NOT_RETRYABLE,
    RESCHEDULE,
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
)
from policies.duration import TIME_MAX_MS, format_duration
from policies.headers import ACTION, DELAY, DELIVER_AT, IF_OFFSET, OFFSET_MAX
from policies.model import Retry
from policies.request import Request, number_of, read_failure, read_request
from policies.table import PolicyTable, Rule, holds

_new_tuple: Final = tuple.__new__


def decide(facts: Facts, table: PolicyTable) -> Decision:
    """Decide what becomes of the record. Never raises, whatever the headers hold."""
    topic, _, _, timestamp_ms, headers, controls, arrived_ms = facts
    for rule in table.rules_by_topic.get(topic) or table.rules(topic):
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


def act(request: Request, controls: Mapping[str, Control], timestamp_ms: int, label: str, delay_max_ms: int) -> Act:
    """The action, under the policy of this label. Raises Refusal (bad_header, too_far)."""
    assert request.id is not None, "read_request wants one"
    due_ms = -1
    if request.action == RESCHEDULE:
        if request.deliver_at_ms >= 0:
            due_ms = request.deliver_at_ms
        elif request.delay_ms >= 0:
            due_ms = timestamp_ms + request.delay_ms
        else:
            raise Refusal(BAD_HEADER, f"a reschedule needs {DELIVER_AT} or {DELAY}")
        if due_ms - timestamp_ms > delay_max_ms:
            raise too_far(label, delay_max_ms)
    if_offset = number_of(IF_OFFSET, controls[IF_OFFSET], OFFSET_MAX) if IF_OFFSET in controls else -1
    return Act(request.action, request.id, due_ms, label, timestamp_ms, if_offset)


def too_far(label: str, delay_max_ms: int) -> Refusal:
    """The refusal of a due time that no policy of this limit takes."""
    limit = format_duration(delay_max_ms)
    return Refusal(TOO_FAR, f"due more than {limit} after the record's timestamp (policy {label})")
