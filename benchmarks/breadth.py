"""Cost of many source partitions: processor, lateness and memory, idle and at a low rate.

    python -m benchmarks.breadth [--partitions 4 100 400 1200] [--rates 0 100 1000] [--seconds 20]

Records are spread over all partitions. The baseline of each row is the run with the fewest partitions at the same
rate. Lateness is the broker's append time minus due; with `exactly_once`, committed readers see it an interval later.
CPU is of the whole process.
"""

import argparse
import time
from contextlib import closing
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from benchmarks.harness import SOURCE, Bench, Report, Sidecar, sleep_until, wait_until
from benchmarks.traffic import Lateness, Reader, lateness
from policies.kafka_clients import Consumer

DELAY_MIN_MS: Final = 200
DELAY_MAX_MS: Final = 3_000
AFTER_S: Final = 120.0
TOPIC_S: Final = 300.0  # a broker of one machine takes long to make the logs of thousands of partitions
CALM_S: Final = 15.0  # from ready on: imports, first looks at topics
FIRST_MS: Final = 1_000
ASK_S: Final = 60.0


class Run(NamedTuple):
    """Cost of one run. `ready_s`: from the process's start on. `late` is None where nothing was sent."""

    ready_s: float
    cpu_percent: float  # of one core
    memory_bytes: int
    late: Lateness | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="+", default=[4, 100, 400, 1_200])
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 100, 1_000])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--guarantee", choices=("exactly_once", "at_least_once"), default="exactly_once")
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    fewest = min(arguments.partitions)
    base: dict[int, Run] = {}
    with Bench() as bench:
        for partitions in sorted(arguments.partitions):
            for rate in arguments.rates:
                run = measure(bench, partitions, rate, arguments.seconds, arguments.guarantee)
                base.setdefault(rate, run)
                rows.append(row(partitions, rate, run, base[rate], fewest))
    caveats = (
        f"{arguments.guarantee}, {arguments.seconds} s each, {CALM_S:.0f} s after the process is ready",
        f"more: beside the run with {fewest} partitions; memory a partition is that difference, the client's included",
        "broker, load and sidecar share the machine",
        "the first second is left out of the percentiles",
    )
    columns = ("partitions", "records/s", "ready s", "CPU %", "more", "kB a partition", "p50, p99, max ms", "early")
    Report(columns, rows, caveats).show()


def row(partitions: int, rate: int, run: Run, base: Run, fewest: int) -> tuple[str, ...]:
    more = run.cpu_percent - base.cpu_percent
    added = partitions - fewest
    memory = f"{(run.memory_bytes - base.memory_bytes) / added / 1_000:.1f}" if added else "-"
    late = run.late
    return (
        f"{partitions:,}",
        f"{rate:,}" if rate else "idle",
        f"{run.ready_s:.1f}",
        f"{run.cpu_percent:.1f}",
        f"{more:+.1f}, {run.cpu_percent / max(base.cpu_percent, 0.01):.2f} times",
        memory,
        "-" if late is None else f"{late.p50_ms}, {late.p99_ms}, {late.max_ms}",
        "-" if late is None else str(late.early),
    )


def measure(bench: Bench, partitions: int, rate: int, seconds: int, guarantee: str) -> Run:
    """A process of its own, with a source of its own."""
    name = f"{partitions}-{rate}"
    source, target = f"{SOURCE}-{name}", f"bench-target-{name}"
    bench.topics(target)
    for future in bench.admin.create_topics([NewTopic(source, partitions, 1)]).values():
        future.result()
    wait_until(lambda: has_logs(bench, source, partitions), TOPIC_S, f"{partitions} partitions have their logs")
    sidecar = bench.sidecar(f"breadth-{name}", guarantee=guarantee)
    with sidecar, Reader(bench.kafka.bootstrap, target) as reader:
        sidecar.wait_ready()
        time.sleep(CALM_S)
        run = under_load(bench, sidecar, reader, (source, target, rate, seconds)) if rate else idle(sidecar, seconds)
        sidecar.stop()
    bench.delete(source)
    return run


def has_logs(bench: Bench, topic: str, partitions: int) -> bool:
    """Whether the brokers have made the logs of a topic, which they do some time after they name its leaders."""
    with closing(Consumer({"bootstrap.servers": bench.kafka.bootstrap, "group.id": "has-logs"})) as consumer:
        try:
            consumer.log_bounds([TopicPartition(topic, partition) for partition in range(partitions)], ASK_S)
        except KafkaException:
            return False
    return True


def idle(sidecar: Sidecar, seconds: int) -> Run:
    """Nothing is sent."""
    return Run(sidecar.ready_s, cpu_percent(sidecar, seconds), sidecar.memory_bytes(), None)


def under_load(bench: Bench, sidecar: Sidecar, reader: Reader, load: tuple[str, str, int, int]) -> Run:
    """CPU while it is sent, lateness of all of it."""
    source, target, rate, seconds = load
    settings = (source, target, str(rate), str(seconds), str(DELAY_MIN_MS), str(DELAY_MAX_MS))
    with bench.child("benchmarks.load", bench.kafka.bootstrap, *settings):
        percent = cpu_percent(sidecar, seconds)
        reader.wait_for(rate * seconds, sidecar, AFTER_S)
        arrivals = reader.read(rate * seconds)
    return Run(sidecar.ready_s, percent, sidecar.memory_bytes(), lateness(arrivals, FIRST_MS))


def cpu_percent(sidecar: Sidecar, seconds: int) -> float:
    """Of one core, over so many seconds from now."""
    start_s, used_s = time.time(), sidecar.cpu_s()
    sleep_until(start_s + seconds)
    return (sidecar.cpu_s() - used_s) / (time.time() - start_s) * 100


if __name__ == "__main__":
    main()
