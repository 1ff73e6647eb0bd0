"""Kafka's purgatory load test: how many requests a second can wait in a purgatory.

    python -m benchmarks.purgatory_load [--rate 5000] [--seconds 3 | --num N] [--pct50 20] [--pct75 60] [--timeout 200]
                                        [--keys 3] [--key-space-size 100] [--size 100] [--saturation]

Requests of `size` bytes arrive in a Poisson stream. Each is watched under the same keys and has a latency, log-normal
by its 50th and 75th percentile: one below the timeout is completed when that time has come, the others expire. One
thread does all of it, as the broker does. A rate is sustained if at least 95 % of it is reached; `--saturation` raises
it until it is not, then looks in between. Published for Kafka's are 20 and 60 ms (few time out), and 200 and 400 ms
(half do), with 1,000,000 requests per rate (`--num 1000000`). The original (TestPurgatoryPerformance) is meant, not
its Java port, which completes everything at the timeout.
"""

import argparse
import gc
import heapq
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from benchmarks.harness import Report
from purgatory import DelayedOperation, DelayedOperationPurgatory, SystemTimer
from purgatory.timer.clock import hi_res_clock_ms

Z75: Final = 0.67449  # standard deviations from the median to the 75th percentile
SUSTAINED: Final = 0.95
GROWTH: Final = 1.5
HALVINGS: Final = 3  # of the last step, so that the point is known to a sixteenth
RATE_MAX: Final = 1_000_000
SEED: Final = 1


class Request(DelayedOperation):
    """Waits for whoever completes it, and holds what was sent."""

    completed = 0
    expired = 0

    def __init__(self, timeout_ms: int, size: int) -> None:
        super().__init__(timeout_ms)
        self.data = bytes(size)

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        Request.completed += 1

    def on_expiration(self) -> None:
        Request.expired += 1


@dataclass(frozen=True)
class Load:
    """Requests of a run: `rate` a second, `num` in all; latencies and timeout in ms, `size` in bytes."""

    rate: float
    num: int
    pct50: float
    pct75: float
    timeout: int
    keys: int
    key_space_size: int
    size: int


@dataclass(frozen=True)
class Outcome:
    """Figures of a run: the rate reached per second, time and CPU time in seconds, and what was counted."""

    rate: float
    elapsed_s: float
    cpu_s: float
    collections: int
    expired_share: float
    watched_max: int


def run(load: Load) -> Outcome:
    """Let all requests come, and go."""
    chance = random.Random(SEED)
    total = load.num
    sigma = (math.log(load.pct75) - math.log(load.pct50)) / Z75
    arrivals = [chance.expovariate(load.rate / 1000) for _ in range(total)]
    latencies = [chance.lognormvariate(math.log(load.pct50), sigma) for _ in range(total)]
    keys = [f"key-{chance.randrange(load.key_space_size)}" for _ in range(load.keys)]
    purgatory: DelayedOperationPurgatory[Request] = DelayedOperationPurgatory("load", SystemTimer())
    completions: list[tuple[float, int, Request]] = []
    Request.completed = Request.expired = 0
    number = count()
    gc.collect()
    collected, cpu_s, started_ms = collections(), time.process_time(), hi_res_clock_ms()
    due_ms, watched_max = started_ms, 0
    for interval_ms, latency_ms in zip(arrivals, latencies, strict=True):
        due_ms += interval_ms
        while True:
            now_ms = hi_res_clock_ms()
            while completions and completions[0][0] <= now_ms:
                heapq.heappop(completions)[2].force_complete()
            next_ms = purgatory.next_expiration_ms()
            if next_ms is not None and next_ms <= now_ms:
                purgatory.advance_clock(now_ms)
            if due_ms <= now_ms:
                break
            time.sleep(min(due_ms - now_ms, 1) / 1000)
        request = Request(load.timeout, load.size)
        purgatory.try_complete_else_watch(request, keys)
        if latency_ms < load.timeout:
            heapq.heappush(completions, (hi_res_clock_ms() + latency_ms, next(number), request))
        if not next(number) % 1000:
            watched_max = max(watched_max, purgatory.watched)
    elapsed_s = (hi_res_clock_ms() - started_ms) / 1000
    while Request.completed < total:
        now_ms = hi_res_clock_ms()
        while completions and completions[0][0] <= now_ms:
            heapq.heappop(completions)[2].force_complete()
        purgatory.advance_clock(now_ms)
        time.sleep(0.001)
    cpu_s = time.process_time() - cpu_s
    return Outcome(total / elapsed_s, elapsed_s, cpu_s, collections() - collected, Request.expired / total, watched_max)


def collections() -> int:
    """Runs of the garbage collector so far."""
    return sum(generation["collections"] for generation in gc.get_stats())


def saturate(measure: Callable[[float], Outcome], rate: float) -> str:
    """Raise the rate until it is not sustained, then look in between. What was found."""
    sustained, failed = 0.0, math.inf
    halvings = 0
    while halvings <= HALVINGS and rate <= RATE_MAX:
        if measure(rate).rate >= SUSTAINED * rate:
            sustained = rate
        else:
            failed = rate
        halvings += math.isfinite(failed)
        rate = sustained * GROWTH if math.isinf(failed) else (sustained + failed) / 2
    return f"saturates between {sustained:,.0f} and {failed:,.0f} requests/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5_000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--num", type=int)
    parser.add_argument("--pct50", type=float, default=20)
    parser.add_argument("--pct75", type=float, default=60)
    parser.add_argument("--timeout", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--key-space-size", type=int, default=100)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--saturation", action="store_true")
    options = vars(parser.parse_args())
    is_saturation, first_rate = options.pop("saturation"), options.pop("rate")
    seconds, num = options.pop("seconds"), options.pop("num")
    rows: list[tuple[str, ...]] = []

    def measure(rate: float) -> Outcome:
        load = Load(rate=rate, num=num or max(int(rate * seconds), 1), **options)
        outcome = run(load)
        rows.append(
            (
                f"{rate:,.0f}",
                f"{outcome.rate:,.0f}",
                f"{outcome.elapsed_s:.1f}",
                f"{outcome.cpu_s / load.num * 1e6:.1f}",
                f"{outcome.collections:,}",
                f"{outcome.expired_share:.1%}",
                f"{outcome.watched_max:,}",
            )
        )
        return outcome

    found = [saturate(measure, first_rate)] if is_saturation else []
    if not is_saturation:
        measure(first_rate)
    Report(
        ("rate wanted", "reached", "elapsed, s", "CPU, us a request", "collections", "expired", "watched at most"),
        rows,
        ("generating the load, completing and expiring share the one thread", *found),
    ).show()


if __name__ == "__main__":
    main()
