import pytest

from sidecar.departure import EmissionError
from tests.simulation.fake_kafka import VALUE_BYTES_MAX, FakeError, Refused
from tests.simulation.workload import QUARANTINE
from tests.unit.engine_bench import Bench


@pytest.fixture(name="bench")
def bench_fixture() -> Bench:
    return Bench()


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
    bench.broker.create(QUARANTINE, 1)
    bench.wait_until(lambda: bench.values(QUARANTINE))
    bench.run(200)
    assert bench.replica.emitter.problem == ""
    assert bench.lane.low == 1


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
    assert bench.lane.low == 2


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
    assert bench.lane.low == 1


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
