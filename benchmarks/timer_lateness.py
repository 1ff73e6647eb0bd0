"""How early and how late tasks run when a thread brings their timer forward: the purgatory's reaper, and Kafka's own.

    python -m benchmarks.timer_lateness [--tasks 3000] [--span 1500]

Tasks with delays uniform over `span` ms are added at once; each notes when it ran, relative to the moment at which it
was added plus its delay. Kafka rounds down to the tick, so it is early by up to one; so is ours, unless it rounds up.
"""

import argparse
import random
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness import Report, percentile
from purgatory import SystemTimer, SystemTimerReaper, TimerTask
from purgatory.timer.clock import hi_res_clock_ms
from sidecar.embedded.java_kafka import KafkaUnavailable, fetch_jars

TICKS_MS: Final = (1, 10, 100)
JAVA: Final = Path(__file__).with_name("java") / "TimerLateness.java"
WAIT_S: Final = 60


class Task(TimerTask):
    """Calls a function."""

    def __init__(self, delay_ms: int, function: Callable[[], None]) -> None:
        super().__init__(delay_ms)
        self._function = function

    def run(self) -> None:
        self._function()


def latenesses_us(delays: Sequence[int], tick_ms: int, *, round_up: bool) -> list[int]:
    """Of all tasks, in order."""
    reaper = SystemTimerReaper("lateness", SystemTimer(tick_ms=tick_ms, round_up=round_up))
    late_us: list[int] = []
    finished = threading.Event()

    def ran(due_ms: float) -> None:
        late_us.append(round((hi_res_clock_ms() - due_ms) * 1000))
        if len(late_us) == len(delays):
            finished.set()

    for delay_ms in delays:
        reaper.add(Task(delay_ms, partial(ran, hi_res_clock_ms() + delay_ms)))
    if not finished.wait(WAIT_S):
        raise SystemExit(f"{len(late_us)} of {len(delays)} tasks ran")
    reaper.close()
    return sorted(late_us)


def row(name: str, tick_ms: int, late_us: Sequence[int]) -> tuple[str, ...]:
    """A line of the table."""
    found = (late_us[0], percentile(late_us, 0.5), percentile(late_us, 0.99), late_us[-1])
    return name, str(tick_ms), *(f"{one / 1000:.2f}" for one in found)


def java(tasks: int, span_ms: int) -> list[tuple[str, ...]]:
    """Kafka's reaper, a line for each tick; nothing if it can't run here."""
    try:
        jars = fetch_jars()
    except KafkaUnavailable:
        return []
    ticks = (TICKS_MS[0], *TICKS_MS)  # the first time is Java's warm-up
    command = ["java", "-Xmx256m", "-cp", f"{jars}/*", str(JAVA), str(tasks), str(span_ms), *map(str, ticks)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    lines = [sorted(map(int, line.split())) for line in done.stdout.splitlines()][1:]
    return [row("Kafka's SystemTimerReaper (Java)", *one) for one in zip(TICKS_MS, lines, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=3_000)
    parser.add_argument("--span", type=int, default=1_500)
    options = parser.parse_args()
    chance = random.Random(1)
    delays = [chance.randrange(options.span) for _ in range(options.tasks)]
    rows = []
    for round_up in (False, True):
        name = f"purgatory.SystemTimerReaper, rounding {'up' if round_up else 'down'}"
        rows += [row(name, tick_ms, latenesses_us(delays, tick_ms, round_up=round_up)) for tick_ms in TICKS_MS]
    Report(
        ("timer", "tick, ms", "earliest, ms", "p50, ms", "p99, ms", "latest, ms"),
        rows + java(options.tasks, options.span),
        ("how late is what the machine makes of it: compare within the table",),
    ).show()


if __name__ == "__main__":
    main()
