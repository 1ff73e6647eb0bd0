"""Ten million records due in the same second: no turn of the engine is long, whether time goes on evenly or jumps."""

import gc
import time

import pytest

from sidecar.engine.commit.at_least_once import AtLeastOnce
from sidecar.engine.commit.interval import CommitInterval
from sidecar.model.record import Held
from tests.unit.engine_bench import Bench

RECORDS = 10_000_000
SECOND_MS = 1_000
TURNS = 200
TURN_S_MAX = 0.1


class Counter:
    """A producer that takes everything and says nothing."""

    refused = LookupError

    def __init__(self) -> None:
        self.produced = 0

    def produce(self, *_: object) -> None:
        self.produced += 1

    def poll(self, _: float) -> int:
        return 0


def due_in_one_second(bench: Bench) -> None:
    """One held record, ten million times: what is measured is the wheel's and the emitter's work."""
    bench.send(b"value", 1_500)
    bench.run(60)
    wheel = bench.lane.wheel
    [(first, [held])] = wheel.buckets.items()
    assert isinstance(held, Held)
    wheel.insert_all([held._replace(due_ms=tick) for tick in range(first + 1, first + SECOND_MS)])
    for tick in range(first, first + SECOND_MS):
        wheel.buckets[tick] = [held] * (RECORDS // SECOND_MS)
    wheel.count = RECORDS
    bench.replica.emitter.load.records = RECORDS
    bench.clock.now_ms = held.due_ms - 1


@pytest.mark.parametrize("stall_ms", [0, SECOND_MS], ids=["time goes on", "after a second's stall"])
def test_no_turn_is_long(stall_ms: int) -> None:
    bench = Bench(wheel_records_max=2 * RECORDS, queue_max=2 * RECORDS)
    due_in_one_second(bench)
    output = Counter()
    settlement = bench.replica.settlement
    assert isinstance(settlement, AtLeastOnce)
    settlement.open = CommitInterval(output)
    settlement._outputs = (output, output)  # type: ignore[assignment]
    bench.clock.now_ms += stall_ms
    gc.disable()  # as the process does
    try:
        longest_s = 0.0
        for _ in range(TURNS):
            bench.clock.now_ms += 1
            started_s = time.thread_time()  # not the wall's: another process may have the processor
            bench.replica.turn()
            longest_s = max(longest_s, time.thread_time() - started_s)
    finally:
        gc.enable()
    print(f"\nlongest of {TURNS} turns: {longest_s * 1_000:.1f} ms, {output.produced:,} emitted")
    assert output.produced > TURNS * 500
    assert longest_s < TURN_S_MAX
