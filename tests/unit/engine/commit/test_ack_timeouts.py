"""Targets that don't acknowledge, in `at_least_once`: what is for them waits, and all else is settled."""

from collections.abc import Collection
from random import Random

import pytest

from sidecar.engine.commit.at_least_once import SILENCE_S, AtLeastOnce, InFlight, Watched
from sidecar.engine.commit.interval import NO_OUTPUT
from sidecar.engine.emission.redelivery import Redelivery
from sidecar.engine.emission.targets import Targets
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.partitioner import partition_of
from sidecar.model.record import ANY_PARTITION, Headers, Held, Position, TargetPartition, TopicPartition
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_kafka import FakeError, FakeRecord
from tests.simulation.replica import LEDGER
from tests.simulation.workload import QUARANTINE
from tests.unit.engine_bench import Bench

pytestmark = pytest.mark.slow  # many runs of the engine

LANE = SourcePartition(TopicPartition("in", 0), Wheel(0, 1), PromotionWindows(Position(0, 0)))
OTHER: Headers = [("tickover-target", b"other")]
FOUND_MS = 2 * SILENCE_S * 1_000 + 500  # a silence, and a watched one: by then nothing more is sent there
INTERVALS_MAX = FOUND_MS / 50


def held(offset: int, partition: int) -> Held:
    return Held(0, offset, "other", partition, None, b"", [], "p@1", None, 0, -1, [], -1, "", 1)


def bench_of(partitions: int, records_max: int = 100_000) -> Bench:
    bench = Bench(wheel_records_max=records_max)
    if partitions > 1:
        bench.broker.create("other", partitions)
        bench.replica.targets.partitions["other"] = partitions
    bench.run(1_000)
    return bench


def in_flight(bench: Bench) -> int:
    assert isinstance(bench.replica.settlement, AtLeastOnce)
    return len(bench.replica.settlement._closed)


def arrived(bench: Bench, topic: str) -> list[int]:
    return sorted(int(record.value() or b"") for log in bench.broker.logs[topic] for record in log.records)


def test_while_a_target_is_dead_the_records_of_others_are_settled() -> None:
    bench = bench_of(partitions=1)
    bench.broker.short.add("other")
    for number in range(4_000):
        bench.send(b"%d" % number, 0, OTHER if number % 2 else None)
        bench.step(10)
    assert arrived(bench, "mail") == list(range(0, 4_000, 2))
    assert in_flight(bench) <= INTERVALS_MAX
    sent = len(bench.broker.logs["other"][0].records) + bench.replica.output.under_way
    assert bench.replica.targets.count == 2_000 - sent > 1_200
    stats = bench.replica.publisher.publish(bench.clock.now_ms)
    assert stats.suspended == ("other",)
    assert stats.oldest_overdue_ms > 30_000
    bench.broker.short.clear()
    bench.run(1_000)
    assert arrived(bench, "other") == list(range(1, 4_000, 2))
    assert (in_flight(bench), bench.lane.imbalance, bench.lane.offsets.low) == (0, 0, 4_000)
    bench.run(15_000)
    assert (bench.replica.emitter.redelivery.one_by_one, bench.replica.targets.count) == (set(), 0)


def test_a_crash_repeats_what_was_sent_until_the_dead_target_was_found_and_no_more() -> None:
    bench = bench_of(partitions=1)
    bench.broker.short.add("other")
    for number in range(4_000):
        bench.send(b"%d" % number, 0, OTHER if number % 2 else None)
        bench.step(10)
    bench.run(500)
    bench.restart()
    bench.broker.short.clear()
    bench.run(20_000)
    assert set(arrived(bench, "other")) == set(range(1, 4_000, 2))
    repeated = len(arrived(bench, "mail")) - 2_000
    assert 0 < repeated <= FOUND_MS / 20


def test_of_a_target_with_a_dead_partition_only_what_is_for_that_one_waits() -> None:
    bench = bench_of(partitions=4)
    bench.broker.short.add(("other", 2))
    keys = [None if number % 3 == 0 else b"%d" % number for number in range(4_000)]
    for number, key in enumerate(keys):
        bench.send(b"%d" % number, 0, OTHER, key)
        bench.step(10)
    bench.run(500)
    found_by = FOUND_MS / 10
    well = {n for n, key in enumerate(keys) if (key and partition_of(key, 4) != 2) or (key is None and n > found_by)}
    assert well <= set(arrived(bench, "other"))
    assert in_flight(bench) <= INTERVALS_MAX
    bench.broker.short.clear()
    bench.run(1_000)
    assert arrived(bench, "other") == list(range(4_000))
    assert (bench.lane.imbalance, bench.lane.offsets.low) == (0, 4_000)


def test_of_a_target_with_a_dead_partition_records_without_key_go_to_the_others() -> None:
    bench = bench_of(partitions=4)
    bench.broker.short.add(("other", 1))
    for number in range(4_000):
        bench.send(b"%d" % number, 0, OTHER, None)
        bench.step(10)
    bench.run(500)
    assert bench.replica.targets._suspensions._topics["other"].partitions == {1}
    assert set(range(2_000, 4_000)) <= set(arrived(bench, "other"))
    bench.broker.short.clear()
    bench.run(1_000)
    assert arrived(bench, "other") == list(range(4_000))


def test_in_a_target_that_has_grown_the_client_chooses_where_a_key_goes() -> None:
    """All producers of a topic put a key into the same partition, whatever is known here of who doesn't acknowledge."""
    bench = bench_of(partitions=4)
    bench.replica.targets.partitions["other"] = 2
    bench.broker.short.add(("other", 0))
    for number in range(3_000):
        bench.send(b"%d" % number, 0, OTHER, b"%d" % number)
        bench.step(10)
    assert bench.replica.targets.count > 100
    bench.broker.short.clear()
    bench.run(1_000)
    assert arrived(bench, "other") == list(range(3_000))
    for partition, log in enumerate(bench.broker.logs["other"]):
        assert {partition_of(record.key() or b"", 4) for record in log.records} == {partition}


def test_when_all_that_is_silent_is_back_all_goes_on_at_once() -> None:
    bench = bench_of(partitions=4)
    bench.broker.short = {"other", "mail", LEDGER.name}
    for number in range(3_000):
        bench.send(b"%d" % number, 0, OTHER if number % 2 else None, b"%d" % number)
        bench.step(10)
    assert bench.replica.targets.count > 1_000
    bench.broker.short = set()
    bench.run(1_000)
    assert arrived(bench, "mail") == list(range(0, 3_000, 2))
    assert arrived(bench, "other") == list(range(1, 3_000, 2))
    assert (in_flight(bench), bench.lane.imbalance) == (0, 0)


@pytest.mark.parametrize("topic", ["dead", QUARANTINE])
def test_a_topic_for_what_leaves_another_way_may_be_the_silent_one(topic: str) -> None:
    bench = bench_of(partitions=1)
    bench.broker.short.add(topic)
    ways: dict[str, Headers] = {
        "dead": [("tickover-expires-at", b"1970-01-01T00:00:01Z")],
        QUARANTINE: [("tickover-delay", b"no")],
    }
    for number in range(3_000):
        bench.send(b"%d" % number, None, ways[topic] if number % 2 else [("tickover-delay", b"0")])
        bench.step(10)
    assert arrived(bench, "mail") == list(range(0, 3_000, 2))
    assert in_flight(bench) <= INTERVALS_MAX
    bench.broker.short.clear()
    bench.run(1_000)
    assert arrived(bench, topic) == list(range(1, 3_000, 2))
    assert (in_flight(bench), bench.lane.imbalance, bench.lane.offsets.low) == (0, 0, 3_000)


def test_of_two_dead_targets_one_comes_back_before_the_other() -> None:
    bench = bench_of(partitions=1)
    bench.broker.short = {"other", "mail"}
    for number in range(3_000):
        bench.send(b"%d" % number, 0, OTHER if number % 2 else None)
        bench.step(10)
    bench.broker.short = {"other"}
    bench.run(1_000)
    assert arrived(bench, "mail") == list(range(0, 3_000, 2))
    assert arrived(bench, "other") == []
    bench.broker.short = set()
    bench.run(1_000)
    assert arrived(bench, "other") == list(range(1, 3_000, 2))
    assert (in_flight(bench), bench.lane.imbalance) == (0, 0)


def test_one_record_now_and_then_is_enough_to_find_it_and_to_see_it_well_again() -> None:
    bench = bench_of(partitions=1)
    bench.broker.short.add("other")
    for number in range(20):
        bench.send(b"%d" % number, 0, OTHER)
        bench.run(3_000)
    assert in_flight(bench) <= 6
    assert bench.replica.targets.count >= 14
    bench.broker.short.clear()
    bench.run(1_000)
    assert arrived(bench, "other") == list(range(20))


def test_what_dies_again_is_found_again() -> None:
    bench = bench_of(partitions=1)
    for _ in range(3):
        before = in_flight(bench)
        bench.broker.short = {"other"}
        for number in range(2_500):
            bench.send(b"%d" % number, 0, OTHER if number % 2 else None)
            bench.step(10)
        assert before == 0
        assert in_flight(bench) <= INTERVALS_MAX
        bench.broker.short = set()
        bench.run(1_000)
    assert len(arrived(bench, "other")) == len(arrived(bench, "mail")) == 3 * 1_250
    assert bench.lane.imbalance == 0


class Told(Redelivery):
    """Keeps what it is told."""

    def __init__(self) -> None:
        targets = Targets(lambda _: 1, StepExecutor())
        targets.partitions["other"] = 4
        super().__init__(targets, "quarantine", transactional=False)
        self.told: list[tuple[str, set[TargetPartition]]] = []

    def silent(self, places: Collection[TargetPartition]) -> None:
        self.told.append(("silent", set(places)))

    def answering(self, places: Collection[TargetPartition]) -> None:
        self.told.append(("answering", set(places)))


@pytest.mark.parametrize("partition", [2, ANY_PARTITION, 7], ids=["taken", "deleted", "taken by one added"])
def test_who_answers_in_whatever_way_is_waited_for_no_longer(partition: int) -> None:
    """The client names no partition in reports of a topic that was deleted."""
    returned = Told()
    flights = InFlight(returned)
    interval = Watched((NO_OUTPUT, None), {"other"})
    records = [held(1, 2), held(2, 2), held(3, 3)]
    for one in records:
        interval.handed_over(TargetPartition("other", one.target_partition))
    interval.took(LANE, records, 0, 0)
    flights.close(interval, 0.0)
    interval.report(None, FakeRecord(("other", 3, 0), (0, 0), (None, b""), None))
    assert flights.completed(SILENCE_S + 1) == []
    interval.report(None, FakeRecord(("other", 2, 0), (0, 0), (None, b""), None))
    assert flights.completed(SILENCE_S + 2) == []
    dead = {TargetPartition("other", 2)}
    assert returned.told == [("silent", dead)]
    interval.report(FakeError("_UNKNOWN_TOPIC"), FakeRecord(("other", partition, 0), (0, 0), (None, b""), None))
    assert flights.completed(SILENCE_S + 3) == [interval]
    assert returned.told == [("silent", dead), ("answering", dead)]
    assert len(flights) == 0


@pytest.mark.parametrize(("records_max", "id_bytes"), [(300, 1), (100_000, 500)], ids=["records", "bytes"])
def test_what_a_dead_ledger_has_not_acknowledged_counts_as_held(records_max: int, id_bytes: int) -> None:
    bench = bench_of(partitions=1, records_max=records_max)
    bench.broker.short.add(LEDGER.name)
    for number in range(3_000):
        named = b"%d-" % number + Random(number).randbytes(id_bytes).hex().encode()
        bench.send(b"%d" % number, 0, [("tickover-id", named)])
        bench.step(5)
    assert bench.replica.assignment.paused
    assert len(arrived(bench, "mail")) < 2_500
    bench.broker.short.clear()
    bench.run(2_000)
    assert arrived(bench, "mail") == list(range(3_000))
    assert (bench.lane.imbalance, bench.replica.settlement.unwritten) == (0, (0, 0))


def test_a_target_that_is_slow_loses_nothing() -> None:
    bench = bench_of(partitions=1)
    bench.delay_ms = 7_000
    for number in range(3_000):
        bench.send(b"%d" % number, 0, OTHER if number % 2 else None)
        bench.step(10)
    bench.delay_ms = 1
    bench.run(60_000)
    assert arrived(bench, "other") == list(range(1, 3_000, 2))
    assert arrived(bench, "mail") == list(range(0, 3_000, 2))
    assert (in_flight(bench), bench.lane.imbalance, bench.replica.emitter.redelivery.one_by_one) == (0, 0, set())
