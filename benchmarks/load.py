"""Steady load from a process of its own, so that it shares no interpreter with what is measured.

python -m benchmarks.load BOOTSTRAP SOURCE TARGET RATE SECONDS DELAY_MIN_MS DELAY_MAX_MS
"""

import random
import sys
import time
from typing import Final

from benchmarks.traffic import Filler

SLICE_S: Final = 0.005


def main() -> None:
    bootstrap, source, target = sys.argv[1:4]
    rate, seconds, delay_min_ms, delay_max_ms = map(int, sys.argv[4:])
    filler = Filler(bootstrap, source, target)
    sent, started_s = 0, time.time()
    while sent < rate * seconds:
        wanted = min(int((time.time() - started_s) * rate) + 1, rate * seconds)
        for number in range(sent, wanted):
            filler.send(number, time.time_ns() // 1_000_000, random.randint(delay_min_ms, delay_max_ms))
        sent = wanted
        time.sleep(SLICE_S)
    filler.flush()


if __name__ == "__main__":
    main()
