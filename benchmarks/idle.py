"""Cost of a process that has little to do: processor, memory and threads at rates from nothing on, and lateness.

    python -m benchmarks.idle [--rates 0 1 10 100 1000] [--seconds 20] [--kafka java|reference]

One source of 4 partitions, default settings, delays from 0.2 to 3 s. Beside it, in the same run and at the same rates,
the baseline: an empty confluent-kafka consumer with a producer, which passes records on. Lateness is what a
read_committed consumer in a process of its own sees. CPU is read from /proc, so a machine that is busy elsewhere makes
it more, by cold caches, but doesn't count what others do.
"""

import argparse
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.guarantees import lateness_seen, reading
from benchmarks.harness import SOURCE, Bench, Child, Report, Sidecar
from benchmarks.lateness import DELAY_MAX_MS, DELAY_MIN_MS

SETTLED_S: Final = 16.0  # after the start: until then parts begin that run once
WARM_S: Final = 5.0  # of each load: until records come out at its rate
COLUMNS: Final = ("what", "records/s", "CPU %", "PSS MB", "threads", "p50 ms", "p99 ms")


class Cost(NamedTuple):
    """Processor in percent of a core, memory in megabytes, threads."""

    cpu: float
    pss_mb: float
    threads: int

    def columns(self) -> tuple[str, ...]:
        return f"{self.cpu:.1f}", f"{self.pss_mb:.0f}", str(self.threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 1, 10, 100, 1_000])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--kafka", choices=("java", "reference"), default="java")
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    with Bench(reference=arguments.kafka == "reference") as bench:
        source, target = f"{SOURCE}-passed", "bench-passed"
        bench.topics(source, target)
        with bench.child("benchmarks.bare_clients", bench.kafka.bootstrap, "idle-passed", source, target) as child:
            bench.wait_for_group("idle-passed", child)
            rows += [("baseline", *row(bench, child, source, rate, arguments.seconds)) for rate in arguments.rates]
        source = f"{SOURCE}-held"
        bench.topics(source)
        with bench.sidecar("idle") as sidecar:
            sidecar.wait_ready()
            time.sleep(SETTLED_S)
            rows += [("tickover", *row(bench, sidecar, source, rate, arguments.seconds)) for rate in arguments.rates]
    caveats = (
        f"{arguments.seconds} s of each load, after {WARM_S:.0f} s; one process for all rates, in this order",
        "the baseline (`benchmarks.bare_clients`) passes records on at once: it has no lateness",
        "PSS: memory of its own, and its share of what it shares",
    )
    Report(COLUMNS, rows, caveats).show()


def row(bench: Bench, child: Child, source: str, rate: int, seconds: int) -> tuple[str, ...]:
    """One process under one load."""
    if not rate:
        return "0", *cost_over(child, seconds).columns(), "", ""
    target, lasts = f"bench-target-{source}-{rate}", seconds + int(2 * WARM_S)
    bench.topics(target)
    load = (bench.kafka.bootstrap, source, target, str(rate), str(lasts), str(DELAY_MIN_MS), str(DELAY_MAX_MS))
    if not isinstance(child, Sidecar):
        with bench.child("benchmarks.load", *load):
            time.sleep(WARM_S)
            return f"{rate:,}", *cost_over(child, seconds).columns(), "", ""
    read = bench.child("benchmarks.committed_reader", *reading(bench, target, rate * lasts))
    with read as reader, bench.child("benchmarks.load", *load):
        time.sleep(WARM_S)
        cost = cost_over(child, seconds)
        p50, p99, *_ = lateness_seen(bench, reader, lasts)
    return f"{rate:,}", *cost.columns(), p50, p99


def cost_over(child: Child, seconds: int) -> Cost:
    """Processor time that a child takes within so many seconds; its memory and threads at their end."""
    began_s, cpu_s = time.monotonic(), child.cpu_s()
    time.sleep(seconds)
    cpu = 100 * (child.cpu_s() - cpu_s) / (time.monotonic() - began_s)
    process = Path(f"/proc/{child.process.pid}")
    rollup = (process / "smaps_rollup").read_text().splitlines()
    pss_kb = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return Cost(cpu, pss_kb / 1_000, len(list((process / "task").iterdir())))


if __name__ == "__main__":
    main()
