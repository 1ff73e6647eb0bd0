"""How many records a second one sidecar holds and fires at saturation, against a bare consume-and-produce.

    python -m benchmarks.throughput [--records 1000000] [--rounds 2] [--warm-up 500000] [--only wheel|overflow]

Wheel: the source is filled beforehand with records whose delays, counted from the moment the sidecar begins to read,
are spread over 5 s: more falls due each second than it can fire.
Overflow: a horizon of 1 s, and all due after the last has been read, so that every record goes through Redis. Filling
and draining are measured apart; the rate of both together is that of one record after the other.
Before anything is measured some records go through the wheel: a young broker compiles its code, on the same cores,
while the sidecar works, and would be done with it when the baseline's turn comes.
"""

import argparse
import random
import time
from typing import Final, NamedTuple

from benchmarks.harness import SOURCE, Bench, Report, sleep_until, wait_until
from benchmarks.traffic import Filler, Rates, Reader, lateness, rates

WARM_UP_RECORDS: Final = 500_000
SPREAD_MS: Final = 5_000
START_S: Final = 3.0  # from the start of the process to its first read
FILL_RECORDS_PER_S: Final = 100_000
TIMEOUT_S: Final = 180.0
OVERFLOW_SPREAD_MS: Final = 2_000
OVERFLOW_RECORDS_PER_S: Final = 20_000  # what filling the overflow is allowed to take at the least


class Result(NamedTuple):
    """One measurement."""

    what: str
    rates: Rates
    cpu_us: float
    note: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=WARM_UP_RECORDS, help="records before anything is measured")
    parser.add_argument("--only", choices=("wheel", "overflow"))
    arguments = parser.parse_args()
    count: int = arguments.records
    results: list[tuple[Result, float]] = []
    with Bench() as bench:
        if arguments.warm_up:
            run_wheel(bench, "warm-up", arguments.warm_up)
        for number in range(arguments.rounds):
            baseline = 0.0
            if arguments.only != "overflow":
                result, passed = run_wheel(bench, number, count)
                baseline = passed.rates.middle
                results += [(passed, 1.0), (result, result.rates.middle / baseline)]
            if arguments.only != "wheel":
                if not baseline:
                    passed = run_passthrough(bench, number, count)
                    baseline = passed.rates.middle
                    results.append((passed, 1.0))
                for result in run_overflow(bench, number, count):
                    results.append((result, result.rates.middle / baseline))
    show(results, count)


def run_wheel(bench: Bench, name: int | str, count: int, **settings: str) -> tuple[Result, Result]:
    """Through the wheel, then the same records through the baseline."""
    source, target, passed = f"{SOURCE}-wheel-{name}", f"bench-target-wheel-{name}", f"bench-passed-{name}"
    bench.topics(source, target, passed)
    begin_s = time.time() + count / FILL_RECORDS_PER_S + START_S + 1
    filler = Filler(bench.kafka.bootstrap, source, target)
    filler.fill(count, int(begin_s * 1000), lambda: random.randrange(SPREAD_MS))
    sleep_until(begin_s - START_S)
    with bench.sidecar(f"wheel-{name}", **settings) as sidecar, Reader(bench.kafka.bootstrap, target) as reader:
        reader.wait_for(count, sidecar, TIMEOUT_S)
        wait_until(lambda: sidecar.count("emitted") >= count, TIMEOUT_S, "all are settled")
        cpu_us = sidecar.cpu_s() * 1e6 / count
        sidecar.stop()
        arrivals = reader.read(count)
    behind_s = arrivals[0].appended_ms / 1000 - begin_s
    note = f"read from {behind_s:.1f} s after the first due; early: {lateness(arrivals).early}"
    result = Result("held and fired through the wheel", rates(arrivals), cpu_us, note)
    baseline = passthrough(bench, source, passed, count)
    bench.delete(source)
    return result, baseline


def run_passthrough(bench: Bench, number: int, count: int) -> Result:
    """The baseline alone."""
    source, passed = f"{SOURCE}-passed-{number}", f"bench-passed-{number}"
    bench.topics(source, passed)
    Filler(bench.kafka.bootstrap, source, passed).fill(count, 0, lambda: 0)
    result = passthrough(bench, source, passed, count)
    bench.delete(source)
    return result


def passthrough(bench: Bench, source: str, target: str, count: int) -> Result:
    """Consume and produce on, in a process of its own."""
    arguments = (bench.kafka.bootstrap, target, source, target, str(count))
    with bench.child("benchmarks.passthrough", *arguments) as child, Reader(bench.kafka.bootstrap, target) as reader:
        reader.wait_for(count, child, TIMEOUT_S)
        cpu_us = child.cpu_s() * 1e6 / count
        child.stop()
        return Result("baseline: consume and produce on", rates(reader.read(count)), cpu_us, "")


def run_overflow(bench: Bench, number: int, count: int) -> list[Result]:
    """Into Redis and back."""
    group = f"overflow-{number}"
    source, target = f"{SOURCE}-{group}", f"bench-target-{group}"
    bench.topics(source, target)
    fill_s = count / OVERFLOW_RECORDS_PER_S
    begin_s = time.time() + count / FILL_RECORDS_PER_S + START_S + 1
    filler = Filler(bench.kafka.bootstrap, source, target)
    filler.fill(count, int((begin_s + fill_s) * 1000), lambda: random.randrange(OVERFLOW_SPREAD_MS))
    with bench.sidecar(group, horizon="1s") as sidecar, Reader(bench.kafka.bootstrap, target) as reader:
        started_s = time.time()
        wait_until(sidecar.is_up, TIMEOUT_S, "the sidecar answers")
        wait_until(lambda: sidecar.count("accepted") > 0, TIMEOUT_S, "the first record is read")
        read_s, first = time.time(), sidecar.count("accepted")
        wait_until(lambda: bench.committed(group, source) >= count, TIMEOUT_S, "all records are in Redis")
        filled_s, cpu_filled_s = time.time(), sidecar.cpu_s()
        reader.wait_for(count, sidecar, TIMEOUT_S + fill_s)
        wait_until(lambda: sidecar.count("emitted") >= count, TIMEOUT_S, "all are settled")
        cpu_us = sidecar.cpu_s() * 1e6 / count
        sidecar.stop()
        arrivals = reader.read(count)
    into = (count - first) / (filled_s - read_s)
    back = rates(arrivals)
    both = Rates(1 / (1 / into + 1 / back.whole), 1 / (1 / into + 1 / back.middle))
    margin_s = begin_s + fill_s - filled_s
    note = f"all held {margin_s:.1f} s before the first due, {read_s - started_s:.1f} s to the first read"
    return [
        Result("into the overflow", Rates(into, into), cpu_filled_s * 1e6 / count, note),
        Result("out of the overflow and fired", back, cpu_us - cpu_filled_s * 1e6 / count, ""),
        Result("through the overflow and back", both, cpu_us, f"early: {lateness(arrivals).early}"),
    ]


def show(results: list[tuple[Result, float]], count: int) -> None:
    rows = [
        (
            result.what,
            f"{result.rates.whole:,.0f}",
            f"{result.rates.middle:,.0f}",
            f"{ratio:.2f}",
            f"{result.cpu_us:.1f}",
            result.note,
        )
        for result, ratio in results
    ]
    caveats = (
        f"{count:,} records a round, values of 200 bytes, two headers of the user's; {SPREAD_MS} ms of delays (wheel)",
        "broker, Redis and client share the machine; the ratio compares the middle 80 % of the records of one round",
        "CPU is that of the whole process from its start, of all its threads",
    )
    Report(("what", "records/s", "middle 80 %", "of baseline", "CPU us/record", ""), rows, caveats).show()


if __name__ == "__main__":
    main()
