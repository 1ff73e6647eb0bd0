"""Messages of the demo, and what must come of them. Pure: a message depends on its number and the time alone.

Reminders are delayed messages. Orders go to a consumer that fails for some of them, as often as their number says,
and forwards them to the retry topic; what must come of that is known when it forwards.
"""

import json
from typing import Final, NamedTuple

from policies.decision import BAD_HEADER, TARGET_NOT_ALLOWED
from policies.headers import (
    ATTEMPT,
    DELAY,
    DELIVER_AT,
    DETAIL,
    DUE,
    ERROR_CLASS,
    ERROR_MESSAGE,
    FIRST_FAILURE,
    ORIGIN,
    POLICY,
    REASON,
    REDRIVE_COUNT,
    REDRIVE_PLAN,
    REDRIVE_SOURCE,
    SOURCE,
    TARGET,
)
from sidecar.demo.oracle import MESSAGE_ID, Arrived, Expected, Identity, redrive_of
from sidecar.demo.setup import RETRIES, DemoTopics, backoff_ms
from sidecar.model.record import Headers

DELAY_MIN_MS: Final = 500
DELAY_MAX_MS: Final = 6_000
LONG_DELAYS_MS: Final = (10_000, 20_000, 30_000)
LONG_EVERY: Final = 25
STEP_MS: Final = 7_919  # a prime, so that all delays occur
CUSTOMERS: Final = 50
# Reminders beside which comes a message that can't be decided: with which header, and why.
UNDECIDABLE: Final = {
    10: (DELIVER_AT, b"tomorrow at nine", BAD_HEADER),
    30: (TARGET, b"pigeon", TARGET_NOT_ALLOWED),
}
REDRIVEN_WITHIN_MS: Final = 20_000  # from the start of a redrive until its letters are there
REJECTED: Final = "shop.ValidationError"  # a class that the policy gives up on


class Sending(NamedTuple):
    """One record to produce, and the delivery that must come of it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    expected: Expected


def reminder(number: int, now_ms: int, topics: DemoTopics, prefix: str, with_long: bool) -> Sending:
    """A delayed message. Now and then its value is no text, or null, or it has no key: all pass as they are."""
    delay_ms = DELAY_MIN_MS + number * STEP_MS % (DELAY_MAX_MS - DELAY_MIN_MS)
    if with_long and number % LONG_EVERY == 0:
        delay_ms = LONG_DELAYS_MS[number // LONG_EVERY % len(LONG_DELAYS_MS)]
    due_ms = now_ms + delay_ms
    target = (topics.mail, topics.push)[number % 2]
    message = f"reminder-{number}"
    key = None if number % 13 == 0 else b"customer-%d" % (number % CUSTOMERS)
    value: bytes | None = json.dumps({"reminder": number, "text": "your table is booked"}).encode()
    if number % 7 == 0:
        value = bytes(range(256)) if number % 2 else None
    when = (DELIVER_AT, b"%d" % due_ms) if number % 10 == 0 else (DELAY, b"%dms" % delay_ms)
    first, *others = _user_headers(message)
    return Sending(
        topics.reminders,
        key,
        value,
        [first, when, (TARGET, target.encode()), *others],
        now_ms,
        Expected(
            Identity(target, message, ""),
            key,
            value,
            (first, *others),
            due_ms,
            {DUE: b"%d" % due_ms},
            {POLICY: f"{prefix}reminders@".encode(), ORIGIN: f"{topics.reminders}/".encode()},
        ),
    )


def undecidable(number: int, now_ms: int, topics: DemoTopics) -> Sending | None:
    """A message that goes to the quarantine, beside a few of the reminders."""
    if number not in UNDECIDABLE:
        return None
    name, wrong, reason = UNDECIDABLE[number]
    message = f"undecidable-{number}"
    controls = {TARGET: topics.mail.encode(), DELAY: b"1s"} if name == TARGET else {TARGET: topics.mail.encode()}
    controls[name] = wrong
    headers = _user_headers(message)
    expected = Expected(
        Identity(topics.quarantine, message, ""),
        b"customer-7",
        b"is this still wanted?",
        tuple(headers),
        now_ms,
        {**controls, REASON: reason.encode()},
        {SOURCE: f"{topics.reminders}/".encode(), DETAIL: b""},
    )
    return Sending(topics.reminders, expected.key, expected.value, [*headers, *controls.items()], now_ms, expected)


def redriven(message: str, place: str, plan: str, now_ms: int, topics: DemoTopics) -> Expected:
    """The delivery that must come of an order's dead letter at `place`, when a redrive that begins now sends it."""
    first = order(int(message.rpartition("-")[2]), now_ms, topics).expected
    return Expected(
        Identity(topics.orders, message, redrive_of(plan)),
        first.key,
        first.value,
        first.headers,
        now_ms + REDRIVEN_WITHIN_MS,
        {REDRIVE_SOURCE: place.encode(), REDRIVE_COUNT: b"1"},
        {REDRIVE_PLAN: f"{plan}/".encode(), ORIGIN: f"{topics.orders_retry}/".encode()},
    )


def order(number: int, now_ms: int, topics: DemoTopics) -> Sending:
    """A message for the flaky consumer, without tickover."""
    message = f"order-{number}"
    key = b"customer-%d" % (number % CUSTOMERS)
    value = json.dumps({"order": number, "amount": number * 7 % 100}).encode()
    headers = _user_headers(message)
    expected = Expected(Identity(topics.orders, message, ""), key, value, tuple(headers), now_ms)
    return Sending(topics.orders, key, value, headers, now_ms, expected)


def failure(number: int, attempt: int) -> str:
    """The class of the error with which the consumer of this order fails at this attempt; empty: it succeeds."""
    match number % 10:
        case 6 | 7:
            return "ConnectionError" if attempt == 1 else ""
        case 8:
            return "TimeoutError" if attempt <= 2 else ""
        case 9:
            return "TimeoutError" if number % 20 == 9 else REJECTED
        case _:
            return ""


def order_number(expected: Expected) -> int:
    """The number of an order."""
    return int(expected.identity.message.rpartition("-")[2])


def attempt_of(expected: Expected) -> int:
    """The number of this delivery of an order."""
    return int(expected.identity.attempt or 1)


def forwarding(expected: Expected, arrived: Arrived, error: str, now_ms: int, place: tuple[DemoTopics, str]) -> Sending:
    """Record that a failed consumer sends to the retry topic: the headers as they came, and why it failed."""
    topics, prefix = place
    attempt = attempt_of(expected)
    own = {ERROR_CLASS: error.encode(), ERROR_MESSAGE: b"attempt %d failed" % attempt}
    headers = [(name, value) for name, value in arrived.headers if name not in own]
    headers += own.items()
    known = dict(arrived.headers)
    own[FIRST_FAILURE] = known.get(FIRST_FAILURE) or b"%d" % now_ms
    starts = {POLICY: f"{prefix}orders-retry@".encode(), ORIGIN: f"{topics.orders_retry}/".encode()}
    origin = known.get(ORIGIN)
    if origin is not None:
        own[ORIGIN] = origin
    reason = "not_retryable" if error == REJECTED else "attempts_exhausted" if attempt > RETRIES else ""
    due_ms = now_ms if reason else now_ms + backoff_ms(attempt)
    own[DUE] = b"%d" % due_ms
    own[ATTEMPT] = b"%d" % (attempt if reason else attempt + 1)
    if reason:
        own[REASON] = reason.encode()
        starts[SOURCE] = f"{topics.orders_retry}/".encode()
    identity = Identity(
        topics.orders_dead if reason else topics.orders, expected.identity.message, own[ATTEMPT].decode()
    )
    coming = Expected(identity, expected.key, expected.value, expected.headers, due_ms, own, starts)
    return Sending(topics.orders_retry, arrived.key, arrived.value, headers, now_ms, coming)


def _user_headers(message: str) -> Headers:
    """Headers that are hard to keep: a name given twice, a null and bytes that are no text."""
    return [(MESSAGE_ID, message.encode()), ("note", b"\xff\x00 not text"), ("note", None), ("tenant", b"demo")]
