"""Memory that millions of pending records cost the sidecar, and how soon it fires again after a restart.

    python -m benchmarks.memory [--records 2000000]

The baseline is the same sidecar with nothing pending. Then the records are held, due in more than an hour, all but a
few that fall due while no sidecar runs; its memory is read at once, when a minute has passed, and after as many records
once more. A new one is started, its memory is read when it has settled, and the first of those few tells when it fired.
"""

import argparse
import random
import time
from typing import Final

from benchmarks.harness import SOURCE, Bench, Report, Sidecar, sleep_until, wait_until
from benchmarks.traffic import Filler, Reader

HOUR_MS: Final = 3_600_000
SPREAD_MS: Final = 29 * 24 * HOUR_MS  # the policy takes 30 days
SOON: Final = 100
SETTLE_S: Final = 20.0
REST_S: Final = 60.0  # after which a process has given back what taking in took
FILL_RECORDS_PER_S: Final = 15_000  # what filling is allowed to take at the least
TIMEOUT_S: Final = 600.0
MEGABYTE: Final = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    count: int = parser.parse_args().records
    source, target, group = SOURCE, "bench-target", "memory"
    with Bench() as bench:
        bench.topics(source, target)
        with bench.sidecar(group) as sidecar:
            empty = settled_memory(sidecar)
        due_s = time.time() + 2 * (count / FILL_RECORDS_PER_S + REST_S) + 60
        filler = Filler(bench.kafka.bootstrap, source, target)
        filler.fill(SOON, int(due_s * 1000), lambda: 0)
        fill_far(filler, count)
        with bench.sidecar(group) as sidecar:
            started_s = time.time()
            wait_until(lambda: bench.committed(group, source) >= count + SOON, TIMEOUT_S, "all records are in Redis")
            filled_s, filled = time.time() - started_s, sidecar.memory_bytes()
            time.sleep(REST_S)
            rested = sidecar.memory_bytes()
            fill_far(filler, count)
            wait_until(lambda: bench.committed(group, source) >= 2 * count + SOON, TIMEOUT_S, "all are in Redis")
            time.sleep(REST_S)
            refilled = sidecar.memory_bytes()
        sleep_until(due_s)
        with bench.sidecar(group) as sidecar, Reader(bench.kafka.bootstrap, target) as reader:
            reader.wait_for(SOON, sidecar, TIMEOUT_S)
            pending = settled_memory(sidecar)
            held = sidecar.in_overflow()
            sidecar.stop()
            first_s = reader.read(SOON)[0].appended_ms / 1000 - sidecar.started_s
    rows = (
        ("baseline: nothing pending", f"{empty / MEGABYTE:.1f}", "", ""),
        (f"{count:,} just held", f"{filled / MEGABYTE:.1f}", more(filled, empty), f"held in {filled_s:.0f} s"),
        ("a minute later", f"{rested / MEGABYTE:.1f}", more(rested, empty), ""),
        (f"{count:,} more, and a minute later", f"{refilled / MEGABYTE:.1f}", more(refilled, empty), ""),
        (
            f"{held:,} pending, restarted",
            f"{pending / MEGABYTE:.1f}",
            more(pending, empty),
            f"first due record fired {first_s:.1f} s after the start of the process"
            if first_s >= 0
            else "this machine was too slow: the first fell due before the process was restarted",
        ),
    )
    caveats = (
        "resident memory of the process, read when it has settled",
        "just held: the clients' buffers of what was read stay with the process until it ends",
    )
    Report(("what", "MB", "over baseline", ""), rows, caveats).show()


def fill_far(filler: Filler, count: int) -> None:
    """Records that fall due long after the benchmark."""
    filler.fill(count, int(time.time() * 1000), lambda: HOUR_MS + random.randrange(SPREAD_MS))


def more(memory: int, empty: int) -> str:
    """Megabytes above the baseline."""
    return f"{(memory - empty) / MEGABYTE:+.1f}"


def settled_memory(sidecar: Sidecar) -> int:
    """Resident memory some time after it is ready."""
    sidecar.wait_ready()
    time.sleep(SETTLE_S)
    return sidecar.memory_bytes()


if __name__ == "__main__":
    main()
