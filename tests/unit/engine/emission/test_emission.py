from collections.abc import Callable
from typing import Any

import pytest

from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.engine.emission.targets import ANSWER_AGE_MAX_MS
from sidecar.engine.partition.exits import EmissionError
from sidecar.ledger.block import decode
from sidecar.model.header_codec import header_bytes
from sidecar.model.record import Headers, Outcome, Place
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from tests.simulation.fake_kafka import VALUE_BYTES_MAX, FakeError, Refused
from tests.simulation.replica import LEDGER
from tests.simulation.workload import QUARANTINE
from tests.unit.engine_bench import LANE, SOURCE, Bench


@pytest.fixture(name="bench")
def bench_fixture() -> Bench:
    return Bench()


def retries() -> PolicyTable:
    policy = Policy.model_validate(
        {
            "name": "retries",
            "match": {"topics": [SOURCE]},
            "retry": {"attempts": 5, "backoff": {"kind": "fixed", "delay": "1s"}},
            "target": {"topic": "mail"},
            "dead_letter": {"topic": "dead"},
        }
    )
    return PolicyTable(1, {"retries": Versioned(policy, 1, "me", 0, "api")})


def attempts_in_ledger(bench: Bench) -> list[int]:
    return [attempt for record in bench.ledger for attempt in decode(record.value()).settled.attempts]


def headers_in(bench: Bench, topic: str) -> dict[str, bytes | None]:
    [record] = bench.records(topic)
    return dict(record.headers() or [])


def test_a_record_for_a_topic_that_is_not_there_is_quarantined_as_it_came(bench: Bench) -> None:
    bench.send(b"v", 200, [("mine", b"1"), ("tickover-target", b"nowhere")])
    bench.wait_until(lambda: bench.values(QUARANTINE))
    [record] = bench.records(QUARANTINE)
    assert record.pair == (b"k", b"v")
    assert (record.headers() or [])[:3] == [
        ("mine", b"1"), ("tickover-target", b"nowhere"), ("tickover-delay", b"200")
    ]  # fmt: skip
    assert headers_in(bench, QUARANTINE)["tickover-reason"] == b"unknown_target"


def test_a_target_that_vanishes_while_a_record_is_held_quarantines_it(bench: Bench) -> None:
    bench.send(b"v", 500, [("tickover-target", b"other")])
    bench.run(100)
    bench.broker.logs["other"].clear()
    bench.wait_until(lambda: bench.values(QUARANTINE))
    assert headers_in(bench, QUARANTINE)["tickover-reason"] == b"unknown_target"
    assert headers_in(bench, QUARANTINE)["tickover-target"] == b"other"


def test_what_expires_while_it_waits_is_a_dead_letter(bench: Bench) -> None:
    due_ms = bench.clock.now_ms + 300
    bench.send(b"v", 300, [("tickover-expires-at", b"%d" % (due_ms + 10))])
    bench.run(100)
    bench.clock.advance(1_000)
    bench.wait_until(lambda: bench.values("dead"))
    headers = headers_in(bench, "dead")
    assert (headers["tickover-reason"], headers["tickover-source"]) == (b"expired", b"reminders/0/0")
    assert bench.values("mail") == []


@pytest.mark.parametrize("failed", [1, 3])
def test_a_retry_that_expires_while_it_waits_tells_of_the_attempt_that_failed(bench: Bench, failed: int) -> None:
    bench.replica.engine.table = retries()
    expires_ms = bench.clock.now_ms + 310
    bench.send(b"v", 300, [("tickover-attempt", b"%d" % failed), ("tickover-expires-at", b"%d" % expires_ms)])
    bench.run(100)
    bench.clock.advance(1_000)
    bench.wait_until(lambda: bench.values("dead"))
    headers = headers_in(bench, "dead")
    assert (headers["tickover-reason"], headers["tickover-attempt"]) == (b"expired", b"%d" % failed)
    bench.wait_until(lambda: attempts_in_ledger(bench))
    assert attempts_in_ledger(bench) == [failed + 1]  # as decided


def test_a_missing_dead_letter_topic_makes_it_a_quarantined_one(bench: Bench) -> None:
    bench.broker.logs["dead"].clear()
    bench.send(b"v", 300, [("tickover-expires-at", b"%d" % (bench.clock.now_ms + 100))])
    bench.wait_until(lambda: bench.values(QUARANTINE))
    headers = headers_in(bench, QUARANTINE)
    assert headers["tickover-reason"] == b"unknown_target"
    assert b"expired" in (headers["tickover-detail"] or b"")


def test_a_missing_quarantine_topic_is_a_problem_that_passes(bench: Bench) -> None:
    bench.broker.logs[QUARANTINE].clear()
    bench.send(b"v", headers=[("tickover-delay", b"never")])
    bench.run(1_000)
    assert QUARANTINE in bench.replica.emitter.problem
    bench.replica.emitter.drop(set())
    bench.run(6_000)
    assert QUARANTINE in bench.replica.emitter.problem, "it is still waited for"
    bench.broker.create(QUARANTINE, 1)
    bench.wait_until(lambda: bench.values(QUARANTINE))
    bench.run(200)
    assert bench.replica.emitter.problem == ""
    assert bench.lane.offsets.low == 1


def test_the_missing_quarantine_topic_is_no_problem_of_whom_the_record_has_left(bench: Bench) -> None:
    bench.broker.logs[QUARANTINE].clear()
    bench.send(b"v", headers=[("tickover-delay", b"never")])
    bench.run(1_000)
    assert bench.replica.emitter.problem
    bench.replica.assignment.lost([bench.lane.id])
    assert bench.replica.emitter.problem == ""


@pytest.mark.parametrize(
    ("headers", "ids"),
    [
        ([("tickover-id", b"a"), ("tickover-delay", b"never")], {0: "a"}),
        ([("tickover-id", b"a"), ("tickover-delay", b"11d")], {0: "a"}),
        ([("tickover-id", b"a"), ("tickover-id", b"b")], {}),
        ([("tickover-id", b"\xff")], {}),
        ([("tickover-id", b"")], {}),
        ([("tickover-id", b"a" * 1_025)], {}),
        ([("tickover-id", b"a"), ("tickover-action", b"dance")], {}),  # it is the id of whom it is meant for
    ],
)
def test_the_ledger_has_the_id_of_what_is_quarantined_at_once(bench: Bench, headers: Headers, ids: object) -> None:
    """By it the message is looked up."""
    bench.send(b"v", headers=headers)
    blocks = len(bench.ledger)
    bench.wait_until(lambda: len(bench.ledger) > blocks)
    [settled] = [decode(record.value()).settled for record in bench.ledger[blocks:]]
    assert (settled.outcomes, settled.ids) == ([Outcome.QUARANTINED], ids)


@pytest.mark.parametrize("share", [1, 3])
def test_what_is_too_large_is_quarantined_by_reference(bench: Bench, share: int) -> None:
    """Refused by its report, and refused by the producer itself."""
    bench.send(b"x" * (share * VALUE_BYTES_MAX + 1), 100)
    bench.send(b"small", 100)
    bench.wait_until(lambda: bench.values(QUARANTINE) and bench.values("mail"))
    [record] = bench.records(QUARANTINE)
    assert record.pair == (b"k", None)
    assert headers_in(bench, QUARANTINE)["tickover-reason"] == b"too_large"
    assert headers_in(bench, QUARANTINE)["tickover-source"] == b"reminders/0/0"
    assert bench.values("mail") == [b"small"]
    bench.run(200)
    assert bench.lane.offsets.low == 2


def test_what_leaves_its_value_behind_says_so_whatever_its_reason(bench: Bench) -> None:
    """By its detail a redrive knows that there is nothing to send."""
    bench.send(b"x" * (3 * VALUE_BYTES_MAX), headers=[("tickover-delay", b"soon")])
    bench.wait_until(lambda: bench.values(QUARANTINE))
    [record] = bench.records(QUARANTINE)
    found = headers_in(bench, QUARANTINE)
    assert (record.pair, found["tickover-reason"]) == ((b"k", None), b"bad_header")
    assert DeadLetter(Place(QUARANTINE, 0, 0), 1, b"k", None, [*found.items()]).is_by_reference


def test_a_quarantine_that_takes_little_gets_the_place_and_the_reason(bench: Bench) -> None:
    produce = bench.replica.output.produce

    def refuse(topic: str, value: object, key: bytes, partition: int, report: object, *rest: Any) -> None:
        if topic == QUARANTINE and len(key or b"") + header_bytes(rest[-1]) > 300:
            raise Refused(FakeError("MSG_SIZE_TOO_LARGE"))
        produce(topic, value, key, partition, report, *rest)  # type: ignore[arg-type]

    bench.replica.output.produce = refuse  # type: ignore[method-assign, assignment]
    bench.send(b"x" * (3 * VALUE_BYTES_MAX), 100, [("mine", b"x" * 200)], key=b"k" * 200)
    bench.wait_until(lambda: bench.values(QUARANTINE))
    [record] = bench.records(QUARANTINE)
    assert record.pair == (None, None)
    found = headers_in(bench, QUARANTINE)
    assert found.keys() == {"tickover-source", "tickover-reason", "tickover-detail"}
    assert (found["tickover-source"], found["tickover-reason"]) == (b"reminders/0/0", b"too_large")


@pytest.mark.parametrize("topic", [LEDGER.name, QUARANTINE, "tickover.policies", "__transaction_state"])
@pytest.mark.parametrize("trouble", [None, str])
def test_what_redis_has_leads_to_no_topic_of_tickover_s_own(topic: str, trouble: Callable[[], str] | None) -> None:
    """Anybody who may write to Redis could otherwise write policies, and blocks of the ledger."""
    bench = Bench(trouble=trouble)
    for name in ("tickover.policies", "__transaction_state"):
        bench.broker.create(name, 2)
    bench.send(b"bad", headers=[("tickover-delay", b"never")])  # the quarantine is known from now on
    offset = bench.send(b"forged", 6_000, [("mine", b"1")])
    bench.send(b"fine", 6_000)
    bench.wait_until(lambda: len(bench.overflow.records[LANE]) == 2 and bench.values(QUARANTINE))
    bench.overflow.redirect(LANE, offset, topic, dead_letter="dead")
    bench.wait_until(lambda: bench.values("mail") == [b"fine"] and len(bench.values(QUARANTINE)) == 2)
    bench.run(500)
    assert (bench.lane.imbalance, bench.lane.overflow_held, bench.replica.emitter.backlog) == (0, 0, 0)
    assert bench.values(QUARANTINE) == [b"bad", b"forged"]
    headers = dict(bench.records(QUARANTINE)[-1].headers() or [])
    assert headers["mine"] == b"1"
    assert (headers["tickover-reason"], headers["tickover-source"]) == (b"target_not_allowed", b"reminders/0/1")
    assert headers["tickover-detail"] == f"{topic} is one of tickover's own topics, or of Kafka's".encode()
    if topic not in (LEDGER.name, QUARANTINE):
        assert not any(log.records for log in bench.broker.logs[topic])


@pytest.mark.parametrize("topic", [LEDGER.name, "tickover.policies"])
def test_what_redis_has_sends_no_dead_letters_to_a_topic_of_tickover_s_own(bench: Bench, topic: str) -> None:
    bench.broker.create("tickover.policies", 1)
    due_ms = bench.clock.now_ms + 6_000
    offset = bench.send(b"v", 6_000, [("tickover-expires-at", b"%d" % (due_ms + 10))])
    bench.wait_until(lambda: bench.overflow.records[LANE])
    bench.overflow.redirect(LANE, offset, "mail", dead_letter=topic)
    bench.run(5_000)
    bench.clock.advance(2_000)
    bench.wait_until(lambda: bench.values(QUARANTINE) == [b"v"])
    headers = headers_in(bench, QUARANTINE)
    assert headers["tickover-reason"] == b"target_not_allowed"
    assert (headers["tickover-detail"] or b"").endswith(b"the reason was expired")
    assert bench.values("mail") == []


def test_a_full_producer_keeps_the_order_and_loses_nothing() -> None:
    bench = Bench(queue_max=3)
    for number in range(30):
        bench.send(b"%d" % number, 100)
    bench.wait_until(lambda: len(bench.values("mail")) == 30)
    assert bench.values("mail") == [b"%d" % number for number in range(30)]
    assert bench.replica.emitter.load.records == 0


def test_a_refusal_that_passes_is_tried_again(bench: Bench) -> None:
    refusals = iter(["_TRANSPORT", "_TIMED_OUT"])
    produce = bench.replica.output.produce

    def refuse_at_first(topic: str, *record: object) -> None:
        if topic == "mail" and (word := next(refusals, None)):
            raise Refused(FakeError(word))
        produce(topic, *record)  # type: ignore[arg-type]

    bench.replica.output.produce = refuse_at_first  # type: ignore[method-assign]
    bench.send(b"v", 100)
    bench.wait_until(lambda: bench.values("mail"))
    bench.run(200)
    assert bench.lane.offsets.low == 1


def test_what_the_quarantine_refuses_waits_and_is_tried_again_while_others_go_on(bench: Bench) -> None:
    produce, times_ms = bench.replica.output.produce, []

    def refuse(topic: str, *record: object) -> None:
        if topic == QUARANTINE:
            times_ms.append(bench.clock.now_ms)
            if len(times_ms) < 4:
                raise Refused(FakeError("TOPIC_AUTHORIZATION_FAILED"))
        produce(topic, *record)  # type: ignore[arg-type]

    bench.replica.output.produce = refuse  # type: ignore[method-assign]
    bench.send(b"bad", headers=[("tickover-delay", b"never")])
    bench.wait_until(lambda: len(times_ms) == 2)
    assert times_ms[1] - times_ms[0] >= ANSWER_AGE_MAX_MS
    assert QUARANTINE in bench.replica.emitter.problem
    bench.send(b"fine", 100)
    bench.wait_until(lambda: bench.values("mail") == [b"fine"])
    bench.wait_until(lambda: bench.values(QUARANTINE) == [b"bad"])
    bench.run(200)
    assert len(times_ms) == 4
    assert (bench.replica.emitter.problem, bench.lane.offsets.low) == ("", 2)
    assert not bench.replica.emitter.redelivery.one_by_one


def test_any_other_refusal_ends_the_engine(bench: Bench) -> None:
    def refuse(topic: str, *record: object) -> None:
        raise Refused(FakeError("_FATAL"))

    bench.send(b"v", 0)
    bench.replica.output.produce = refuse  # type: ignore[method-assign]
    with pytest.raises(EmissionError, match="_FATAL"):
        bench.run(100)


def test_revoked_lanes_take_their_records_and_their_load_with_them(bench: Bench) -> None:
    for target in (b"mail", b"nowhere"):
        bench.send(b"v", 500, [("tickover-target", target)])
    bench.step()
    bench.replica.stop()
    assert bench.replica.emitter.load.records == 0
    assert bench.replica.emitter.load.bytes == 0
    assert bench.replica.emitter.backlog == 0


def test_a_dead_letter_that_is_too_large_is_quarantined_as_too_large(bench: Bench) -> None:
    bench.send(b"x" * (VALUE_BYTES_MAX + 1), 300, [("tickover-expires-at", b"%d" % (bench.clock.now_ms + 100))])
    bench.wait_until(lambda: bench.values(QUARANTINE))
    assert headers_in(bench, QUARANTINE)["tickover-reason"] == b"too_large"
    assert bench.values(QUARANTINE) == [None]
