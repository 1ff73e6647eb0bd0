"""How soon a process is ready, and how long its engine stands still in the first minute under load.

    python -m benchmarks.start [--rate 20000] [--seconds 60] [--instance NAME]

Some seconds of records wait already when it starts, as after a restart; the load goes on meanwhile. A *stall* is a turn
of the engine, by the wall. The baseline is a consumer with a producer of confluent-kafka alone, with the sidecar's
client settings: how soon it has its first partitions.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Producer

from benchmarks.harness import ROOT, SOURCE, Bench, BenchmarkError, Report, wait_until
from benchmarks.timed_turns import Turn, long_turns
from sidecar.kafka.client_settings import consumer_settings, producer_settings

TARGET: Final = "bench-target"
DELAY_MAX_MS: Final = 2_000
BEFORE_S: Final = 3.0
START_S: Final = 120.0
POLL_S: Final = 0.01
GOAL_MS: Final = 50


class Started(NamedTuple):
    """One start: seconds from the process's making on, and of CPU; threads, memory, long turns a minute later."""

    live_s: float
    ready_s: float
    cpu_s: float
    threads: int
    memory_mb: float
    turns: Sequence[Turn]


def main() -> None:
    if sys.argv[1:2] == ["baseline"]:
        baseline(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--instance", default="me-1", help="the static membership; nothing: none")
    asked = parser.parse_args()
    with Bench() as bench:
        bench.topics(SOURCE, TARGET)
        bare_s = first_assignment_s(bench)
        load = map(str, (asked.rate, int(asked.seconds + BEFORE_S + START_S), 0, DELAY_MAX_MS))
        with bench.child("benchmarks.load", bench.kafka.bootstrap, SOURCE, TARGET, *load):
            time.sleep(BEFORE_S)
            started = start(bench, asked.instance, asked.seconds)
    stalls = sorted(round(turn.took * 1_000) for turn in started.turns)
    long = [took for took in stalls if took > GOAL_MS]
    worked = max((round(turn.worked * 1_000) for turn in started.turns), default=0)
    rows = (
        ("baseline: first partitions of a consumer with a producer", f"{bare_s:.2f} s", "", ""),
        ("tickover: live", f"{started.live_s:.2f} s", "", ""),
        ("tickover: ready", f"{started.ready_s:.2f} s", "", f"with {started.cpu_s:.2f} s of CPU"),
        (
            f"the engine, {asked.seconds} s from ready on",
            f"{max(stalls, default=0)} ms",
            f"{len(long)}",
            f"most work in one turn {worked} ms",
        ),
        ("threads, memory then", f"{started.threads}", "", f"{started.memory_mb:.0f} MB"),
    )
    caveats = (
        f"{asked.rate:,} records a second of 200 bytes, due within {DELAY_MAX_MS} ms, from {BEFORE_S:.0f} s before it",
        f"instance_id: {asked.instance or 'none'}",
        "a turn that is longer than its work waited for a processor or for the interpreter's lock",
        "broker, load and process share the machine",
    )
    Report(("what", "time", f"turns over {GOAL_MS} ms", ""), rows, caveats).show()


def start(bench: Bench, instance: str, seconds: int) -> Started:
    """Of a process under load."""
    with bench.sidecar("start", test_turns=str(bench.turns), instance_id=instance) as sidecar:
        wait_until(sidecar.is_up, START_S, "the process answers")
        live_s = time.time() - sidecar.started_s
        sidecar.wait_ready()
        ready, cpu_s = time.time(), sidecar.cpu_s()
        while time.time() < ready + seconds:
            sidecar.check()
            time.sleep(1.0)
        turns = [turn for turn in long_turns(bench.turns, ready) if turn.began < ready + seconds]
        if not sidecar.count("emitted"):
            raise BenchmarkError("nothing was emitted")
        threads = len(list(Path(f"/proc/{sidecar.process.pid}/task").iterdir()))
        return Started(live_s, ready - sidecar.started_s, cpu_s, threads, sidecar.memory_bytes() / 1e6, turns)


def first_assignment_s(bench: Bench) -> float:
    """Seconds from making a process to its first partitions, by a child of this program."""
    command = [sys.executable, "-m", "benchmarks.start", "baseline", bench.kafka.bootstrap, SOURCE]
    made = time.time()
    answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=START_S)
    return float(answer.stdout) - made


def baseline(bootstrap: str, source: str) -> None:
    """Print when this process has its first partitions, epoch seconds."""
    client, assigned = {"bootstrap.servers": bootstrap}, list[float]()
    consumer = Consumer({**consumer_settings(client, "bench-start", ""), "auto.offset.reset": "latest"})
    producer = Producer(producer_settings(client))
    consumer.subscribe([source], on_assign=lambda *_: assigned.append(time.time()))
    while not assigned:
        consumer.poll(POLL_S)
        producer.poll(0)
    print(assigned[0])
    consumer.close()


if __name__ == "__main__":
    main()
