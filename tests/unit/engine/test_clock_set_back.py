"""Nothing is handed over before it is due by the brokers' clock: wherever a record waits while that is set back, and
before a process has seen it.
"""

from collections.abc import Callable

import pytest

from sidecar.engine.commit.at_least_once import AtLeastOnce
from sidecar.engine.commit.block_builder import probe_clock
from sidecar.engine.commit.settlement import RECORDS_MAX
from sidecar.model.ports import NO_ANSWER
from sidecar.model.record import Outcome
from tests.simulation.fake_kafka import FakeRecord
from tests.simulation.fake_time import FakeTime, Machine, VirtualClock
from tests.simulation.replica import LEDGER, Replica
from tests.unit.engine.commit.test_exactly_once import settlement_of
from tests.unit.engine.emission.test_rate_limit import GUARANTEES, Trouble, at_rest, limited
from tests.unit.engine.intake.test_control_records import act, wait_settled
from tests.unit.engine.partition.test_key_order import OrderBench
from tests.unit.engine_bench import LANE, SOURCE, Bench

pytestmark = pytest.mark.slow  # many runs of the engine

BACK_MS = 600_000
COUNT = 10


def due_of(record: FakeRecord) -> int:
    return int(dict(record.headers() or [])["tickover-due"] or b"")


def set_back(bench: Bench, ms: int = BACK_MS) -> int:
    """The brokers' clock is set back, and the engine sees that by its next block. Returns how many records were handed
    over for good before.
    """
    before_ms = bench.replica.time.now_ms()
    bench.clock.brokers_ahead_ms -= ms
    bench.lane.touch()
    bench.wait_until(lambda: bench.replica.time.now_ms() < before_ms, 2_000)
    if bench.coordinator is not None:
        return 0  # nothing is for good that this block is not
    bench.replica.deliver_all()
    sending = sum(len(output._sending["mail", 0]) for output in bench.replica.outputs)
    return len(bench.records("mail")) + sending


def come_in_time(bench: Bench, handed_over: int = 0) -> None:
    """All the others arrive when they are due, and are accounted for."""
    count = len(bench.records(SOURCE))
    for _ in range(2 * BACK_MS // 1_000):
        bench.step(1_000)
        if len(bench.records("mail")) == count:
            break
    assert len(bench.records("mail")) == count
    for record in bench.records("mail")[handed_over:]:
        early_ms = due_of(record) - record.timestamp()[1]
        assert early_ms <= 0, f"{early_ms} ms early"
    at_rest(bench)
    assert bench.replica.tally.early == 0


def wait_at_the_gate(trouble: Trouble) -> Bench:
    bench = limited({"topic": "mail", "rate": "1/s", "burst": 1}, trouble=trouble)
    for _ in range(COUNT):
        bench.send(b"v", 1_000)
    bench.wait_until(lambda: bench.replica.emitter.gate.count == COUNT - 1)
    bench.run(100)
    return bench


def wait_for_room(trouble: Trouble) -> Bench:
    bench = Bench(trouble=trouble)
    settlement = bench.replica.settlement
    if isinstance(settlement, AtLeastOnce):
        settlement.room = 0
    else:
        settlement_of(bench)._fit.learn(20, taken=6, at_once=False, now_s=0.0)
    for _ in range(COUNT * 10):
        bench.send(b"v", 500)
    bench.wait_until(lambda: bench.replica.emitter.backlog > COUNT)
    return bench


def kill_target(bench: Bench, send: Callable[[], object]) -> None:
    """The engine sends nothing more there."""
    bench.broker.short = {"mail"}
    for _ in range(20):
        send()
        bench.run(1_000)
    assert bench.replica.targets.suspended_topics


def wait_for_a_dead_target(trouble: Trouble) -> Bench:
    bench = Bench(trouble=trouble)
    kill_target(bench, lambda: bench.send(b"v", 0))
    for _ in range(COUNT):
        bench.send(b"v", 100)
    bench.wait_until(lambda: bench.replica.targets.count >= COUNT, 2_000)
    return bench


def wait_for_an_answer(trouble: Trouble) -> Bench:
    bench = Bench(trouble=trouble)
    for _ in range(COUNT):
        bench.send(b"v", 100)
    bench.run(50)
    bench.replica.targets.forget("mail")
    bench.replica.targets._ask = lambda _: NO_ANSWER
    bench.wait_until(lambda: bench.replica.targets.count == COUNT)
    return bench


def wait_one_by_one(trouble: Trouble) -> Bench:
    bench = Bench(trouble=trouble)
    returned = bench.replica.emitter.redelivery
    returned._limits.tell("mail", 1)
    returned._isolated_fits = 1
    for _ in range(COUNT * 10):
        bench.send(b"v", 500)
    bench.wait_until(lambda: len(returned.isolated) > COUNT)
    return bench


def wait_in_order(trouble: Trouble) -> Bench:
    bench = OrderBench(trouble=trouble)
    kill_target(bench, lambda: bench.fail(b"v", key=None))
    for _ in range(COUNT):
        bench.fail(b"v")
    bench.wait_until(lambda: bench.replica.emitter.in_order.count >= COUNT - 1, 2_000)
    return bench


@GUARANTEES
@pytest.mark.parametrize(
    "waits",
    [
        wait_at_the_gate,
        wait_for_room,
        wait_for_a_dead_target,
        wait_for_an_answer,
        wait_one_by_one,
        wait_in_order,
    ],
)
def test_what_has_fired_and_waits_while_the_clock_is_set_back_is_not_early(
    waits: Callable[[Trouble], Bench], trouble: Trouble
) -> None:
    bench = waits(trouble)
    handed_over = set_back(bench)
    assert handed_over < len(bench.records(SOURCE))
    bench.broker.short = set()
    bench.replica.targets._ask = bench.broker.partition_count
    if isinstance(bench.replica.settlement, AtLeastOnce):
        bench.replica.settlement.room = RECORDS_MAX
    come_in_time(bench, handed_over)


@GUARANTEES
def test_what_is_not_due_any_more_takes_nobodys_turn_at_the_gate(trouble: Trouble) -> None:
    bench = wait_at_the_gate(trouble)
    set_back(bench)
    gate = bench.replica.emitter.gate
    count = gate.count
    bench.run(5_000)
    assert gate.count == count > 0


def test_what_is_not_due_any_more_keeps_its_place_in_the_order() -> None:
    """One that is taken too early comes back, and from then on the records of its key go one at a time."""
    bench = OrderBench()
    bench.replica.settlement.room = 0  # type: ignore[misc]  # of AtLeastOnce
    bench.fail(b"v")
    in_order = bench.replica.emitter.in_order
    bench.wait_until(lambda: in_order.count == 1)
    [(lane, key)] = in_order.free_keys()
    due_ms = lane.order.waiting[0].due_ms if lane.order is not None else 0
    assert in_order.next_of(lane, key, due_ms) is not None
    assert in_order.next_of(lane, key, due_ms - 1) is None


@pytest.mark.parametrize("alone", [False, True])
def test_a_transaction_whose_own_block_shows_that_it_is_early_is_aborted_and_comes_when_it_is_due(alone: bool) -> None:
    bench = Bench(trouble=str)
    if alone:
        bench.replica.emitter.redelivery._limits.tell("mail", 1)
    for _ in range(COUNT):
        bench.send(b"v", 500)
    bench.run(400)
    bench.clock.brokers_ahead_ms -= BACK_MS  # nobody has seen that
    bench.run(500)
    assert bench.coordinator is not None
    assert bench.coordinator.aborted >= 1
    assert bench.records("mail") == []
    come_in_time(bench)


def test_what_is_not_due_after_all_can_be_cancelled_again() -> None:
    bench = Bench(trouble=str)
    held = bench.send(b"v", 500, [("tickover-id", b"x")])
    bench.run(400)
    bench.clock.brokers_ahead_ms -= BACK_MS
    bench.run(500)
    assert not bench.lane.ids.leaving
    control = act(bench, b"cancel")
    assert wait_settled(bench, held, control)[held] == (Outcome.CANCELLED, control)
    bench.step(2 * BACK_MS)
    bench.run(1_000)
    assert bench.records("mail") == []
    at_rest(bench)


def restart_on(bench: Bench, machine: Machine) -> None:
    """Another process takes over, on a machine of its own."""
    bench.replica.crash()
    bench.replica = Replica(bench.shared, bench.shape, bench.tables[max(bench.tables)], machine=machine)
    bench.group.join(bench.replica.intake)
    bench.group.wanted[LANE] = bench.replica.intake


@GUARANTEES
def test_a_process_on_a_machine_that_is_ahead_reads_and_emits_nothing_by_its_own_clock(trouble: Trouble) -> None:
    bench = Bench(trouble=trouble)
    bench.send(b"far", BACK_MS // 2)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.send(b"near", 10_000)
    restart_on(bench, Machine(bench.clock, ahead_ms=BACK_MS))
    bench.send(b"read", BACK_MS // 3)
    bench.run(5_000)
    assert bench.records("mail") == []
    assert bench.lane.promotion.cursor.due_ms <= bench.clock.now_ms + bench.shape.horizon_ms, (
        "Redis is read up to the horizon"
    )
    come_in_time(bench)
    assert bench.values("mail") == [b"near", b"read", b"far"]


@GUARANTEES
def test_a_process_begins_as_soon_as_its_first_block_is_acknowledged(trouble: Trouble) -> None:
    bench = Bench(trouble=trouble)
    restart_on(bench, Machine(bench.clock))
    bench.send(b"v", 0)
    while not bench.replica.assignment.lanes:
        bench.step(1)
    began_ms = bench.clock.now_ms
    while bench.replica.emitter.settlement.open.sent == 0:
        bench.step(1)
    assert bench.clock.now_ms - began_ms <= 2 * bench.delay_ms + 4, "there and back again, and a few turns"


@GUARANTEES
def test_while_the_ledger_is_away_at_the_start_nothing_is_emitted_and_then_all_is(trouble: Trouble) -> None:
    bench = Bench(trouble=trouble)
    restart_on(bench, Machine(bench.clock, ahead_ms=BACK_MS))
    bench.broker.short = {LEDGER.name}
    bench.send(b"due", 0)
    bench.send(b"early", 60_000)
    bench.run(20_000)
    assert bench.records("mail") == []
    assert "does not acknowledge" in bench.replica.settlement.problem
    bench.broker.short = set()
    bench.run(15_000)
    assert bench.values("mail") == [b"due"]
    come_in_time(bench)


def test_a_process_without_partitions_keeps_its_question_for_the_first_that_it_gets() -> None:
    bench = Bench()
    time = FakeTime(VirtualClock())
    probe_clock([], time)
    bench.lane.touched = False
    probe_clock([bench.lane], time)
    assert bench.lane.touched
