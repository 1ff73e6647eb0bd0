"""Many records due in one and the same second: does the group notice, does REST, and how fast are they gone?

    python -m benchmarks.burst [--records 500000] [--only small]

The baselines, in the same run: consume and produce on, and the wheel at saturation (benchmarks.throughput). Small
bursts to a target whose batches must be small stand beside the same bursts to one without such a limit.
"""

import argparse
import random
import threading
import time
from typing import Final

from benchmarks.harness import SOURCE, Bench, Report, Sidecar, wait_until
from benchmarks.throughput import FILL_RECORDS_PER_S, START_S, run_wheel
from benchmarks.timed_turns import long_turns
from benchmarks.traffic import Filler, Reader, lateness, rates

BURST_MS: Final = 1_000
READ_RECORDS_PER_S: Final = 25_000  # what reading is allowed to take at the least
TIMEOUT_S: Final = 180.0
SMALL_RECORDS: Final = 3_000
SMALL_BURSTS: Final = 3
SMALL_AHEAD_MS: Final = 8_000
LIMIT_BYTES: Final = 20_000  # of a batch, where the client's has a megabyte
LOOK_S: Final = 0.02
WHEEL_SHARE: Final = 0.98  # the last ones may follow during the burst


class Watch:
    """Asks /v1/stats over and over and remembers how long it took."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.took_s: list[float] = []
        self._sidecar = sidecar
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            started = time.perf_counter()
            self._sidecar.get("/v1/stats")
            self.took_s.append(time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--only", choices=("small",), help="nothing but the small bursts")
    given = parser.parse_args()
    count: int = given.records
    with Bench() as bench:
        small = run_small_bursts(bench)
        Report(("target", "burst", "p50 ms", "p99 ms", "last ms"), small, (f"{SMALL_RECORDS:,} records each",)).show()
        if given.only:
            return
        saturated, passed = run_wheel(bench, 0, 2 * count)
        rows = [
            (each.what, f"{each.rates.whole:,.0f}", f"{each.rates.middle:,.0f}", "", "") for each in (passed, saturated)
        ]
        rows.append(run_burst(bench, count, saturated.rates.middle))
    caveats = (
        f"{count:,} records due within {BURST_MS} ms; drained from the first append to the last",
        "heartbeats: a missed session would be a rebalance and repeated records, which end this program with an error",
        "broker, REST client and sidecar share the machine: a turn that is longer than its work waited for a processor",
    )
    Report(("what", "records/s", "middle 80 %", "REST /v1/stats", ""), rows, caveats).show()


def run_small_bursts(bench: Bench) -> list[tuple[str, ...]]:
    """Lateness of bursts that follow each other, to two targets of one process."""
    source, targets = f"{SOURCE}-small", {"no limit": "bench-target-usual", "a limit": "bench-target-limited"}
    bench.topics(source, targets["no limit"])
    bench.topics(targets["a limit"], max_message_bytes=str(LIMIT_BYTES))
    rows: list[tuple[str, ...]] = []
    with bench.sidecar("small") as sidecar:
        sidecar.wait_ready()
        for number in range(1, SMALL_BURSTS + 1):
            for target in targets.values():
                due_ms = int(time.time() * 1_000) + SMALL_AHEAD_MS
                Filler(bench.kafka.bootstrap, source, target).fill(SMALL_RECORDS, due_ms, lambda: 0)
                with Reader(bench.kafka.bootstrap, target) as reader:
                    reader.wait_for(number * SMALL_RECORDS, sidecar, TIMEOUT_S)
        sidecar.stop()
    for what, target in targets.items():
        with Reader(bench.kafka.bootstrap, target) as reader:
            arrivals = sorted(reader.read(SMALL_BURSTS * SMALL_RECORDS), key=lambda arrival: arrival.due_ms)
        for number in range(SMALL_BURSTS):
            late = lateness(arrivals[number * SMALL_RECORDS : (number + 1) * SMALL_RECORDS])
            rows.append((what, str(number + 1), str(late.p50_ms), str(late.p99_ms), str(late.max_ms)))
    return rows


def run_burst(bench: Bench, count: int, saturated: float) -> tuple[str, str, str, str, str]:
    source, target = f"{SOURCE}-burst", "bench-target-burst"
    bench.topics(source, target)
    due_s = time.time() + count / FILL_RECORDS_PER_S + START_S + count / READ_RECORDS_PER_S
    filler = Filler(bench.kafka.bootstrap, source, target)
    filler.fill(count, int(due_s * 1000), lambda: random.randrange(BURST_MS))
    settings = {"horizon": "120s", "wheel__records_max": str(2 * count), "wheel__bytes_max": "8GiB"}
    timed = {"test_turns": str(bench.turns)}
    with bench.sidecar("burst", **settings, **timed) as sidecar, Reader(bench.kafka.bootstrap, target) as reader:
        sidecar.wait_ready()
        wait_until(lambda: sidecar.count("accepted") >= WHEEL_SHARE * count, TIMEOUT_S, "the records are held")
        margin_s, rebalances = due_s - time.time(), sidecar.metric("tickover_rebalances_total")
        with Watch(sidecar) as watch:
            reader.wait_for(count, sidecar, TIMEOUT_S)
        rebalances = sidecar.metric("tickover_rebalances_total") - rebalances
        sidecar.stop()
        arrivals = reader.read(count)
    turns = long_turns(bench.turns, due_s)
    longest_ms = round(max((turn.took for turn in turns), default=0.0) * 1_000)
    worked_ms = round(max((turn.worked for turn in turns), default=0.0) * 1_000)
    rate, took_ms = rates(arrivals), sorted(round(took_s * 1000) for took_s in watch.took_s)
    return (
        "burst",
        f"{rate.whole:,.0f}",
        f"{rate.middle:,.0f}",
        f"{len(took_ms)} times, median {took_ms[len(took_ms) // 2]} ms, max {took_ms[-1]} ms",
        (
            f"{rate.middle / saturated:.2f} of saturated; held {margin_s:.1f} s before; longest turn {longest_ms} ms, "
            f"most work in one {worked_ms} ms; rebalances {rebalances:.0f}; early {lateness(arrivals).early}"
        ),
    )


if __name__ == "__main__":
    main()
