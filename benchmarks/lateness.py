"""How late records are: broker append time minus due, at a steady load.

    python -m benchmarks.lateness [--rates 1000 5000 20000] [--seconds 20]

Delays from 0.2 to 3 s. The baseline is what consume and produce on takes at the same load: append in the target minus
timestamp in the source, the way through two topics without any waiting. With `at_least_once`: append time says nothing
of when readers of committed records see them, which `benchmarks.guarantees` measures.
"""

import argparse
from typing import Final

from benchmarks.harness import SOURCE, Bench, Report
from benchmarks.traffic import Lateness, Reader, lateness

DELAY_MIN_MS: Final = 200
DELAY_MAX_MS: Final = 3_000
AFTER_S: Final = 60.0
BASELINE_SECONDS: Final = 5
FIRST_MS: Final = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 5_000, 20_000])
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    rows = []
    with Bench() as bench:
        for rate in arguments.rates:
            rows.append(row("baseline", rate, run_passthrough(bench, rate, min(arguments.seconds, BASELINE_SECONDS))))
            rows.append(row("tickover", rate, run_sidecar(bench, rate, arguments.seconds)))
    caveats = (
        f"{arguments.seconds} s of load (baseline {BASELINE_SECONDS} s), 200-byte values, two user headers",
        "the first second is left out of the percentiles: clients connect",
        "broker, load and client share the machine: at the highest load they compete for its processors",
        "the client's linger.ms of 5 ms is part of both",
    )
    Report(("what", "records/s", "p50 ms", "p99 ms", "max ms", "early"), rows, caveats).show()


def row(what: str, rate: int, late: Lateness) -> tuple[str, ...]:
    return (what, f"{rate:,}", *map(str, late))


def run_sidecar(bench: Bench, rate: int, seconds: int) -> Lateness:
    """Held for their delays."""
    source, target = f"{SOURCE}-{rate}", f"bench-target-{rate}"
    bench.topics(source, target)
    reader, sidecar = Reader(bench.kafka.bootstrap, target), bench.sidecar(f"late-{rate}", guarantee="at_least_once")
    with sidecar, reader:
        sidecar.wait_ready()
        load = (bench.kafka.bootstrap, source, target, str(rate), str(seconds), str(DELAY_MIN_MS), str(DELAY_MAX_MS))
        with bench.child("benchmarks.load", *load):
            reader.wait_for(rate * seconds, sidecar, seconds + AFTER_S)
        sidecar.stop()
        arrivals = reader.read(rate * seconds)
    bench.delete(source)
    return lateness(arrivals, FIRST_MS)


def run_passthrough(bench: Bench, rate: int, seconds: int) -> Lateness:
    """Not held at all: due is when the record was made."""
    source, target, count = f"{SOURCE}-passed-{rate}", f"bench-passed-{rate}", rate * seconds
    bench.topics(source, target)
    arguments = (bench.kafka.bootstrap, target, source, target, str(count))
    with bench.child("benchmarks.passthrough", *arguments) as child, Reader(bench.kafka.bootstrap, target) as reader:
        bench.wait_for_group(target, child)
        with bench.child("benchmarks.load", bench.kafka.bootstrap, source, target, str(rate), str(seconds), "0", "0"):
            reader.wait_for(count, child, seconds + AFTER_S)
        child.stop()
        arrivals = reader.read(count)
    bench.delete(source)
    return lateness(arrivals, FIRST_MS)


if __name__ == "__main__":
    main()
