"""Batches that each target takes, and what becomes of a record whose batch was refused for its size."""

from typing import Any

import pytest

from sidecar.engine.commit.committer import SMALL
from sidecar.engine.commit.exactly_once import USUAL, ExactlyOnce
from sidecar.engine.emission.batch_limits import OWN_BYTES_MAX, USUAL_BATCH_BYTES, BatchLimits
from sidecar.model.ports import SMALL_BATCH_BYTES
from sidecar.model.record import Held
from tests.simulation.fake_kafka import VALUE_BYTES_MAX, FakeOutput
from tests.simulation.workload import QUARANTINE
from tests.unit.engine_bench import Bench


def held(value_bytes: int) -> Held:
    return Held(0, 1, "mail", -1, None, b"", [], "p@1", None, 0, -1, [], -1, "", value_bytes)


def narrow(bench: Bench, bytes_max: int) -> Bench:
    """The target's `max.message.bytes` is known."""
    bench.replica.targets.limits.tell("mail", bytes_max)
    return bench


@pytest.mark.parametrize(
    ("told", "small", "single"),
    [
        (0, False, False),
        (SMALL_BATCH_BYTES - 1, False, True),
        (SMALL_BATCH_BYTES, True, False),
        (USUAL_BATCH_BYTES - 1, True, False),
        (USUAL_BATCH_BYTES, False, False),
    ],
)
def test_a_target_gets_batches_of_which_it_takes_the_largest(told: int, small: bool, single: bool) -> None:
    limits = BatchLimits()
    limits.tell("mail", told)
    assert (limits.takes_small("mail"), limits.takes_single("mail")) == (small, single)
    assert limits.topics == ({"mail"} if small or single else set())


def test_a_record_above_the_limit_is_known_before_it_spoils_a_batch() -> None:
    limits = BatchLimits()
    assert not limits.exceeds("mail", held(1 << 30)), "nobody knows"
    limits.tell("mail", 20_000)
    assert [limits.exceeds("mail", held(size)) for size in (20_000 - OWN_BYTES_MAX, 20_000)] == [False, True]


def test_who_does_not_tell_is_given_smaller_batches_step_by_step() -> None:
    limits = BatchLimits()
    assert limits.refused("mail", small=False)
    assert limits.takes_small("mail")
    assert not limits.refused("mail", small=True)
    limits.passed_single({"mail"}, {"mail"})
    assert not limits.takes_single("mail"), "of those that are to be tried one may be too large"
    limits.passed_single({"mail"}, ())
    assert limits.takes_single("mail")
    limits.tell("mail", USUAL_BATCH_BYTES)
    assert limits.topics == set(), "an operator has raised it"


def test_one_large_record_does_not_change_how_its_neighbours_go() -> None:
    limits = BatchLimits()
    limits.refused("mail", small=False)
    limits.refused("mail", small=True)
    limits.refused_single("mail")
    assert limits.topics == set()
    limits.tell("dead", USUAL_BATCH_BYTES)
    assert limits.refused("dead", small=False), "it may refuse what it says it takes"
    limits.refused_single("dead")
    assert limits.topics == set(), "it was the record"


def test_a_target_that_refuses_what_it_says_it_takes_is_learnt_once() -> None:
    limits = BatchLimits()
    limits.tell("mail", USUAL_BATCH_BYTES)
    assert limits.refused("mail", small=False)
    limits.tell("mail", USUAL_BATCH_BYTES)
    assert limits.takes_small("mail"), "it says nothing new"
    limits.tell("mail", USUAL_BATCH_BYTES + 1)
    assert not limits.takes_small("mail")


def test_what_takes_the_usual_batches_gets_them_however_small_these_are() -> None:
    limits = BatchLimits(usual_bytes=8_000)
    limits.tell("mail", 12_000)
    assert limits.topics == set()


@pytest.mark.parametrize("trouble", [None, str], ids=["at_least_once", "exactly_once"])
def test_what_is_due_for_a_target_of_small_batches_is_never_in_a_usual_one(
    trouble: type[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = narrow(Bench(trouble=trouble), 20_000)
    usual, produce = list[str](), FakeOutput.produce

    def note(self: FakeOutput, topic: str, *rest: Any) -> None:
        if self is not bench.replica.small_output and not getattr(self, "_name", "").endswith(".small"):
            usual.append(topic)
        produce(self, topic, *rest)

    monkeypatch.setattr(FakeOutput, "produce", note)
    for number in range(20):
        bench.send(b"%d" % number, 100)
    bench.send(b"late", 100, [("tickover-expires-at", b"%d" % (bench.clock.now_ms + 50))])
    bench.run(1_500)
    assert set(bench.values("mail")) == {b"%d" % number for number in range(20)}
    assert "mail" not in usual
    assert "dead" in usual
    assert bench.lane.imbalance == 0


@pytest.mark.parametrize("trouble", [None, str], ids=["at_least_once", "exactly_once"])
def test_of_a_small_batch_only_what_is_refused_alone_is_quarantined(trouble: type[str] | None) -> None:
    bench = narrow(Bench(trouble=trouble), 20_000)
    bench.send(b"x" * (VALUE_BYTES_MAX + 1), 100)
    for number in range(5):
        bench.send(b"%d" % number, 100)
    bench.run(3_000)
    assert set(bench.values("mail")) == {b"%d" % number for number in range(5)}
    [record] = bench.records(QUARANTINE)
    assert dict(record.headers() or ())["tickover-reason"] == b"too_large"
    assert bench.replica.emitter.backlog == 0
    assert not bench.replica.targets.suspended_topics, "that it refuses a size is no silence"


def test_who_hands_partitions_over_waits_for_nothing_that_goes_apart() -> None:
    bench = narrow(Bench(trouble=str), 20_000)
    bench.run(500)
    for number in range(20):
        bench.send(b"%d" % number, 0)
    bench.wait_until(lambda: bool(bench.replica.emitter.redelivery.small))
    settlement = bench.replica.settlement
    assert isinstance(settlement, ExactlyOnce)
    settlement._turn = USUAL
    assert settlement._next_turn() == SMALL
    bench.lane.leaving = True
    bench.wait_until(lambda: settlement.ready and not settlement._committer.busy and settlement._closing is None)
    settlement.step([bench.lane], bench.clock.now_ms, bench.replica.emitter)
    assert settlement._turn == USUAL


def test_what_came_back_while_its_partition_was_handed_over_is_not_emitted_any_more() -> None:
    bench = narrow(Bench(), 20_000)
    bench.send(b"later", 60_000)
    bench.wait_until(lambda: bench.lane.wheel.count == 1)
    emitter, output = bench.replica.emitter, bench.replica.small_output
    emitter.redelivery.small.append(bench.lane, next(iter(bench.lane.wheel.records())))
    bench.lane.dropped = True
    emitter.emit_small(bench.clock.now_ms)
    assert not emitter.redelivery.small
    assert output.under_way == 0, "its next owner has read it"
