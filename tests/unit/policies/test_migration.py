"""The policy of the page about retry topics of one's own does with carried counters what the page says."""

import ast
import re
from typing import Any

import pytest

from policies.decide import decide
from policies.decision import REPEATED, Control, Dead, Decision, Hold, Quarantine
from policies.duration import parse_duration
from tests.migration_page import Rung, policy, programs, rungs
from tests.unit.policy_world import NOW_MS, facts, table

POLICY = policy()
RUNGS = rungs()


def decided(document: dict[str, Any] | None = None, /, **controls: Control) -> Decision:
    return decide(facts("orders-retry", **controls), table(document or POLICY))


def held(**controls: Control) -> Hold:
    decision = decided(**controls)
    assert isinstance(decision, Hold)
    return decision


def with_retry(**settings: Any) -> dict[str, Any]:
    return {**POLICY, "retry": {**POLICY["retry"], **settings}}


def test_the_page_has_a_row_for_each_attempt() -> None:
    assert [rung.failed for rung in RUNGS] == list(range(1, POLICY["retry"]["attempts"] + 1))
    assert [rung.wait for rung in RUNGS] == POLICY["retry"]["backoff"]["delays"]
    assert all(rung.topic == f"orders-retry-{rung.wait}" for rung in RUNGS)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.topic)
def test_a_carried_counter_goes_on_where_it_was(rung: Rung) -> None:
    hold = held(attempt=rung.carried)
    assert hold.due_ms == NOW_MS + parse_duration(rung.wait)
    assert (hold.target, hold.attempt) == ("orders", rung.next_attempt)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.topic)
def test_what_a_carried_record_comes_to_when_it_fails_again(rung: Rung) -> None:
    hold = held(attempt=rung.carried)
    again = decided(
        attempt=b"%d" % hold.attempt, first_failure=b"%d" % hold.first_failure_ms, policy=hold.policy.encode(),
        origin=b"orders-retry/0/1",
    )  # fmt: skip
    if isinstance(again, Hold):
        assert rung.then.startswith("waits ")
        assert again.due_ms == NOW_MS + parse_duration(rung.then.removeprefix("waits "))
    else:
        assert isinstance(again, Dead)
        assert (again.reason, again.topic) == (rung.then, "orders-dlq")


def test_without_a_counter_a_record_has_failed_for_the_first_time() -> None:
    first = held()
    assert (first.due_ms - NOW_MS, first.attempt) == (parse_duration(RUNGS[0].wait), 2)
    assert first == held(attempt=RUNGS[0].carried)


@pytest.mark.parametrize("counter", [b"0", REPEATED], ids=["a counter of retries", "twice"])
def test_what_is_no_attempt_is_quarantined(counter: Control) -> None:
    decision = decided(attempt=counter)
    assert isinstance(decision, Quarantine)
    assert decision.reason == "bad_header"


def test_a_counter_above_the_attempts_is_dead_at_once() -> None:
    decision = decided(attempt=b"%d" % (RUNGS[-1].failed + 1))
    assert isinstance(decision, Dead)
    assert decision.reason == "attempts_exhausted"


@pytest.mark.parametrize("left_ms", [180_000, -180_000], ids=["to come", "past"])
def test_the_end_of_the_old_wait_stands_in_place_of_a_new_one(left_ms: int) -> None:
    hold = held(attempt=b"2", deliver_at=b"%d" % (NOW_MS + left_ms))
    assert (hold.due_ms, hold.attempt) == (NOW_MS + left_ms, 3)


def test_a_timeout_counts_from_the_first_failure_that_is_carried() -> None:
    limited = with_retry(timeout="2h")
    assert isinstance(decided(limited, attempt=b"3"), Hold)
    late = decided(limited, attempt=b"3", first_failure=b"%d" % (NOW_MS - parse_duration("90m")))
    assert isinstance(late, Dead)
    assert late.reason == "timeout"


def test_where_classes_are_named_a_record_without_one_is_not_retried() -> None:
    choosy = with_retry(retry_on=["shop.*"])
    dead = decided(choosy, attempt=b"1")
    assert isinstance(dead, Dead)
    assert dead.reason == "not_retryable"
    assert isinstance(decided(choosy, attempt=b"1", error_class=b"shop.Timeout"), Hold)


def test_the_programs_have_the_ladder_of_the_table() -> None:
    before, _, carry = programs()
    told = ast.literal_eval(re.findall(r"^LADDER = ({.*?^})", carry, re.MULTILINE | re.DOTALL)[0])
    assert told == {rung.topic: (rung.failed, parse_duration(rung.wait)) for rung in RUNGS}
    assert ast.literal_eval(re.findall(r"^LADDER = (\[.*\])$", before, re.MULTILINE)[0]) == list(told)
