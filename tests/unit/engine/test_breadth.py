"""A turn looks at the partitions that have something to do, however many there are."""

from collections import Counter
from typing import Any

import pytest

from sidecar.engine.engine import PASS_INTERVAL_MS, PASS_LANES_MAX, PUBLISH_INTERVAL_MS
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.record import TopicPartition
from tests.unit.engine_bench import SOURCE, Bench

PARTITIONS = 1_200
visits: Counter[TopicPartition] = Counter()


class Watched(SourcePartition):
    """Counts how often anything of it is looked at."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        visits[object.__getattribute__(self, "id")] += 1
        return object.__getattribute__(self, name)


class WideBench(Bench):
    """A source of many partitions, all of one replica."""

    source_partitions = PARTITIONS

    def watch(self) -> None:
        """Count from now on what is looked at, but for what the simulation asks after each turn."""
        self.replica._check_rest = lambda told_ms: None  # type: ignore[method-assign]
        self.replica.engine._passed_ms = self.clock.now_ms  # the next look for marks is far
        self.replica.engine._to_pass = []
        for lane in self.replica.lanes:
            lane.__class__ = Watched
        visits.clear()


@pytest.fixture(name="bench", params=[None, str], ids=["at_least_once", "exactly_once"])
def bench_fixture(request: pytest.FixtureRequest) -> WideBench:
    bench = WideBench(trouble=request.param)
    bench.run(400)
    assert len(bench.replica.lanes) == PARTITIONS
    return bench


def test_a_turn_without_news_looks_at_no_partition_but_one_that_speaks_for_all(bench: WideBench) -> None:
    bench.watch()
    bench.run(2 * PUBLISH_INTERVAL_MS)
    assert len(visits) <= 1


def test_of_many_partitions_a_turn_looks_at_those_with_news(bench: WideBench) -> None:
    bench.watch()
    for partition in (7, 700):
        bench.send(b"hello", 200, partition=partition)
    bench.wait_until(lambda: len(bench.values("mail")) == 2)
    bench.run(2 * PUBLISH_INTERVAL_MS)
    others = visits.keys() - {TopicPartition(SOURCE, 7), TopicPartition(SOURCE, 700)}
    assert len(others) <= 1
    assert bench.replica.engine.stats.topics[SOURCE].emitted == 2


def test_marks_behind_the_last_record_are_asked_for_a_few_partitions_at_a_time(bench: WideBench) -> None:
    bench.watch()
    bench.clock.advance(PASS_INTERVAL_MS)
    asked = 0
    for _ in range(-(-PARTITIONS // PASS_LANES_MAX)):
        visits.clear()
        bench.step()
        assert 0 < len(visits) <= PASS_LANES_MAX + 1
        asked += len(visits)
    assert asked >= PARTITIONS


def test_what_is_published_of_many_partitions_is_what_they_hold(bench: WideBench) -> None:
    for partition in range(50):
        bench.send(b"near", 500, partition=partition)
        bench.send(b"far", 60_000, partition=partition)
    bench.run(2 * PUBLISH_INTERVAL_MS)
    near = bench.replica.engine.stats.topics[SOURCE]
    assert (near.wheel, near.overflow) == (50, 50)
    bench.run(1_000)
    later = bench.replica.engine.stats.topics[SOURCE]
    assert (later.wheel, later.overflow, later.emitted) == (0, 50, 50)


def test_all_are_asked_for_marks_though_an_idle_engine_turns_seldom(bench: WideBench) -> None:
    bench.watch()
    for _ in range(2 * -(-PARTITIONS // PASS_LANES_MAX)):
        bench.clock.advance(PUBLISH_INTERVAL_MS)
        bench.step()
    assert len(visits) == PARTITIONS
