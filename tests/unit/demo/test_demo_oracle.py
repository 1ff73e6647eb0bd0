"""The demo's judge has teeth: each fault, put into an otherwise right record, is counted as what it is."""

from collections.abc import Callable

import pytest

from policies.file import parse_policies
from sidecar.demo.messages import UNDECIDABLE, Sending, failure, forwarding, order, redriven, reminder, undecidable
from sidecar.demo.oracle import LOST_AFTER_MS, MESSAGE_ID, Arrived, Expected, Oracle
from sidecar.demo.setup import backoff_ms, demo_topics, policies_text

TOPICS = demo_topics("")
PLACE = (TOPICS, "")
NOW_MS = 1_700_000_000_000


def emitted(expected: Expected, late_ms: int = 3) -> Arrived:
    """The record that the sidecar must make."""
    own = {**expected.own, **{name: value + b"1" for name, value in expected.own_starts.items()}, **expected.own}
    return Arrived(
        expected.identity.topic,
        expected.key,
        expected.value,
        [*expected.headers, *own.items()],
        expected.due_ms + late_ms,
    )


def announced(number: int = 3) -> tuple[Oracle, Expected]:
    oracle = Oracle()
    sending = reminder(number, NOW_MS, TOPICS, "", with_long=False)
    oracle.expect(sending.expected)
    return oracle, sending.expected


def counts(oracle: Oracle, now_ms: int = NOW_MS) -> dict[str, int]:
    """The faults that are not nought."""
    named = {
        "early": oracle.early,
        "wrong": oracle.wrong,
        "repeated": oracle.repeated,
        "lost": oracle.lost(now_ms),
    }
    return {name: count for name, count in named.items() if count}


def test_what_is_right_is_no_fault() -> None:
    oracle, expected = announced()

    assert oracle.judge(emitted(expected)) is expected

    assert counts(oracle, NOW_MS + 10**9) == {}
    assert (oracle.fired, oracle.outstanding, oracle.lateness_ms(0.5)) == (1, 0, 3)


def test_at_the_very_millisecond_is_not_early_and_one_before_is() -> None:
    oracle, expected = announced()
    oracle.judge(emitted(expected, late_ms=0))
    assert counts(oracle) == {}

    oracle, expected = announced()
    oracle.judge(emitted(expected, late_ms=-1))
    assert counts(oracle) == {"early": 1}
    assert "early: reminder-3 on push by 1 ms" in oracle.examples(NOW_MS)


def test_a_second_time_is_repeated() -> None:
    oracle, expected = announced()
    oracle.judge(emitted(expected))

    assert oracle.judge(emitted(expected)) is None

    assert counts(oracle) == {"repeated": 1}
    assert oracle.fired == 1


def test_what_does_not_come_is_lost_after_a_while_and_found_when_it_comes() -> None:
    oracle, expected = announced()
    limit_ms = expected.due_ms + LOST_AFTER_MS

    assert counts(oracle, limit_ms) == {}
    assert counts(oracle, limit_ms + 1) == {"lost": 1}
    assert oracle.examples(limit_ms + 1) == [f"lost: reminder-3 on push due at {expected.due_ms}"]

    oracle.judge(emitted(expected, late_ms=LOST_AFTER_MS))
    assert counts(oracle, limit_ms + 1) == {}


def test_what_could_not_be_sent_is_not_lost() -> None:
    oracle, expected = announced()

    oracle.withdraw(expected.identity)

    assert counts(oracle, NOW_MS + 10**9) == {}


def test_what_the_user_sent_is_nobodys_fault() -> None:
    oracle, _ = announced()

    assert oracle.judge(Arrived("push", None, b"hello", [("tickover-due", b"1")], NOW_MS)) is None

    assert counts(oracle) == {}
    assert oracle.foreign == 1


def test_dead_letters_that_the_user_has_redriven_are_nobodys_fault() -> None:
    oracle, expected = announced()
    arrived = emitted(expected)
    oracle.judge(arrived)

    redriven = arrived._replace(headers=[*arrived.headers, ("tickover-redrive-plan", b"3f9a0c1d22ab")])
    assert oracle.judge(redriven) is None

    assert counts(oracle) == {}
    assert oracle.foreign == 1


CHANGES: dict[str, Callable[[Arrived], Arrived]] = {
    "key": lambda record: record._replace(key=b"other"),
    "key null": lambda record: record._replace(key=None),
    "value": lambda record: record._replace(value=(record.value or b"") + b" "),
    "value null": lambda record: record._replace(value=None),
    "user header gone": lambda record: record._replace(headers=[h for h in record.headers if h != ("note", None)]),
    "user headers in another order": lambda record: record._replace(
        headers=[record.headers[0], record.headers[2], record.headers[1], *record.headers[3:]]
    ),
    "null header emptied": lambda record: record._replace(
        headers=[(name, b"" if value is None else value) for name, value in record.headers]
    ),
    "due": lambda record: record._replace(
        headers=[(name, b"1" if name == "tickover-due" else value) for name, value in record.headers]
    ),
    "no policy": lambda record: record._replace(headers=[h for h in record.headers if h[0] != "tickover-policy"]),
    "control header left": lambda record: record._replace(headers=[*record.headers, ("tickover-delay", b"1s")]),
    "own header twice": lambda record: record._replace(headers=[*record.headers, record.headers[-1]]),
    "another topic": lambda record: record._replace(topic="mail"),
    "an attempt too much": lambda record: record._replace(headers=[*record.headers, ("tickover-attempt", b"2")]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_changed_is_wrong(change: str) -> None:
    oracle, expected = announced()

    oracle.judge(CHANGES[change](emitted(expected)))

    assert counts(oracle) == {"wrong": 1}


def life_of(number: int) -> tuple[Oracle, list[Sending], list[Expected]]:
    """An order with all that its consumer forwards; what it was forwarded as, and what arrived."""
    oracle, sendings = Oracle(), [order(number, NOW_MS, TOPICS)]
    seen: list[Expected] = []
    now_ms = NOW_MS
    while len(seen) < len(sendings):
        oracle.expect(sendings[-1].expected)
        arrived = emitted(sendings[-1].expected)
        expected = oracle.judge(arrived)
        assert expected is not None
        seen.append(expected)
        attempt = int(expected.identity.attempt or 1)
        error = failure(number, attempt) if expected.identity.topic == TOPICS.orders else ""
        if error:
            now_ms += 1_000
            sendings.append(forwarding(expected, arrived, error, now_ms, PLACE))
    return oracle, sendings, seen


@pytest.mark.parametrize(
    ("number", "path"),
    [
        (1, ["orders"]),
        (6, ["orders", "orders 2"]),
        (8, ["orders", "orders 2", "orders 3"]),
        (19, ["orders", "orders-dlq 1"]),
        (9, ["orders", "orders 2", "orders 3", "orders 4", "orders-dlq 4"]),
    ],
)
def test_orders_take_the_path_of_their_number(number: int, path: list[str]) -> None:
    oracle, sendings, seen = life_of(number)

    taken = [f"{item.identity.topic} {item.identity.attempt}".strip() for item in seen]
    assert taken == path
    assert counts(oracle, NOW_MS + 10**9) == {}
    assert oracle.retries == sum(" " in step and "dlq" not in step for step in path)
    assert oracle.dead == sum("dlq" in step for step in path)
    for failed, sending in enumerate(sendings[1:], 1):
        dead = sending.expected.identity.topic == TOPICS.orders_dead
        assert sending.expected.due_ms == sending.timestamp_ms + (0 if dead else backoff_ms(failed))
        assert [name for name, _ in sending.headers].count("tickover-error-class") == 1


def test_a_retry_that_skips_an_attempt_is_wrong() -> None:
    oracle = Oracle()
    first = order(8, NOW_MS, TOPICS)
    forwarded = forwarding(first.expected, emitted(first.expected), "TimeoutError", NOW_MS, PLACE)
    oracle.expect(forwarded.expected)
    record = emitted(forwarded.expected)

    oracle.judge(record._replace(headers=[(n, b"3" if n == "tickover-attempt" else v) for n, v in record.headers]))

    assert counts(oracle, forwarded.expected.due_ms + LOST_AFTER_MS + 1) == {"wrong": 1, "lost": 1}


def test_a_quarantined_record_is_wrong() -> None:
    oracle, expected = announced()

    oracle.judge(Arrived(TOPICS.quarantine, None, None, [(MESSAGE_ID, b"reminder-3"), ("tickover-reason", b"x")], 1))

    assert counts(oracle, expected.due_ms + LOST_AFTER_MS + 1) == {"wrong": 1, "lost": 1}
    assert "nothing like it was to come" in oracle.examples(NOW_MS)[0]


@pytest.mark.parametrize("number", UNDECIDABLE)
def test_what_can_not_be_decided_is_expected_in_the_quarantine_and_nowhere_else(number: int) -> None:
    sending = undecidable(number, NOW_MS, TOPICS)
    assert sending is not None
    oracle, another = Oracle(), Oracle()
    for judge in (oracle, another):
        judge.expect(sending.expected)

    oracle.judge(emitted(sending.expected))
    another.judge(emitted(sending.expected)._replace(topic=TOPICS.mail))

    assert (oracle.quarantined, oracle.dead, oracle.fired, counts(oracle, NOW_MS + 10**9)) == (1, 0, 0, {})
    assert counts(another, NOW_MS + 10**9) == {"wrong": 1, "lost": 1}


def announced_redrive() -> tuple[Oracle, Expected, Arrived]:
    """A judge that waits for a letter of a plan of the demo's own, and the record that must come of it."""
    oracle = Oracle()
    expected = redriven("order-9", "orders-dlq/2/5", "3f9a0c1d22ab", NOW_MS, TOPICS)
    oracle.expect(expected)
    return oracle, expected, emitted(expected)


def test_a_redrive_of_the_demos_own_is_part_of_the_account() -> None:
    oracle, expected, arrived = announced_redrive()
    assert counts(oracle, expected.due_ms + LOST_AFTER_MS + 1) == {"lost": 1}

    assert oracle.judge(arrived) is expected
    assert (oracle.redriven, oracle.foreign, oracle.fired, oracle.dead) == (1, 0, 0, 0)
    assert counts(oracle, NOW_MS + 10**9) == {}

    oracle.judge(arrived)
    assert counts(oracle) == {"repeated": 1}


def test_a_redriven_letter_that_is_changed_is_wrong_and_one_of_another_plan_is_the_users() -> None:
    oracle, expected, arrived = announced_redrive()

    oracle.judge(arrived._replace(value=b"other"))
    oracle.judge(arrived._replace(headers=[*expected.headers, ("tickover-redrive-plan", b"000000000000/1")]))

    assert counts(oracle) == {"wrong": 1}
    assert oracle.foreign == 1


@pytest.mark.parametrize("prefix", ["", "demo-abc123-"])
def test_the_demos_policies_are_valid(prefix: str) -> None:
    names = [policy.name for policy in parse_policies(policies_text(demo_topics(prefix), prefix))]

    assert names == [f"{prefix}reminders", f"{prefix}campaigns", f"{prefix}orders-retry"]
