"""How many records a second one, two ... processes of `tickover run --processes` fire, which fall due all at once.

    python -m benchmarks.processes [--records 300000] [--rounds 2] [--processes 1 2]

Each time all processes are members with partitions before the source is filled. Everything is due at one moment, when
all is held, so what is measured is the drain: fire and settle. The baseline consumes and produces on.
"""

import argparse
import time
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from benchmarks.harness import PARTITIONS, SOURCE, Bench, Report, Sidecar, wait_until
from benchmarks.throughput import TIMEOUT_S, Result, passthrough
from benchmarks.traffic import Filler, Reader, lateness, rates

FILL_RECORDS_PER_S: Final = 15_000  # filled and held, on a machine that is busy
RESERVE_S: Final = 5.0  # between the expected end of that and the due time, to catch up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    results: list[Result] = []
    with Bench() as bench:
        for number in range(arguments.rounds):
            for processes in arguments.processes:
                results.append(run(bench, number, processes, arguments.records))
            source, target = f"{SOURCE}-passed-{number}", f"bench-passed-{number}"
            bench.topics(source, target)
            Filler(bench.kafka.bootstrap, source, target).fill(arguments.records, 0, lambda: 0)
            results.append(passthrough(bench, source, target, arguments.records))
            bench.delete(source)
    show(results, arguments.records)


def run(bench: Bench, number: int, processes: int, count: int) -> Result:
    """One drain by so many processes."""
    group = f"processes-{processes}-{number}"
    source, target = f"{SOURCE}-{group}", f"bench-target-{group}"
    bench.topics(source, target)
    with (
        bench.sidecar(group, processes=str(processes)) as sidecar,
        Reader(bench.kafka.bootstrap, target) as reader,
    ):
        wait_until(lambda: members(bench, group) == processes, TIMEOUT_S, "all have partitions")
        begin_s = time.time() + count / FILL_RECORDS_PER_S + RESERVE_S
        Filler(bench.kafka.bootstrap, source, target).fill(count, int(begin_s * 1_000), lambda: 0)
        wait_until(lambda: held(sidecar) >= count or time.time() > begin_s, TIMEOUT_S, "all is held")
        spare_s, cpu_before_s = begin_s - time.time(), cpu_s(sidecar)
        reader.wait_for(count, sidecar, TIMEOUT_S)
        wait_until(lambda: bench.committed(group, source) >= count, TIMEOUT_S, "all are settled")
        cpu_us = (cpu_s(sidecar) - cpu_before_s) * 1e6 / count
        sidecar.stop()
        arrivals = reader.read(count)
    bench.delete(source)
    note = f"all held {spare_s:.1f} s before it was due; early: {lateness(arrivals).early}"
    return Result(f"fired by {processes}", rates(arrivals), cpu_us, note)


def members(bench: Bench, group: str) -> int:
    """How many members have partitions, of all that there are."""
    try:
        found = bench.admin.describe_consumer_groups([group])[group].result()
    except KafkaException:  # not there yet
        return 0
    shares = [len(member.assignment.topic_partitions) for member in found.members]
    return len(shares) if all(shares) and sum(shares) == PARTITIONS else 0


def held(sidecar: Sidecar) -> float:
    """Records held in memory, by all processes."""
    return sidecar.sum_of("tickover_held")


def cpu_s(sidecar: Sidecar) -> float:
    """Processor time so far of the process and those that it has started."""
    pid = sidecar.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sidecar.cpu_s() + sum(sidecar.cpu_s(int(child)) for child in children)


def show(results: list[Result], count: int) -> None:
    rows = [
        (one.what, f"{one.rates.whole:,.0f}", f"{one.rates.middle:,.0f}", f"{one.cpu_us:.1f}", one.note)
        for one in results
    ]
    caveats = (
        f"{count:,} records, values of 200 bytes, {PARTITIONS} source partitions",
        "broker, Redis, reader and processes share the machine: processes gain only where it has cores to spare",
        "CPU is that of all processes and the supervisor, from the due time on; of the baseline from its start",
    )
    Report(("what", "records/s", "middle 80 %", "CPU us/record", ""), rows, caveats).show()


if __name__ == "__main__":
    main()
