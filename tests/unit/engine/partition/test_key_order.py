"""Order by key, rule by rule, on one engine between fakes. What faults do to it is the simulation's."""

from typing import Any

import pytest

from policies.model import Match, Order, Policy, Quota, Versioned
from policies.table import PolicyTable
from sidecar.engine.partition.key_order import Order as BareOrder
from sidecar.engine.partition.key_order import Tail
from sidecar.model.record import Headers, Held, Position
from sidecar.overflow.interface import OverflowUnavailable
from tests.simulation.fake_kafka import CREATE_TIME, FakeRecord
from tests.simulation.workload import QUARANTINE
from tests.unit.engine_bench import SOURCE, Bench

pytestmark = pytest.mark.slow  # many runs of the engine

FAR_MS = 30_000  # beyond the bench's horizon of 2 s


def ordered(order: Any = "key", **retry: Any) -> PolicyTable:
    policy = Policy.model_validate(
        {
            "name": "reminders",
            "match": {"topics": [SOURCE]},
            "order": order,
            "retry": {"attempts": 5, "backoff": {"kind": "list", "delays": ["100ms", "1s", "30s"]}, **retry},
            "target": {"topic": "mail", "allow": ["*"]},
            "dead_letter": {"topic": "dead"},
        }
    )
    return PolicyTable(1, {"reminders": Versioned(policy, 1, "me", 0, "api")})


def with_two(orders: Any) -> PolicyTable:
    """A second policy for records with a header, which orders or doesn't; the first one does."""
    first = ordered().policies["reminders"].policy
    second = first.model_copy(
        update={"name": "gold", "match": Match(topics=(SOURCE,), headers={"tenant": "gold"}), "order": orders}
    )
    return PolicyTable(1, {policy.name: Versioned(policy, 1, "me", 0, "api") for policy in (first, second)})


class OrderBench(Bench):
    """A bench whose policy is one of retries, in the order of their keys."""

    def __init__(self, order: Any = "key", **more: Any) -> None:
        super().__init__(**more)
        self.use(ordered(order))

    def use(self, table: PolicyTable) -> None:
        self.tables[1] = table
        self.replica.engine.table = table

    def fail(self, value: bytes, key: bytes | None = b"k", attempt: int = 1, *more: tuple[str, bytes]) -> int:
        """A record that failed at this attempt: after 1 due in 100 ms, after 2 in 1 s, later in 30 s."""
        headers: Headers = [("tickover-attempt", b"%d" % attempt), *more]
        stamp = (CREATE_TIME, self.clock.now_ms)
        return self.broker.append(SOURCE, 0, FakeRecord((SOURCE, 0, -1), stamp, (key, value), headers)).offset()

    @property
    def parked(self) -> int:
        assert self.lane.order is not None
        return self.lane.order.parked


@pytest.fixture(name="bench", params=[False, True], ids=["at_least_once", "exactly_once"])
def bench_fixture(request: pytest.FixtureRequest) -> OrderBench:
    return OrderBench(trouble=(lambda: "") if request.param else None)


def test_a_later_record_of_a_key_waits_for_the_one_before_and_other_keys_flow(bench: OrderBench) -> None:
    sent_ms = bench.clock.now_ms
    bench.fail(b"first", attempt=2)
    for value in (b"second", b"third"):
        bench.fail(value)
    bench.fail(b"other", key=b"another")
    bench.fail(b"none", key=None)
    bench.wait_until(lambda: len(bench.records("mail")) == 2)
    assert sorted(map(str, bench.values("mail"))) == ["b'none'", "b'other'"]
    assert bench.parked == 2
    bench.wait_until(lambda: len(bench.records("mail")) == 5)
    assert bench.values("mail")[2:] == [b"first", b"second", b"third"]
    assert bench.clock.now_ms >= sent_ms + 1_000
    assert [dict(record.named or ())["tickover-due"] for record in bench.records("mail")[2:]] == [
        b"%d" % (sent_ms + 1_000)
    ] * 3, "they were due when the first one was"
    bench.run(2_000)
    assert bench.parked == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_parked_behind_one_in_the_overflow(bench: OrderBench, restarted: bool) -> None:
    bench.fail(b"far", attempt=3)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.fail(b"near")
    bench.wait_until(lambda: bench.lane.overflow_held == 2)
    if restarted:
        bench.restart()
        bench.use(ordered())
        bench.wait_until(lambda: bench.replica.assignment.lanes)
    bench.fail(b"nearer")
    bench.fail(b"other", key=b"another")
    bench.wait_until(lambda: bench.values("mail") == [b"other"])
    assert bench.parked == 2
    bench.wait_until(lambda: len(bench.records("mail")) == 4)
    assert bench.values("mail") == [b"other", b"far", b"near", b"nearer"]


def test_one_that_is_near_waits_until_the_one_before_has_come_from_the_overflow(bench: OrderBench) -> None:
    bench.fail(b"far", attempt=3)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.run(FAR_MS - 1_500)
    bench.fail(b"near", attempt=2)
    bench.wait_until(lambda: len(bench.records("mail")) == 2)
    assert bench.values("mail") == [b"far", b"near"]


def test_a_cancelled_one_is_not_waited_for_for_ever(bench: OrderBench) -> None:
    bench.fail(b"first", b"k", 2, ("tickover-id", b"a"))
    bench.fail(b"second")
    bench.fail(b"", b"k", 1, ("tickover-id", b"a"), ("tickover-action", b"cancel"))
    bench.wait_until(lambda: bench.values("mail") == [b"second"])
    bench.run(2_000)
    assert bench.values("mail") == [b"second"]


def test_what_is_fired_by_hand_goes_its_own_way(bench: OrderBench) -> None:
    bench.fail(b"first", attempt=2)
    bench.fail(b"second", b"k", 1, ("tickover-id", b"a"))
    bench.fail(b"", b"k", 1, ("tickover-id", b"a"), ("tickover-action", b"fire"))
    bench.wait_until(lambda: len(bench.records("mail")) == 2)
    assert bench.values("mail") == [b"second", b"first"]


def test_at_the_limit_intake_of_the_partition_waits(bench: OrderBench) -> None:
    bench.use(ordered({"by": "key", "parked_max": 2}))
    bench.fail(b"0", attempt=2)
    for number in range(1, 6):
        bench.fail(b"%d" % number)
    bench.run(500)
    assert bench.parked == 2
    assert bench.lane.intake_held
    bench.wait_until(lambda: len(bench.records("mail")) == 6)
    assert bench.values("mail") == [b"%d" % number for number in range(6)]
    bench.run(200)
    assert not bench.lane.intake_held


def test_at_the_limit_more_are_dead_lettered(bench: OrderBench) -> None:
    bench.use(ordered({"by": "key", "parked_max": 2, "when_full": "dead_letter"}))
    bench.fail(b"0", attempt=2)
    for number in range(1, 5):
        bench.fail(b"%d" % number)
    bench.wait_until(lambda: len(bench.records("mail")) == 3)
    assert bench.values("mail") == [b"0", b"1", b"2"]
    assert bench.values("dead") == [b"3", b"4"]
    assert {dict(record.named or ())["tickover-reason"] for record in bench.records("dead")} == {b"order_full"}
    assert {dict(record.named or ())["tickover-attempt"] for record in bench.records("dead")} == {b"1"}


def test_a_record_handed_over_again_is_not_overtaken() -> None:
    fails = [True]
    bench = OrderBench(trouble=lambda: "abort" if fails[0] else "")
    bench.fail(b"first")
    bench.wait_until(lambda: bench.coordinator is not None and bench.coordinator.aborted > 0)
    for number in range(5):
        bench.fail(b"%d" % number)
        bench.run(60)
    fails[0] = False
    bench.wait_until(lambda: len(bench.records("mail")) == 6)
    assert bench.values("mail") == [b"first", *(b"%d" % number for number in range(5))]


@pytest.mark.parametrize("many", [b"ordered", b"plain"])
def test_a_backlog_in_order_and_other_records_share_what_may_be_emitted(
    bench: OrderBench, monkeypatch: pytest.MonkeyPatch, many: bytes
) -> None:
    monkeypatch.setattr("sidecar.engine.engine.EMIT_PER_TURN_MAX", 10)
    few = b"plain" if many == b"ordered" else b"ordered"
    for value, count in ((many, 300), (few, 30)):
        for number in range(count):
            bench.fail(value, b"%d" % number if value == b"ordered" else None)
    bench.wait_until(lambda: bench.values("mail").count(few) == 30)
    assert bench.values("mail").count(many) <= 60
    bench.wait_until(lambda: len(bench.values("mail")) == 330)


def test_a_policy_that_begins_to_order_finds_what_is_held_of_its_name(bench: OrderBench) -> None:
    bench.use(ordered(None))
    bench.fail(b"far", attempt=3)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.fail(b"soon", attempt=2)
    bench.run(100)
    bench.use(ordered())
    bench.fail(b"after")
    bench.wait_until(lambda: len(bench.records("mail")) == 3)
    assert bench.values("mail") == [b"soon", b"far", b"after"]


def test_a_policy_that_orders_no_more_lets_its_records_go_when_they_are_due(bench: OrderBench) -> None:
    bench.fail(b"first", attempt=2)
    bench.run(100)
    bench.use(ordered(None))
    bench.fail(b"second")
    bench.wait_until(lambda: len(bench.records("mail")) == 2)
    assert bench.values("mail") == [b"second", b"first"]


def test_while_redis_is_away_a_new_owner_asks_now_and_then(bench: OrderBench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fail(b"far", attempt=3)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    working = bench.overflow.failing

    def fail(method: str, after: bool) -> None:
        if method == "promote":
            raise OverflowUnavailable("down")

    bench.restart()
    bench.use(ordered())
    bench.wait_until(lambda: bench.replica.assignment.lanes)
    bench.overflow.failing = fail
    bench.fail(b"near")
    bench.run(3_000)
    assert bench.values("mail") == []
    said = [record for record in caplog.records if "isn't known yet" in record.message]
    assert 1 < len(said) < 10
    bench.overflow.failing = working
    bench.wait_until(lambda: len(bench.records("mail")) == 2)
    assert bench.values("mail") == [b"far", b"near"]


def test_who_comes_after_a_refused_one_waits_until_that_has_left(bench: OrderBench) -> None:
    def limit(records: int) -> None:
        policy = ordered().policies["reminders"].policy
        limited = policy.model_copy(update={"quota": Quota(records=records)})
        bench.use(PolicyTable(1, {"reminders": Versioned(limited, 1, "me", 0, "api")}))

    limit(1)
    bench.fail(b"another", key=b"other", attempt=3)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.fail(b"refused")
    bench.wait_until(lambda: bench.lane.accepted == 2)
    limit(2)
    bench.fail(b"after")
    bench.wait_until(lambda: bench.lane.accepted == 3)
    assert bench.lane.order is not None
    assert [item.offset for item in bench.lane.order.queue] == [2]
    assert bench.lane.settled_count == 0
    bench.wait_until(lambda: bench.values("mail") == [b"after"])
    assert bench.values(QUARANTINE) == [b"refused"]


def test_of_several_refused_ones_of_a_key_each_is_waited_for_whichever_leaves_first() -> None:
    order = BareOrder(lambda held: None)
    order.refuse(1, 10)
    order.refuse(1, 11)
    order.settled([11])
    assert 1 in order.refused
    order.settled([10])
    assert 1 not in order.refused


GOLD = ("tenant", b"gold")


def test_another_policy_that_begins_to_order_finds_what_is_held_of_its_name(bench: OrderBench) -> None:
    bench.use(with_two(None))
    bench.fail(b"far", b"k", 3, GOLD)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.use(with_two(Order(by="key")))
    bench.fail(b"near", b"k", 1, GOLD)
    bench.fail(b"plain")
    bench.wait_until(lambda: len(bench.records("mail")) == 3)
    assert bench.values("mail") == [b"plain", b"far", b"near"]


def test_a_key_does_not_wait_for_one_that_was_placed_while_nothing_was_ordered(bench: OrderBench) -> None:
    bench.replica.targets.partitions.pop("other")
    first = ("tickover-target", b"other")
    bench.fail(b"first", b"k", 1, first)
    bench.step()
    bench.use(ordered(None))
    bench.wait_until(lambda: bench.values("other") == [b"first"])
    bench.use(ordered())
    bench.fail(b"second")
    bench.wait_until(lambda: bench.values("mail") == [b"second"])


def test_what_waits_for_a_promotion_can_be_cancelled(bench: OrderBench) -> None:
    bench.fail(b"far", attempt=3)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.run(FAR_MS - 2_500)
    bench.fail(b"near", b"k", 2, ("tickover-id", b"a"))
    bench.fail(b"", b"k", 1, ("tickover-id", b"a"), ("tickover-action", b"cancel"))
    bench.fail(b"last", b"k", 2)
    bench.wait_until(lambda: len(bench.records("mail")) == 2)
    assert bench.values("mail") == [b"far", b"last"]


def test_a_parked_record_that_is_cancelled_makes_room(bench: OrderBench) -> None:
    bench.use(ordered({"by": "key", "parked_max": 1}))
    bench.fail(b"far", attempt=3)
    bench.fail(b"parked", b"k", 1, ("tickover-id", b"a"))
    bench.run(100)
    bench.wait_until(lambda: bench.parked == 1)
    bench.fail(b"", b"k", 1, ("tickover-id", b"a"), ("tickover-action", b"cancel"))
    bench.wait_until(lambda: bench.parked == 0)
    bench.fail(b"another", b"k", 1)
    bench.wait_until(lambda: bench.parked == 1)
    bench.wait_until(lambda: len(bench.records("mail")) == 2)
    assert bench.values("mail") == [b"far", b"another"]


def test_a_key_is_forgotten_when_its_last_record_is_settled_and_not_before() -> None:
    order = BareOrder(lambda held: 1)
    order.all_read_again(0)
    start = Position(0, -1)
    for offset, due_ms in ((1, 10), (2, 20)):
        order.note(1, held_at(offset, due_ms), False, start)
        order.fired([held_at(offset, due_ms)])
    order.handed_over(1)
    order.settled([1])
    order.forget_left(100, start)
    assert order.before(1, 3) == Tail(20, 2, False), "a later one comes behind it"
    order.handed_over(1)
    order.settled([2])
    assert order.before(1, 3) is None


def test_the_place_of_one_that_was_cancelled_is_kept_for_those_before_it() -> None:
    order = BareOrder(lambda held: 1)
    order.all_read_again(0)
    start = Position(0, -1)
    order.note(1, held_at(1, 1_020), False, start)
    order.note(1, held_at(2, 1_020), False, start)
    order.struck(held_at(2, 1_020))
    order.settled([2])
    order.forget_left(1_020, start)
    assert order.before(1, 3) == Tail(1_020, 2, False)
    order.forget_left(1_999, start)
    assert order.before(1, 3) == Tail(1_020, 2, False), "it looks once a second"
    order.forget_left(2_000, start)
    assert order.before(1, 3) is None


def test_the_places_of_earlier_ones_are_known_while_one_that_was_read_again_waits_for_its_own() -> None:
    order = BareOrder(lambda held: 1)
    cursor = Position(10, 0)
    order.note(1, held_at(2, 20), True, cursor)
    order.note(1, held_at(7, 30), True, cursor)
    order.wait_for_place(1, 5)
    order.all_read_again(6)
    assert order.before(1, 5) == Tail(20, 2, True), "it comes behind the one before it, and not behind the last"
    order.placed(5)
    order.wait_for_place(1, 8)  # this one was not read before
    order.all_read_again(6)
    assert order.before(1, 5) is None
    assert order.before(1, 8) == Tail(30, 7, True)


def test_what_has_fired_is_counted_until_it_is_handed_over_and_when_it_comes_back() -> None:
    order = BareOrder(lambda held: held.offset % 2)
    seen = []
    for step in (
        lambda: order.fired([held_at(1, 30), held_at(2, 20), held_at(3, 40)]),
        lambda: order.handed_over(0),
        lambda: order.handed_over(1),
        lambda: order.came_back(held_at(1, 30), single=True, isolated=False),
        lambda: order.settled([2]),
        order.clear_waiting,
    ):
        step()
        assert order.fired_waiting == len(order.waiting)
        seen.append((order.fired_waiting, order.oldest_due_ms()))
    assert seen == [(3, 20), (2, 30), (1, 40), (2, 30), (2, 30), (0, -1)]


def test_a_moved_record_that_is_redone_goes_its_own_way() -> None:
    order = BareOrder(lambda held: 1)
    order.redone(held_at(5, 20)._replace(source=1))
    assert (order.on_the_way, order.before(1, 9)) == (set(), None)
    order.redone(held_at(6, 20))
    assert (order.on_the_way, order.before(1, 9)) == ({6}, Tail(20, 6, True))


def held_at(offset: int, due_ms: int) -> Held:
    return Held(due_ms, offset, "mail", -1, b"k", None, [], "reminders@1", None, 1, -1, [], -1, "", 0)


def test_what_waits_for_two_that_the_overflow_has_waits_for_both() -> None:
    order = BareOrder(lambda held: 1)
    order.all_read_again(0)
    order.block(1, Tail(10, 1, True))  # of a record in the wheel at 5
    order.block(1, Tail(10, 5, True))  # of one at 7, which comes behind it
    passed = Position(20, 0)
    waits = [order.must_wait(1, offset, 100, passed) for offset in (1, 5, 7)]
    assert waits == [False, True, True]
    order.settled([1])
    assert [order.must_wait(1, offset, 100, passed) for offset in (5, 7)] == [False, True]
    order.settled([5])
    assert not order.must_wait(1, 7, 100, passed)
