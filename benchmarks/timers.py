"""Cost of a timer per task: the purgatory's against other ways in Python, and Kafka's own in Java beside them.

    python -m benchmarks.timers [--tasks 200000] [--rounds 3]

Every contestant is given the same delays, uniform over a minute, adds all tasks, cancels all in random order, adds all
again and runs them when they are due, on a clock set by hand (asyncio's and Java's: their own). `mix` is what a
broker's timeouts are like: of all tasks added nine of ten are cancelled, in random order, and one runs; the whole of it
per task added. CPU time, not time of day, the best of all rounds; memory per waiting task, the task object included, in
a round of its own: by tracemalloc, in Java by what the heap has grown.
"""

import argparse
import asyncio
import gc
import heapq
import random
import subprocess
import time
import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from sortedcontainers import SortedList

from benchmarks.harness import Report
from purgatory import SystemTimer, TimerTask
from sidecar.embedded.java_kafka import KafkaUnavailable, fetch_jars

FIRST_MS: Final = 100
LAST_MS: Final = 60_000
MEMORY_TASKS: Final = 50_000
MIX: Final = 10  # one of so many runs, the others are cancelled
JAVA: Final = Path(__file__).with_name("java") / "TimerBenchmark.java"
JAVA_TIMEOUT_S: Final = 300


class Contestant(ABC):
    """A timer under test. `ran` counts what has run."""

    name: str

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.ran = 0

    def run(self) -> None:
        """The work of every task: count one run."""
        self.ran += 1

    @abstractmethod
    def add(self, delay_ms: int) -> Any:
        """Add a task; what `cancel` wants to have."""

    @abstractmethod
    def cancel(self, added: Any) -> None:
        """Take it back."""

    @abstractmethod
    def expire(self) -> None:
        """A minute has passed: run all."""


class Task(TimerTask):
    """The purgatory's form of a call."""

    __slots__ = ("_function",)

    def __init__(self, delay_ms: int, function: Callable[[], None]) -> None:
        super().__init__(delay_ms)
        self._function = function

    def run(self) -> None:
        self._function()


class Wheel(Contestant):
    """Kafka's, in Python."""

    name = "purgatory.SystemTimer"

    def __init__(self) -> None:
        super().__init__()
        self.timer = SystemTimer(lambda: self.now_ms)

    def add(self, delay_ms: int) -> Any:
        task = Task(delay_ms, self.run)
        self.timer.add(task)
        return task

    def cancel(self, added: Any) -> None:
        added.cancel()

    def expire(self) -> None:
        self.timer.advance_clock(LAST_MS)


class Heap(Contestant):
    """Cancelled entries stay until they come up."""

    name = "heapq, lazy deletion"

    def __init__(self) -> None:
        super().__init__()
        self.heap: list[list[Any]] = []
        self.added = 0

    def add(self, delay_ms: int) -> Any:
        self.added += 1
        entry = [self.now_ms + delay_ms, self.added, self.run]
        heapq.heappush(self.heap, entry)
        return entry

    def cancel(self, added: Any) -> None:
        added[2] = None

    def expire(self) -> None:
        heap = self.heap
        while heap and heap[0][0] <= LAST_MS:
            function = heapq.heappop(heap)[2]
            if function is not None:
                function()


class Sorted(Contestant):
    """A list of lists, always in order."""

    name = "sortedcontainers"

    def __init__(self) -> None:
        super().__init__()
        self.entries: SortedList = SortedList()
        self.added = 0

    def add(self, delay_ms: int) -> Any:
        self.added += 1
        entry = (self.now_ms + delay_ms, self.added, self.run)
        self.entries.add(entry)
        return entry

    def cancel(self, added: Any) -> None:
        self.entries.remove(added)

    def expire(self) -> None:
        due = self.entries.bisect_right((LAST_MS, self.added + 1))
        for _, _, function in self.entries[:due]:
            function()
        del self.entries[:due]


class Asyncio(Contestant):
    """An asyncio loop whose clock is replaced, so that nobody has to wait a minute."""

    name = "asyncio call_later"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.time = lambda: self.now_ms / 1000  # type: ignore[method-assign]

    def add(self, delay_ms: int) -> Any:
        return self.loop.call_later(delay_ms / 1000, self.run)

    def cancel(self, added: Any) -> None:
        added.cancel()

    def expire(self) -> None:
        self.now_ms = LAST_MS + 1
        self.loop.call_later(0, self.loop.stop)
        self.loop.run_forever()
        self.loop.close()


CONTESTANTS: Final[Sequence[type[Contestant]]] = (Wheel, Heap, Sorted, Asyncio)


def cpu_ns(work: Callable[[], None]) -> int:
    """CPU time of this process for `work`."""
    gc.collect()
    started = time.process_time_ns()
    work()
    return time.process_time_ns() - started


def measure(kind: type[Contestant], delays: Sequence[int], seed: int) -> tuple[int, ...]:
    """Nanoseconds per task: add, cancel, expire, mix."""
    one = kind()
    added: list[Any] = []
    add_ns = cpu_ns(lambda: added.extend(map(one.add, delays)))
    random.Random(seed).shuffle(added)

    def cancel_all() -> None:
        for each in added:
            one.cancel(each)

    cancel_ns = cpu_ns(cancel_all)
    one.expire()
    if one.ran:
        raise SystemExit(f"{kind.name}: {one.ran} cancelled tasks ran")
    other = kind()
    for delay_ms in delays:
        other.add(delay_ms)
    expire_ns = cpu_ns(other.expire)
    if other.ran != len(delays):
        raise SystemExit(f"{kind.name}: {other.ran} of {len(delays)} ran")
    return add_ns // len(delays), cancel_ns // len(delays), expire_ns // len(delays), mix_ns(kind, delays, seed)


def mix_ns(kind: type[Contestant], delays: Sequence[int], seed: int) -> int:
    """Nanoseconds per task added."""
    one = kind()
    order = random.Random(seed).sample(range(len(delays)), len(delays) - len(delays) // MIX)

    def work() -> None:
        added = list(map(one.add, delays))
        for index in order:
            one.cancel(added[index])
        one.expire()

    spent_ns = cpu_ns(work)
    if one.ran != len(delays) // MIX:
        raise SystemExit(f"{kind.name}: {one.ran} ran, {len(delays) // MIX} were not cancelled")
    return spent_ns // len(delays)


def bytes_per_task(kind: type[Contestant], delays: Sequence[int]) -> int:
    """Memory that waiting tasks take."""
    one = kind()
    gc.collect()
    tracemalloc.start()
    kept = list(map(one.add, delays))
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    one.expire()
    return used // len(kept)


def java(count: int, rounds: int) -> list[tuple[int, ...]]:
    """Kafka's SystemTimer by rounds, in the order of the columns; nothing if it can't run here."""
    try:
        jars = fetch_jars()
    except KafkaUnavailable:
        return []
    done = subprocess.run(
        ["java", "-Xmx1g", "-cp", f"{jars}/*", str(JAVA), str(count), str(rounds)],
        capture_output=True,
        text=True,
        check=True,
        timeout=JAVA_TIMEOUT_S,
    )
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    chance = random.Random(1)
    delays = [chance.randrange(FIRST_MS, LAST_MS) for _ in range(options.tasks)]
    rows = []
    for kind in CONTESTANTS:
        rounds = [measure(kind, delays, seed) for seed in range(options.rounds)]
        size = bytes_per_task(kind, delays[:MEMORY_TASKS])
        rows.append((kind.name, *(f"{min(column):,}" for column in zip(*rounds, strict=True)), f"{size:,}"))
    lines = java(options.tasks, options.rounds)
    if lines:
        rows.append(("Kafka's SystemTimer (Java)", *(f"{min(column):,}" for column in zip(*lines, strict=True))))
    Report(
        ("timer", "add, ns", "cancel, ns", "expire, ns", "mix, ns", "bytes per task"),
        rows,
        (
            "Java's CPU time is that of its threads, without compiler and collector; Python's includes its collector",
            "expiring includes the call of an empty task; Kafka's hands it to another thread",
        ),
    ).show()


if __name__ == "__main__":
    main()
