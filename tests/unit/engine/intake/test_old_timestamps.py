"""Records whose producer has kept a timestamp of another time: connectors, Streams, MirrorMaker, a wrong clock."""

from typing import Any

import pytest

from policies.decide import decide
from policies.decision import Dead, Hold, Quarantine
from sidecar.model.record import Headers
from tests.simulation.fake_kafka import CREATE_TIME, LOG_APPEND_TIME, FakeRecord
from tests.simulation.workload import QUARANTINE
from tests.unit.engine.partition.test_key_order import OrderBench, ordered
from tests.unit.engine_bench import SOURCE, Bench
from tests.unit.policy_world import DAY_MS, DELAY, NOW_MS, RETRY, facts, table

HOUR_MS = 3_600_000


def retrying(trouble: Any) -> OrderBench:
    """A bench with a policy of retries, unordered: after attempt 1 due in 100 ms, after 2 in 1 s, later in 30 s."""
    return OrderBench(None, trouble=trouble)


def fail(bench: Bench, stamp: tuple[int, int], attempt: int = 1, *more: tuple[str, bytes]) -> int:
    headers: Headers = [("tickover-attempt", b"%d" % attempt), *more]
    return bench.broker.append(SOURCE, 0, FakeRecord((SOURCE, 0, -1), stamp, (b"k", b"value"), headers)).offset()


def header(record: FakeRecord, name: str) -> int:
    return int(dict(record.headers() or ())[name] or b"-1")


@pytest.mark.parametrize("trouble", [None, str], ids=["at_least_once", "exactly_once"])
@pytest.mark.parametrize("stamp_ms", [0, -4 * DAY_MS, -HOUR_MS - 1_000], ids=["zero", "4 days", "over an hour"])
def test_a_retry_with_an_old_timestamp_has_its_back_off_from_when_it_is_read(trouble: Any, stamp_ms: int) -> None:
    bench = retrying(trouble)
    sent_ms = bench.clock.now_ms
    fail(bench, (CREATE_TIME, sent_ms + stamp_ms if stamp_ms else 0), attempt=2)
    bench.run(900)
    assert bench.records("mail") == []
    bench.run(1_000)
    [record] = bench.records("mail")
    assert header(record, "tickover-due") >= sent_ms + 1_000
    assert header(record, "tickover-first-failure") >= sent_ms, "so a timeout counts from there, too"


@pytest.mark.parametrize("stamp", [(LOG_APPEND_TIME, -4 * DAY_MS), (CREATE_TIME, -HOUR_MS // 2)], ids=["append", "lag"])
def test_a_timestamp_that_says_when_it_came_counts_however_late_it_is_read(stamp: tuple[int, int]) -> None:
    bench = retrying(None)
    stamped_ms = bench.clock.now_ms + stamp[1]
    fail(bench, (stamp[0], stamped_ms), attempt=2)
    bench.run(300)
    [record] = bench.records("mail")
    assert header(record, "tickover-due") == stamped_ms + 1_000


@pytest.mark.parametrize("trouble", [None, str], ids=["at_least_once", "exactly_once"])
def test_read_again_after_a_crash_it_waits_anew_and_comes_once(trouble: Any) -> None:
    bench = retrying(trouble)
    fail(bench, (CREATE_TIME, 0), attempt=2)
    bench.run(600)
    bench.restart()
    read_ms = bench.clock.now_ms
    bench.run(900)
    assert bench.records("mail") == [], "never early"
    bench.run(3_000)
    [record] = bench.records("mail")
    assert header(record, "tickover-due") >= read_ms + 1_000
    assert bench.lane.imbalance == 0


def test_what_the_ledger_has_is_due_as_it_was_decided_before_the_crash() -> None:
    bench = retrying(str)
    sent_ms = bench.clock.now_ms
    fail(bench, (CREATE_TIME, 0), attempt=3)
    bench.run(5_000)
    assert bench.overflow.records[bench.lane.id], "far enough to be written down"
    bench.restart()
    bench.run(31_000)
    [record] = bench.records("mail")
    assert sent_ms + 30_000 <= header(record, "tickover-due") <= sent_ms + 31_000


def test_a_policy_with_a_timeout_gives_such_a_record_all_of_its_attempts() -> None:
    old_ms = NOW_MS - 3 * DAY_MS
    came = facts("orders-retry", old_ms)
    assert isinstance(decide(came, table(RETRY)), Hold), "the first failure is its own timestamp"
    assert isinstance(decide(facts("orders-retry", NOW_MS, first_failure=b"%d" % old_ms), table(RETRY)), Dead)
    hold = decide(came._replace(arrived_ms=NOW_MS), table(RETRY))
    assert isinstance(hold, Hold)
    assert (hold.due_ms, hold.first_failure_ms) == (NOW_MS + 1_000, NOW_MS)
    again = facts("orders-retry", old_ms, attempt=b"2", first_failure=b"%d" % hold.first_failure_ms)
    assert isinstance(decide(again._replace(arrived_ms=NOW_MS + 2_000), table(RETRY)), Hold)


def test_where_keys_keep_their_order_the_record_alone_decides() -> None:
    came = facts("reminders", NOW_MS - 3 * DAY_MS)._replace(arrived_ms=NOW_MS)
    hold = decide(came, ordered())
    assert isinstance(hold, Hold)
    assert hold.due_ms == NOW_MS - 3 * DAY_MS + 100


@pytest.mark.parametrize("ahead_ms", [400 * DAY_MS, 400 * DAY_MS + 1], ids=["as far as may be", "further"])
def test_a_timestamp_further_ahead_than_any_delay_is_too_far(ahead_ms: int) -> None:
    came = facts("reminders", NOW_MS + ahead_ms)._replace(arrived_ms=NOW_MS)
    decision = decide(came, table(DELAY))
    if ahead_ms <= 400 * DAY_MS:
        assert isinstance(decision, Hold)
    else:
        assert isinstance(decision, Quarantine)
        assert (decision.reason, decision.detail) == (
            "too_far", "its timestamp is more than 400d after it came (policy reminders@3)",
        )  # fmt: skip


def test_of_two_records_in_the_same_words_only_the_one_ahead_is_refused() -> None:
    """A decision is remembered for records in the same words."""
    bench = Bench()
    for ahead_ms in (0, 11 * DAY_MS, 0):
        stamp = (CREATE_TIME, bench.clock.now_ms + ahead_ms)
        headers: Headers = [("tickover-delay", b"100")]
        bench.broker.append(SOURCE, 0, FakeRecord((SOURCE, 0, -1), stamp, (b"k", b"value"), headers))
        bench.run(50)
    bench.run(1_000)
    assert len(bench.records("mail")) == 2
    [record] = bench.records(QUARANTINE)
    assert dict(record.headers() or ())["tickover-reason"] == b"too_far"


def test_a_delay_counts_from_an_old_timestamp_as_ever() -> None:
    bench = Bench()
    stamp = (CREATE_TIME, bench.clock.now_ms - 4 * DAY_MS)
    bench.broker.append(SOURCE, 0, FakeRecord((SOURCE, 0, -1), stamp, (b"k", b"value"), [("tickover-delay", b"1d")]))
    bench.run(500)
    assert len(bench.records("mail")) == 1
