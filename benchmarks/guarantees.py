"""Cost of exactly once: throughput and lateness of both guarantees, side by side.

    python -m benchmarks.guarantees [--records 1000000] [--rounds 2] [--rates 5000 20000] [--seconds 10] [--warm-up 20]
                                    [--only ...]

Lateness is what a read_committed consumer in a process of its own sees: its clock minus due. All is on one machine, so
there is one clock. Its baseline is `benchmarks.bare_transactions`. TMPDIR=/dev/shm: the broker's files are in memory.
"""

import argparse
from typing import Final

from benchmarks.harness import SOURCE, Bench, BenchmarkError, Child, Report
from benchmarks.lateness import AFTER_S, DELAY_MAX_MS, DELAY_MIN_MS, FIRST_MS
from benchmarks.throughput import run_wheel

MODES: Final = ("at_least_once", "exactly_once")
READER_LOG: Final = "benchmarks.committed_reader.log"
INTERVALS_MS: Final = (20, 50)
WARM_UP_S: Final = 90  # until then the broker still compiles at that load
BARE: Final = "bare transactions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rates", type=int, nargs="+", default=[5_000, 20_000])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=WARM_UP_S, help="seconds of load before lateness is measured")
    parser.add_argument("--only", choices=("throughput", "lateness"))
    arguments = parser.parse_args()
    with Bench() as bench:
        if arguments.only != "lateness":
            show_throughput(bench, arguments.records, arguments.rounds)
        if arguments.only != "throughput":
            if arguments.warm_up:
                lateness_row(bench, max(arguments.rates), arguments.warm_up, MODES[-1], INTERVALS_MS[0], "warm-up-")
            show_lateness(bench, arguments.rates, arguments.seconds)


def show_throughput(bench: Bench, count: int, rounds: int) -> None:
    run_wheel(bench, "warm-up", count)  # as in `benchmarks.throughput`
    rows = []
    for number in range(rounds):
        base = 0.0
        for mode in MODES:
            result, passed = run_wheel(bench, f"{mode.replace('_', '-')}-{number}", count, guarantee=mode)
            base = base or result.rates.middle
            rows.append(
                (
                    mode,
                    f"{result.rates.middle:,.0f}",
                    f"{result.rates.middle / base:.2f}",
                    f"{result.rates.middle / passed.rates.middle:.2f}",
                    f"{result.cpu_us:.1f}",
                )
            )
    caveats = (f"{count:,} records held and fired through the wheel, middle 80 %; each beside its own pass-through",)
    Report(("mode", "records/s", "of at_least_once", "of pass-through", "CPU us/record"), rows, caveats).show()


def show_lateness(bench: Bench, rates: list[int], seconds: int) -> None:
    rows = []
    for rate in rates:
        rows.append(lateness_row(bench, rate, seconds, "at_least_once", 50))
        for interval_ms in INTERVALS_MS:
            rows.append(bare_row(bench, rate, seconds, interval_ms))
            rows.append(lateness_row(bench, rate, seconds, "exactly_once", interval_ms))
    caveats = (
        f"{seconds} s of load, 200-byte values, two user headers; the first second is left out",
        "on a broker that has run for a while: its transactions are compiled only once they are used",
        "broker, load, sidecar and reader share the machine",
    )
    Report(("mode", "interval", "records/s", "p50 ms", "p99 ms", "max ms", "early"), rows, caveats).show()


def lateness_row(
    bench: Bench, rate: int, seconds: int, mode: str, interval_ms: int, prefix: str = ""
) -> tuple[str, ...]:
    name, count = f"{prefix}{mode.replace('_', '-')}-{interval_ms}-{rate}", rate * seconds
    source, target = f"{SOURCE}-{name}", f"bench-target-{name}"
    bench.topics(source, target)
    read = bench.child("benchmarks.committed_reader", *reading(bench, target, count))
    with read as reader, bench.sidecar(name, guarantee=mode, settle_interval_ms=str(interval_ms)) as sidecar:
        sidecar.wait_ready()
        load = (source, target, str(rate), str(seconds), str(DELAY_MIN_MS), str(DELAY_MAX_MS))
        with bench.child("benchmarks.load", bench.kafka.bootstrap, *load):
            seen = lateness_seen(bench, reader, seconds)
    bench.delete(source)
    return (mode, f"{interval_ms} ms", f"{rate:,}", *seen)


def bare_row(bench: Bench, rate: int, seconds: int, interval_ms: int) -> tuple[str, ...]:
    """The baseline."""
    target = f"bench-target-bare-{interval_ms}-{rate}"
    bench.topics(target)
    load = (target, str(rate), str(seconds), str(interval_ms))
    read = bench.child("benchmarks.committed_reader", *reading(bench, target, rate * seconds))
    with read as reader, bench.child("benchmarks.bare_transactions", bench.kafka.bootstrap, *load):
        seen = lateness_seen(bench, reader, seconds)
    return (BARE, f"{interval_ms} ms", f"{rate:,}", *seen)


def reading(bench: Bench, target: str, count: int) -> tuple[str, ...]:
    (bench.path / READER_LOG).unlink(missing_ok=True)
    return bench.kafka.bootstrap, target, str(count), str(FIRST_MS)


def lateness_seen(bench: Bench, reader: Child, seconds: int) -> list[str]:
    """p50, p99, latest and how many came early, when all have come."""
    status = reader.process.wait(seconds + AFTER_S)
    said = (bench.path / READER_LOG).read_text()
    if status:
        raise BenchmarkError(f"the reader ended with {status}: {said[-500:]}")
    return said.split()


if __name__ == "__main__":
    main()
