"""Memory that millions of pending records cost the sidecar, and how soon it fires again after a restart.

    python -m benchmarks.memory [--records 2000000]

The baseline is the same sidecar with nothing pending. Then the records are held, due in more than an hour, all but a
few that fall due while no sidecar runs; a new one is started, its memory is read when it has settled, and the first
of those few tells when it fired.
"""

import argparse
import random
import time
from typing import Final

from benchmarks.harness import SOURCE, Bench, Report, Sidecar, sleep_until, wait_until
from benchmarks.traffic import Filler, Reader

HOUR_MS: Final = 3_600_000
SPREAD_MS: Final = 6 * HOUR_MS
SOON: Final = 100
SETTLE_S: Final = 20.0
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
        due_s = time.time() + count / FILL_RECORDS_PER_S + 60
        filler = Filler(bench.kafka.bootstrap, source, target)
        filler.fill(SOON, int(due_s * 1000), lambda: 0)
        filler.fill(count, int(time.time() * 1000), lambda: HOUR_MS + random.randrange(SPREAD_MS))
        with bench.sidecar(group) as sidecar:
            started_s = time.time()
            wait_until(lambda: bench.committed(group, source) >= count + SOON, TIMEOUT_S, "all records are in Redis")
            filled_s, filled = time.time() - started_s, sidecar.memory_bytes()
        sleep_until(due_s)
        with bench.sidecar(group) as sidecar, Reader(bench.kafka.bootstrap, target) as reader:
            reader.wait_for(SOON, sidecar, TIMEOUT_S)
            pending = settled_memory(sidecar)
            held = sidecar.in_overflow()
            sidecar.stop()
            first_s = reader.read(SOON)[0].appended_ms / 1000 - sidecar.started_s
    rows = (
        ("baseline: nothing pending", f"{empty / MEGABYTE:.1f}", "", ""),
        (f"{count:,} just held", f"{filled / MEGABYTE:.1f}", "", f"held in {filled_s:.0f} s"),
        (
            f"{held:,} pending, restarted",
            f"{pending / MEGABYTE:.1f}",
            f"{(pending - empty) / MEGABYTE:+.1f}",
            f"first due record fired {first_s:.1f} s after the start of the process",
        ),
    )
    caveats = (
        "resident memory of the process, read when it has settled",
        "just held: the clients' buffers of what was read stay with the process until it ends",
    )
    Report(("what", "MB", "over baseline", ""), rows, caveats).show()


def settled_memory(sidecar: Sidecar) -> int:
    """Resident memory some time after it is ready."""
    sidecar.wait_ready()
    time.sleep(SETTLE_S)
    return sidecar.memory_bytes()


if __name__ == "__main__":
    main()
