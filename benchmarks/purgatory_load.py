"""Kafka's purgatory load test: how many requests a second can wait in a purgatory.

    python -m benchmarks.purgatory_load [--rate 5000] [--seconds 3] [--pct50 20] [--pct75 60] [--timeout 200]
                                        [--keys 3] [--key-space-size 100] [--saturation]

Requests arrive in a Poisson stream. Each is watched under the same keys and has a latency, log-normal by its
50th and 75th percentile: one below the timeout is completed when that time has come, the others expire. One thread
does all of it, as the broker does. A rate is sustained if at least 95 % of it is reached; `--saturation` raises it
until it is not. The original (TestPurgatoryPerformance) is meant, not its Java port, which completes everything at
the timeout.
"""

import argparse
import gc
import heapq
import math
import random
import time
from dataclasses import dataclass
from itertools import count
from typing import Final

from benchmarks.harness import Report
from purgatory import DelayedOperation, DelayedOperationPurgatory, SystemTimer
from purgatory.clock import hi_res_clock_ms

Z75: Final = 0.67449  # standard deviations from the median to the 75th percentile
SUSTAINED: Final = 0.95
GROWTH: Final = 1.5
RATE_MAX: Final = 1_000_000
SEED: Final = 1


class Request(DelayedOperation):
    """Waits for whoever completes it."""

    completed = 0
    expired = 0

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        Request.completed += 1

    def on_expiration(self) -> None:
        Request.expired += 1


@dataclass(frozen=True)
class Load:
    """What comes. Times in ms."""

    rate: float
    seconds: float
    pct50: float
    pct75: float
    timeout: int
    keys: int
    key_space_size: int


@dataclass(frozen=True)
class Outcome:
    """What it took."""

    rate: float
    cpu_s: float
    expired_share: float
    watched_max: int


def run(load: Load) -> Outcome:
    """Let all requests come, and go."""
    chance = random.Random(SEED)
    total = int(load.rate * load.seconds)
    sigma = (math.log(load.pct75) - math.log(load.pct50)) / Z75
    arrivals = [chance.expovariate(load.rate / 1000) for _ in range(total)]
    latencies = [chance.lognormvariate(math.log(load.pct50), sigma) for _ in range(total)]
    keys = [f"key-{chance.randrange(load.key_space_size)}" for _ in range(load.keys)]
    purgatory: DelayedOperationPurgatory[Request] = DelayedOperationPurgatory("load", SystemTimer())
    completions: list[tuple[float, int, Request]] = []
    Request.completed = Request.expired = 0
    number = count()
    gc.collect()
    cpu_s, started_ms = time.process_time(), hi_res_clock_ms()
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
        request = Request(load.timeout)
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
    return Outcome(total / elapsed_s, time.process_time() - cpu_s, Request.expired / total, watched_max)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5_000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--pct50", type=float, default=20)
    parser.add_argument("--pct75", type=float, default=60)
    parser.add_argument("--timeout", type=int, default=200)
    parser.add_argument("--keys", type=int, default=3)
    parser.add_argument("--key-space-size", type=int, default=100)
    parser.add_argument("--saturation", action="store_true")
    options = vars(parser.parse_args())
    saturation = options.pop("saturation")
    rows: list[tuple[str, ...]] = []
    rate = options.pop("rate")
    while True:
        load = Load(rate=rate, **options)
        outcome = run(load)
        cost_us = outcome.cpu_s / (rate * load.seconds) * 1e6
        rows.append(
            (
                f"{rate:,.0f}",
                f"{outcome.rate:,.0f}",
                f"{cost_us:.1f}",
                f"{outcome.expired_share:.1%}",
                f"{outcome.watched_max:,}",
            )
        )
        if not saturation or outcome.rate < SUSTAINED * rate or rate > RATE_MAX:
            break
        rate *= GROWTH
    Report(
        ("rate wanted", "rate reached", "CPU, us per request", "expired", "watched at most"),
        rows,
        ("generating the load, completing and expiring share the one thread",),
    ).show()


if __name__ == "__main__":
    main()
