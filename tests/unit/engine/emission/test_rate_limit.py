"""Limited targets: how fast, for whom, and that a waiting record is held like any other."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from policies.model import Policy, Versioned
from policies.table import Limit, PolicyTable, is_limiting, limits_of
from sidecar.engine.emission.rate_limit import RateLimiter
from sidecar.ledger.block import decode
from sidecar.model.partitioner import partition_of
from sidecar.model.record import Outcome
from tests.simulation.fake_kafka import FakeError, Refused
from tests.unit.engine_bench import LANE, SOURCE, Bench

SLOW = {"topic": "mail", "rate": "10/s", "burst": 1}
FREE = {
    "name": "free",
    "match": {"topics": [SOURCE], "headers": {"to": "other"}},
    "delay": {},
    "target": {"topic": "other"},
}
GUARANTEES = pytest.mark.parametrize("trouble", [None, str], ids=["at_least_once", "exactly_once"])
Trouble = Callable[[], str] | None


def rules(*targets: dict[str, Any], topics: tuple[str, ...] = (SOURCE,), version: int = 9) -> PolicyTable:
    """One delay policy for each source, with these targets."""
    documents = [
        {
            "name": f"p{place}",
            "match": {"topics": [topic]},
            "delay": {"default": "1s"},
            "target": target,
            "dead_letter": {"topic": "dead"},
        }
        for place, (topic, target) in enumerate(zip(topics, targets, strict=True))
    ]
    policies = [Policy.model_validate(document) for document in (*documents, FREE)]
    return PolicyTable(version, {policy.name: Versioned(policy, version, "me", 0, "api") for policy in policies})


def limited(target: dict[str, Any] | None = None, **settings: Any) -> Bench:
    bench = Bench(**settings)
    limit(bench, target or SLOW)
    return bench


def limit(bench: Bench, target: dict[str, Any]) -> None:
    version = max(bench.tables) + 1
    bench.tables[version] = bench.replica.engine.table = rules(target, version=version)
    bench.run(100)  # in force


def at_rest(bench: Bench) -> None:
    bench.run(300)
    emitter = bench.replica.emitter
    assert (emitter.backlog, emitter.load.records, emitter.load.bytes, len(bench.lane.ids)) == (0, 0, 0, 0)
    assert bench.replica.publisher.survey() == 0


def times_of(bench: Bench, topic: str) -> list[int]:
    return [record.handed_over_ms for record in bench.records(topic)]


def waiting(bench: Bench) -> int:
    return bench.replica.emitter.gate.count


@GUARANTEES
def test_a_limited_target_gets_its_rate_in_order_of_due_and_others_do_not_wait(trouble: Trouble) -> None:
    bench = limited(trouble=trouble)
    for number in range(30):
        bench.send(b"%d" % number, 200 + 10 * (30 - number))  # the later, the earlier due
        bench.send(b"%d" % number, 500, [("to", b"other")])
    due_ms = bench.clock.now_ms + 510
    bench.wait_until(lambda: len(bench.values("other")) == 30, 2_000)
    assert waiting(bench) > 20
    bench.wait_until(lambda: len(bench.values("mail")) == 30)
    assert bench.values("mail") == [b"%d" % number for number in reversed(range(30))]
    times = times_of(bench, "mail")
    assert all(later - sooner >= 95 for sooner, later in pairwise(times)), times
    assert times[-1] - times[0] <= 3_100
    dues = [int(dict(record.headers() or [])["tickover-due"] or b"") for record in bench.records("mail")]
    assert dues == sorted(dues), "true due times, whatever the wait"
    assert dues[-1] <= due_ms
    at_rest(bench)
    assert bench.replica.tally.early == 0


def test_what_waits_is_seen_in_stats_and_held_and_overdue() -> None:
    bench = limited()
    for _ in range(20):
        bench.send(b"v", 200)
    bench.run(1_000)
    stats = bench.replica.publisher.publish(bench.clock.now_ms)
    assert stats.targets["mail"].waiting == waiting(bench) == stats.topics[SOURCE].wheel > 5
    assert stats.targets["mail"].rate == 10.0
    assert 600 < stats.oldest_overdue_ms < 1_000
    view = [record for records, start in bench.replica.emitter.due_of(bench.lane) for record in records[start:]]
    assert len(view) == waiting(bench)
    bench.wait_until(lambda: len(bench.values("mail")) == 20)
    at_rest(bench)


@GUARANTEES
@pytest.mark.parametrize("action", [b"cancel", b"reschedule", b"fire"])
def test_a_waiting_record_can_be_acted_on(action: bytes, trouble: Trouble) -> None:
    bench = limited(trouble=trouble)
    for number in range(10):
        bench.send(b"%d" % number, 200, [("tickover-id", b"id%d" % number)])
    bench.run(400)
    assert waiting(bench) > 5
    when = [("tickover-delay", b"3s")] if action == b"reschedule" else []
    bench.send(b"", None, [("tickover-id", b"id7"), ("tickover-action", action), *when])
    bench.run(100)
    left = [value for value in (b"%d" % number for number in range(10)) if action != b"cancel" or value != b"7"]
    bench.wait_until(lambda: len(bench.values("mail")) == len(left))
    assert bench.values("mail") == [value for value in left if value != b"7"] + [b"7"] * (action != b"cancel")
    at_rest(bench)
    outcomes = [Outcome(found) for record in bench.ledger for found in decode(record.value()).settled.outcomes]
    assert outcomes.count(Outcome.CANCELLED) == (action == b"cancel")
    assert outcomes.count(Outcome.MOVED) == (action != b"cancel")


def test_what_was_let_through_is_too_late_to_cancel() -> None:
    bench = limited()
    bench.send(b"v", 200, [("tickover-id", b"x")])
    bench.wait_until(lambda: bench.values("mail"))
    bench.send(b"", None, [("tickover-id", b"x"), ("tickover-action", b"cancel")])
    bench.run(500)
    assert bench.values("mail") == [b"v"]
    at_rest(bench)


@GUARANTEES
def test_revoked_and_crashed_lanes_lose_and_repeat_nothing(trouble: Trouble) -> None:
    bench = limited(trouble=trouble)
    for number in range(30):
        bench.send(b"%d" % number, 200)
    bench.run(1_000)
    assert waiting(bench) > 10
    first = bench.replica
    first.stop()
    assert (first.emitter.load.records, first.emitter.load.bytes, first.emitter.backlog) == (0, 0, 0)
    bench.replica = bench.new_replica()
    bench.run(500)
    bench.restart()
    bench.wait_until(lambda: len(bench.values("mail")) >= 30)
    at_rest(bench)
    assert sorted(set(bench.values("mail")), key=str) == sorted((b"%d" % n for n in range(30)), key=str)
    if trouble is not None:
        assert len(bench.values("mail")) == 30


def test_memory_stays_bounded_and_the_rest_waits_in_the_overflow() -> None:
    bench = limited({**SLOW, "rate": "50/s", "burst": 5}, wheel_records_max=40)
    for number in range(200):
        bench.send(b"%d" % number, 4_000)
    most = 0

    def all_emitted() -> bool:
        nonlocal most
        most = max(most, bench.replica.emitter.load.records)
        return len(bench.values("mail")) == 200

    bench.wait_until(all_emitted)
    assert most <= 40
    assert bench.values("mail") == [b"%d" % number for number in range(200)]
    at_rest(bench)


def test_what_expires_while_it_waits_takes_nobodys_place() -> None:
    bench = limited({**SLOW, "rate": "1/s"})
    soon = b"%d" % (bench.clock.now_ms + 700)
    for _ in range(20):
        bench.send(b"stale", 200, [("tickover-expires-at", soon)])
    bench.send(b"fresh", 300)
    bench.wait_until(lambda: b"fresh" in bench.values("mail"), 3_000)
    assert bench.values("mail") == [b"stale", b"fresh"]
    assert len(bench.values("dead")) == 19
    at_rest(bench)


def test_a_limit_that_is_lifted_lets_all_go_and_one_that_is_set_counts_for_what_is_held() -> None:
    bench = limited()
    for number in range(50):
        bench.send(b"%d" % number, 300)
    bench.run(500)
    assert waiting(bench) > 40
    limit(bench, {"topic": "mail"})
    bench.run(50)
    assert len(bench.values("mail")) == 50
    for number in range(10):
        bench.send(b"%d" % number, 1_000)
    limit(bench, SLOW)
    bench.run(1_100)
    assert waiting(bench) > 5
    bench.wait_until(lambda: len(bench.values("mail")) == 60)
    at_rest(bench)
    assert bench.replica.publisher.publish(bench.clock.now_ms).targets.keys() == {"mail"}


def test_a_target_that_does_not_acknowledge_is_tried_with_few_and_gets_no_rush_when_it_is_back() -> None:
    bench = limited({**SLOW, "rate": "20/s"}, trouble=str)
    bench.broker.short = {"mail"}
    for number in range(100):
        bench.send(b"%d" % number, 200)
    bench.wait_until(lambda: bench.replica.emitter.redelivery.one_by_one, 90_000)
    bench.run(10_000)
    assert waiting(bench) > 60, "what had gone through would go at once when it is back"
    bench.broker.short = set()
    bench.wait_until(lambda: len(bench.values("mail")) == 100, 200_000)
    at_rest(bench)
    assert sorted(bench.values("mail"), key=str) == sorted((b"%d" % number for number in range(100)), key=str)


@pytest.mark.slow
@GUARANTEES
def test_of_a_limited_target_with_a_dead_partition_only_what_is_for_that_one_waits(trouble: Trouble) -> None:
    """A target that is away costs the others little of their rate, and when it is back there is no rush."""
    bench = Bench(trouble=trouble)
    bench.broker.create("mail", 4)
    bench.replica.targets.partitions["mail"] = 4
    limit(bench, {**SLOW, "rate": "20/s"})
    bench.broker.short = {("mail", 2)}
    keys = [b"%d" % number for number in range(1_000)]
    for key in keys:
        bench.send(key, 200, key=key)
        bench.step(100)
    bench.run(10_000)
    dead = {key for key in keys if partition_of(key, 4) == 2}
    assert sorted(set(keys) - dead) == sorted(visible(bench, "mail"))
    assert bench.replica.targets.count <= len(dead)
    back_ms = bench.clock.now_ms
    bench.broker.short = set()
    bench.wait_until(lambda: len(visible(bench, "mail")) == len(keys), 200_000)
    at_rest(bench)
    assert sorted(visible(bench, "mail")) == sorted(keys)
    assert all(len(times) == 1 for times in visible(bench, "mail").values())
    late = [time for times in visible(bench, "mail").values() for time in times if time >= back_ms]
    assert max(sum(1 for time in late if start <= time < start + 1_000) for start in late) <= 30


def visible(bench: Bench, topic: str) -> dict[bytes, list[int]]:
    """Values that readers of committed records see in all partitions, and when each was handed over, in ms."""
    found: dict[bytes, list[int]] = {}
    for log in bench.broker.logs[topic]:
        for record in (record for record in log.records if record.offset() not in log.undecided):
            found.setdefault(record.value() or b"", []).append(record.handed_over_ms)
    return found


def test_a_full_producer_gathers_no_rush() -> None:
    bench = limited({**SLOW, "rate": "20/s"})
    for number in range(60):
        bench.send(b"%d" % number, 100)
    bench.run(50)
    produce, full = bench.replica.output.produce, True

    def refuse(*record: Any) -> None:
        if full:
            raise BufferError("full")
        produce(*record)

    bench.replica.output.produce = refuse  # type: ignore[method-assign]
    bench.run(2_000)
    assert waiting(bench) >= 58
    full = False
    bench.wait_until(lambda: len(bench.values("mail")) == 60)
    times = times_of(bench, "mail")
    assert max(sum(1 for time in times if start <= time < start + 500) for start in times) <= 14
    at_rest(bench)


def test_a_record_that_is_refused_and_tried_again_has_had_its_turn() -> None:
    bench = limited()
    produce, words = bench.replica.output.produce, iter(["_TRANSPORT"])

    def refuse_at_first(topic: str, *record: Any) -> None:
        if topic == "mail" and (word := next(words, None)):
            raise Refused(FakeError(word))
        produce(topic, *record)

    bench.replica.output.produce = refuse_at_first  # type: ignore[method-assign]
    for number in range(3):
        bench.send(b"%d" % number, 100)
    bench.wait_until(lambda: len(bench.values("mail")) == 3)
    at_rest(bench)


# --- which limit ------------------------------------------------------------------------------------------------------


def test_the_lowest_of_several_policies_counts_for_all_that_lead_there() -> None:
    table = rules(
        {"topic": "mail", "rate": "500/s"}, {"allow": ["ma*"], "rate": "30/m", "burst": 9}, {"topic": "mail"},
        topics=("a", "b", "c"),
    )  # fmt: skip
    there = {"a": 1, "b": 1, "c": 1, "d": 1}
    assert limits_of("mail", there, table) == (Limit(0.5, 9), None, ("a", "b", "c"))
    assert limits_of("mast", there, table) == (Limit(0.5, 9), None, ("b",))
    assert limits_of("mail", {"a": 1}, table) == (Limit(500.0, 500), None, ("a",))
    assert limits_of("other", there, table) == (None, None, ())


def test_a_retry_topic_leads_back_to_where_it_came_from() -> None:
    backoff = {"kind": "fixed", "delay": "1s"}
    policy = Policy.model_validate(
        {
            "name": "retries",
            "match": {"topics": ["*-retry"]},
            "retry": {"attempts": 3, "backoff": backoff},
            "target": {"rate": 7},
        }
    )
    table = PolicyTable(1, {"retries": Versioned(policy, 1, "me", 0, "api")})
    assert is_limiting(table)
    assert limits_of("orders", {"orders-retry": 3, "mail-retry": 1}, table) == (Limit(7.0, 7), None, ("orders-retry",))


@pytest.mark.parametrize(("of", "rate"), [({}, 10.0), ({SOURCE: 4}, 2.5), ({SOURCE: 1, "unrelated": 9}, 10.0)])
def test_a_replica_takes_the_share_of_its_partitions(of: dict[str, int], rate: float) -> None:
    bench = Bench()
    gate = RateLimiter()
    gate.sources = {SOURCE: 1} | of
    gate.follow(rules(SLOW), {SOURCE: 1}, 0)
    assert bench.lane.id == LANE
    gate.sift(bench.lane, [_held(bench)])
    assert gate.flows()["mail"].rate == rate


def _held(bench: Bench) -> Any:
    bench.send(b"v", 1_500)
    bench.run(100)
    return next(iter(bench.lane.wheel.buckets.values()))[0]


def test_a_target_that_was_free_is_limited_as_soon_as_a_policy_says_so() -> None:
    bench = Bench()
    gate, held = RateLimiter(), _held(bench)
    gate.sources = {SOURCE: 1}
    gate.follow(rules({"topic": "unrelated", "rate": 1}), {SOURCE: 1}, 0)
    assert gate.sift(bench.lane, [held]) == [held]
    gate.follow(rules(SLOW), {SOURCE: 1}, 50)
    assert gate.sift(bench.lane, [held]) == []
    assert gate.count == 1


def test_nothing_is_said_of_a_limited_target_that_was_deleted_once_nothing_waits_for_it() -> None:
    bench = limited()
    engine, gate = bench.replica.engine, bench.replica.emitter.gate
    for number in range(5):
        bench.send(b"%d" % number, 200)
    bench.run(300)
    assert waiting(bench) > 2
    engine.forget_topics(frozenset({"mail", SOURCE}))
    assert gate.flows()["mail"].waiting > 2, "what waits is not forgotten"
    bench.wait_until(lambda: len(bench.values("mail")) == 5)
    at_rest(bench)
    engine.forget_topics(frozenset({"mail", SOURCE}))
    assert gate.flows() == {}
    assert bench.replica.publisher.publish(bench.clock.now_ms).topics[SOURCE].emitted == 5, "its lanes are still here"
    bench.send(b"again", 200)
    bench.wait_until(lambda: len(bench.values("mail")) == 6)
    assert gate.flows()["mail"].rate == 10.0


def test_without_any_limit_the_gate_is_not_asked() -> None:
    bench = Bench()
    gate = bench.replica.emitter.gate
    gate.sift = None  # type: ignore[assignment, method-assign]
    bench.send(b"v", 100)
    bench.wait_until(lambda: bench.values("mail"))
    assert not gate.active
    assert gate.flows() == {}
