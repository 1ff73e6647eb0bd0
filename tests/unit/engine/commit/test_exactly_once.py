"""Settlement by transactions, one fault at a time. All of them together: the simulation."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sidecar.engine.commit.committer import HUNG_MAX, HungClientError
from sidecar.engine.commit.exactly_once import GROW_S, PATIENCE_S, ExactlyOnce
from sidecar.engine.commit.transaction import SealedBlock
from sidecar.model.call_limit import SILENT_MAX_S
from sidecar.model.partitioner import partition_of
from sidecar.model.ports import Member
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_kafka import VALUE_BYTES_MAX, FakeRecord
from tests.simulation.fake_transactions import FakeTransactions, TransactionError
from tests.simulation.replica import LEDGER
from tests.simulation.workload import QUARANTINE
from tests.unit.engine_bench import Bench


def settlement_of(bench: Bench) -> ExactlyOnce:
    assert isinstance(bench.replica.settlement, ExactlyOnce)
    return bench.replica.settlement


def seen(bench: Bench) -> list[FakeRecord]:
    """Records of the target that readers of committed records see."""
    [log] = bench.broker.logs["mail"]
    return [record for record in log.records if record.offset() not in log.undecided]


def once(word: str, calls: list[str]) -> Callable[[], str]:
    """Trouble of this kind at the next call after it was put on the list."""
    return lambda: calls.pop() if calls else word


def test_a_record_shows_with_its_block_and_its_offset() -> None:
    bench = Bench(trouble=str)
    offset = bench.send(b"value")
    bench.run(1_500)
    [record] = seen(bench)
    assert bench.group.committed[bench.lane.id][0] == offset + 1
    assert bench.coordinator is not None
    assert bench.coordinator.aborted == 0
    assert dict(record.headers() or ())["tickover-origin"] == b"reminders/0/%d" % offset


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_what_a_transaction_had_is_freed_without_a_collection() -> None:
    bench = Bench(trouble=str)
    for number in range(100):
        bench.send(b"far-%d" % number, 60_000)
        bench.run(40)
    bench.wait_until(lambda: not bench.lane.on_the_way)
    bench.run(200)
    left = Counter(type(one) for one in gc.get_objects())
    assert left[SealedBlock] <= 10, "of the last transactions alone: the overflow has all that their blocks moved there"


@pytest.mark.parametrize("word", ["abort", "unknown"])
def test_trouble_repeats_and_loses_nothing(word: str) -> None:
    troubles: list[str] = []
    bench = Bench(trouble=once("", troubles))
    for _ in range(20):
        bench.send(b"value")
        troubles.append(word)
        bench.run(150)
    bench.run(3_000)
    assert len(seen(bench)) == 20
    assert bench.lane.imbalance == 0


def test_a_call_that_does_not_come_back_is_left_behind() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.send(b"value")
    hung = bench.replica.executors[4] = StepExecutor()  # its steps are never run
    settlement._committer._executor = hung
    bench.replica.executors.pop()
    bench.run(1_500)
    assert seen(bench) == []
    fresh = StepExecutor()
    settlement._makers._executor = fresh  # type: ignore[attr-defined]
    bench.replica.executors.append(fresh)
    bench.run(int(SILENT_MAX_S * 1_000) + 3_000)
    assert len(seen(bench)) == 1
    assert bench.lane.imbalance == 0


def test_too_many_calls_that_do_not_come_back_end_the_process() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    settlement._makers._executor = StepExecutor()  # type: ignore[attr-defined]
    for _ in range(HUNG_MAX + 1):
        settlement.prepare()
    with pytest.raises(HungClientError):
        settlement.prepare()


def test_a_transaction_gets_no_more_than_what_the_brokers_take_in_time() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    settlement._fit.learn(20, taken=6, at_once=False, now_s=settlement.time.monotonic_s())
    for _ in range(20):
        bench.send(b"value", 0)
    for _ in range(300):
        bench.step()
        assert settlement.open.sent <= 3
    bench.run(int(GROW_S * 1_000))
    assert len(seen(bench)) == 20
    for _ in range(20):
        bench.send(b"value", 0)
    bench.run(1_000)
    assert settlement._fit.most > 3, "all were acknowledged at once"


def test_with_lanes_a_sweep_is_a_commit_of_the_next_and_the_producer_for_single_records_made_anew() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.send(b"value")
    bench.run(1_500)
    assert bench.coordinator is not None
    former, commits, aborts = settlement._outputs["alone"], bench.coordinator.committed, bench.coordinator.aborted
    settlement.sweep(bench.replica.assignment.lanes.values())
    bench.run(1_500)
    assert settlement._outputs["alone"] is not former
    assert bench.coordinator.committed == commits + 1
    assert bench.coordinator.aborted == aborts + 2, "offsets of nothing were in each"
    bench.send(b"value")
    bench.run(1_500)
    assert len(seen(bench)) == 2


def test_while_there_is_no_producer_for_single_records_only_these_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.run(500)
    init, away = FakeTransactions.init, True

    def refuse(self: FakeTransactions, seconds: float) -> None:
        if away and self.lone:
            raise self.refused(TransactionError("_TIMED_OUT"))
        init(self, seconds)

    monkeypatch.setattr(FakeTransactions, "init", refuse)
    era = settlement._era
    settlement.sweep(bench.replica.assignment.lanes.values())
    bench.run(500)
    assert "alone" not in settlement._outputs
    bench.send(bytes(VALUE_BYTES_MAX + 1))
    bench.run(1_500)
    bench.send(b"fits")
    bench.run(1_500)
    [quarantine] = bench.broker.logs[QUARANTINE]
    assert (len(seen(bench)), len(quarantine.records)) == (1, 0)
    away = False
    bench.run(1_500)
    assert (len(seen(bench)), len(quarantine.records)) == (1, 1)
    assert settlement._era == era, "the other two went on"


def test_a_producer_for_single_records_whose_making_does_not_come_back_is_made_by_another_thread() -> None:
    bench = Bench(trouble=str)
    settlement = settlement_of(bench)
    bench.run(500)
    makers: Any = settlement._makers
    usual, makers._executor = makers._executor, StepExecutor()  # its steps are never run
    settlement.sweep(bench.replica.assignment.lanes.values())
    bench.run(int(SILENT_MAX_S * 1_000) - 500)
    bench.send(b"value")
    makers._executor = usual
    bench.run(2_500)
    assert len(seen(bench)) == 1
    assert "alone" in settlement._outputs


def test_no_turn_waits_for_a_commit() -> None:
    bench = Bench(trouble=str)
    bench.replica.executors.pop()  # the committer has not come to anything yet
    for _ in range(10):
        bench.send(b"value")
    bench.run(2_000)
    assert len(bench.broker.logs["mail"][0].records) == 10, "the engine goes on emitting"
    assert seen(bench) == []


@pytest.mark.usefixtures("slow")
def test_the_committer_gets_what_is_acknowledged() -> None:
    bench = Bench(trouble=str)
    bench.delay_ms = 200  # there, and as long back; a flush would have it at once
    bench.send(b"value", 0)
    bench.run(350)
    assert seen(bench) == []
    bench.run(350)
    assert len(seen(bench)) == 1


@pytest.mark.usefixtures("slow")
def test_what_is_not_acknowledged_by_itself_is_the_committer_s_to_find_out() -> None:
    bench = Bench(trouble=str)
    bench.delay_ms = 60_000
    bench.send(b"value", 0)
    bench.run(int(PATIENCE_S * 1_000))
    assert seen(bench) == []
    bench.run(500)
    assert len(seen(bench)) == 1


@pytest.mark.parametrize("delay_ms", [0, 1_500], ids=["just read", "of an idle process"])
def test_a_producer_fenced_while_records_are_handed_to_it_is_replaced(delay_ms: int) -> None:
    bench = Bench(trouble=str)
    if delay_ms:
        bench.send(b"value", delay_ms)
    bench.run(500)
    coordinator, fenced = bench.coordinator, settlement_of(bench).open.output
    assert coordinator is not None
    coordinator.epochs[fenced._name] += 1  # as the brokers do with a transaction that takes too long
    fenced._failed = fenced._fatal = True
    if not delay_ms:
        bench.send(b"value", 0)
    bench.run(4_000)
    assert settlement_of(bench).open.output is not fenced
    assert len(seen(bench)) == 1


@pytest.mark.slow
def test_what_waits_for_a_dead_target_takes_no_other_s_room() -> None:
    bench = Bench(trouble=str, wheel_records_max=100_000)
    bench.run(1_000)
    fit = settlement_of(bench)._fit
    fit.most, fit.learn = 5, lambda *_: None  # type: ignore[method-assign]
    bench.broker.short.add("other")
    for turn in range(2_000):
        for _ in range(10):
            bench.send(b"dead", 0, [("tickover-target", b"other")])
        if turn % 8 == 0:
            bench.send(b"well", 0)
        bench.step(5)
    assert len(seen(bench)) > 100


@pytest.mark.slow
def test_of_a_target_with_a_dead_partition_only_what_is_for_that_one_waits() -> None:
    """Nobody else's transactions are aborted for it, but one at each try, which come ever more seldom."""
    bench = Bench(trouble=str)
    bench.broker.create("other", 4)
    bench.replica.targets.partitions["other"] = 4
    bench.run(1_000)
    bench.broker.short.add(("other", 2))
    keys = [None if number % 3 == 0 else b"%d" % number for number in range(4_000)]
    for number, key in enumerate(keys):
        bench.send(b"%d" % number, 0, [("tickover-target", b"other")], key)
        bench.step(10)
    bench.run(2_000)
    dead = {number for number, key in enumerate(keys) if key is not None and partition_of(key, 4) == 2}
    assert arrived(bench, "other") == set(range(len(keys))) - dead
    assert bench.coordinator is not None
    assert 3 <= bench.coordinator.aborted <= 8
    assert bench.replica.targets.count + len(bench.replica.emitter.redelivery.isolated) == len(dead)
    bench.broker.short.clear()
    bench.wait_until(lambda: arrived(bench, "other") == set(range(len(keys))), limit_ms=70_000)
    bench.run(1_000)
    assert (bench.lane.imbalance, bench.replica.emitter.redelivery.one_by_one) == (0, set())


def arrived(bench: Bench, topic: str) -> set[int]:
    """The numbers that readers of committed records see, each of them once."""
    logs = bench.broker.logs[topic]
    found = [record for log in logs for record in log.records if record.offset() not in log.undecided]
    numbers = [int(record.value() or b"") for record in found]
    assert len(numbers) == len(set(numbers))
    return set(numbers)


def test_what_has_waited_for_a_target_that_is_back_takes_turns_with_what_is_due() -> None:
    bench = Bench(trouble=str, wheel_records_max=100_000)
    bench.run(1_000)
    fit = settlement_of(bench)._fit
    fit.most, fit.learn = 20, lambda *_: None  # type: ignore[method-assign]
    bench.broker.short.add("other")
    for _ in range(3_000):
        bench.send(b"dead", 0, [("tickover-target", b"other")])
    bench.wait_until(lambda: bench.replica.targets.count > 2_900)
    bench.broker.short.clear()
    bench.wait_until(lambda: len(bench.replica.emitter.redelivery.again) > 2_000)
    for number in range(50):
        bench.send(b"%d" % number, 0)
        bench.step(20)
    bench.run(500)
    assert len(seen(bench)) == 50
    assert len(bench.replica.emitter.redelivery.again) > 1_000


@pytest.mark.parametrize(("records_max", "bulk"), [(100, b""), (100_000, bytes(10_000))], ids=["records", "bytes"])
def test_what_waits_for_a_dead_target_counts_as_held_in_memory(records_max: int, bulk: bytes) -> None:
    bench = Bench(trouble=str, wheel_records_max=records_max)
    bench.broker.short.add("mail")
    for _ in range(2_000):
        bench.send(b"value", 12_000, [("bulk", bulk)])
        bench.step(5)
    for _ in range(600):
        bench.step(50)
        assert bench.replica.emitter.backlog + bench.replica.emitter.load.records <= 500
    bench.broker.short.clear()
    bench.wait_until(lambda: len(seen(bench)) == 2_000, limit_ms=180_000)
    bench.run(1_000)
    assert bench.lane.imbalance == 0


def test_what_is_due_for_a_dead_target_is_overdue_and_what_is_far_is_held() -> None:
    bench = Bench(trouble=str)
    bench.broker.short.add("mail")
    bench.send(b"due", 0)
    began_ms = bench.clock.now_ms
    bench.run(1_000)
    for _ in range(1_200):  # tried, given up, waiting, tried again
        bench.step(50)
        overdue_ms = bench.replica.publisher.publish(bench.clock.now_ms).oldest_overdue_ms
        assert overdue_ms == bench.clock.now_ms - began_ms
    assert bench.replica.publisher.publish(bench.clock.now_ms).suspended == ("mail",)
    bench.wait_until(lambda: bench.replica.targets.count == 1)
    bench.send(b"far", 600_000)
    bench.run(1_000)
    assert (bench.replica.targets.count, bench.lane.overflow_held) == (1, 1)
    bench.broker.short.clear()
    bench.wait_until(lambda: len(seen(bench)) == 1, limit_ms=120_000)
    bench.run(500)
    stats = bench.replica.publisher.publish(bench.clock.now_ms)
    assert (stats.oldest_overdue_ms, stats.suspended) == (0, ())


@pytest.mark.parametrize("trouble", [str, None], ids=["exactly once", "at least once"])
def test_a_ledger_that_does_not_acknowledge_is_named_until_it_does(trouble: Callable[[], str] | None) -> None:
    bench = Bench(trouble=trouble)
    bench.run(1_000)

    def problems() -> tuple[str, ...]:
        return bench.replica.publisher.publish(bench.clock.now_ms).problems

    bench.broker.short.add(LEDGER.name)
    bench.send(b"value", 0)
    bench.wait_until(problems)
    for _ in range(400):
        bench.step(50)
        assert [problem for problem in problems() if LEDGER.name in problem]
    bench.broker.short.clear()
    bench.wait_until(lambda: not problems())
    bench.run(1_000)
    assert (len(seen(bench)), bench.lane.imbalance) == (1, 0)


def test_who_has_lost_its_place_in_the_group_commits_nothing() -> None:
    """The client knows it before it tells. Brokers take a transaction's offsets from whoever doesn't say who it is,
    also when others have the partitions.
    """
    bench = Bench(trouble=str)
    bench.send(b"value")
    bench.wait_until(lambda: settlement_of(bench).open.sent)
    bench.replica.intake.lose(turns=100)
    committed = dict(bench.group.committed)
    for _ in range(100):
        bench.step()
    assert bench.lane.imbalance == 0, "it isn't told yet"
    assert bench.group.committed == committed
    assert seen(bench) == []
    bench.run(1_000)
    assert len(seen(bench)) == 1, "it has the partition again"


@pytest.mark.parametrize("told_late", [False, True], ids=["nameless", "refused"])
def test_who_has_lost_its_place_in_the_group_tries_once_a_second_and_with_another_place_at_once(
    told_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(trouble=str)
    bench.send(b"value")
    bench.wait_until(lambda: settlement_of(bench).open.sent)
    assert bench.coordinator is not None
    intake, aborted = bench.replica.intake, bench.coordinator.aborted
    if told_late:
        refused = Member((intake, intake.epoch + 1_000), True)  # of a generation that isn't the group's
        monkeypatch.setattr(intake, "member", lambda: refused)
    else:
        intake.lose(turns=10_000)
    bench.run(2_900)
    assert 1 <= bench.coordinator.aborted - aborted <= 3
    assert seen(bench) == []
    monkeypatch.undo()
    if told_late:
        bench.run(300)
        assert len(seen(bench)) == 1


def test_an_aborted_transaction_is_emitted_again() -> None:
    troubles: list[str] = []
    bench = Bench(trouble=once("", troubles))
    bench.send(b"value")
    troubles.append("abort")
    bench.run(3_000)
    assert bench.coordinator is not None
    assert bench.coordinator.aborted >= 1
    assert len(seen(bench)) == 1
