"""How fast a partition's overflow is rebuilt when Redis has lost it, and what near records notice of it.

    python -m benchmarks.rebuild [--records 400000]

Records are held for hours; then FLUSHALL. The rate is that of all partitions together, one after the other, from the
flush until the last one is rebuilt and reconciled, without a limit (`redis.rebuild_rate` 0). The baseline is the same
records' first way into the overflow, in the same run. Meanwhile a record a few milliseconds away is sent now and then.
"""

import argparse
import random
import time
from typing import Final

from redis import Redis

from benchmarks.harness import PARTITIONS, SOURCE, Bench, BenchmarkError, Report, wait_until
from benchmarks.traffic import Filler, Reader, lateness

HOUR_MS: Final = 3_600_000
SPREAD_MS: Final = 6 * HOUR_MS
NEAR_MS: Final = 50
NEAR_INTERVAL_S: Final = 0.02
LOOK_EACH: Final = 10  # near records: asking for progress costs the same interpreter
TIMEOUT_S: Final = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    count: int = parser.parse_args().records
    target, group = "bench-target", "rebuild"
    with Bench() as bench:
        bench.topics(SOURCE, target)
        filler = Filler(bench.kafka.bootstrap, SOURCE, target)
        filler.fill(count, int(time.time() * 1000), lambda: HOUR_MS + random.randrange(SPREAD_MS))
        with (
            bench.sidecar(group, redis__rebuild_rate="0", guarantee="at_least_once") as sidecar,
            Reader(bench.kafka.bootstrap, target) as reader,
        ):
            sidecar.wait_ready()
            started_s = time.monotonic()
            wait_until(lambda: bench.committed(group, SOURCE) >= count, TIMEOUT_S, "all records are in Redis")
            filled_s = time.monotonic() - started_s
            with Redis.from_url(bench.valkey.url, protocol=2) as client:
                client.flushall()
            flushed_s = time.monotonic()
            near = 0
            while (rebuild := sidecar.get("/v1/stats")["rebuild"])["finished"] < PARTITIONS:
                for _ in range(LOOK_EACH):
                    filler.send(near, int(time.time() * 1000), NEAR_MS)
                    filler.flush()
                    near += 1
                    time.sleep(NEAR_INTERVAL_S)
            rebuilt_s = time.monotonic() - flushed_s
            if rebuild["records"] != count or rebuild["lost"]:
                raise BenchmarkError(f"{count} records were held: {rebuild}")
            reader.wait_for(near, sidecar, TIMEOUT_S)
            sidecar.stop()
            late = lateness(reader.read(near))
    rows = (
        ("baseline: into the overflow the first time", f"{count / filled_s:,.0f}", f"{filled_s:.1f} s"),
        ("rebuilt after FLUSHALL", f"{count / rebuilt_s:,.0f}", f"{rebuilt_s:.1f} s, reconciled"),
        (
            "near records meanwhile",
            "",
            f"{near} sent, late by {late.p50_ms} ms in the median, {late.max_ms} ms at most",
        ),
    )
    caveats = (
        "at_least_once, so that the target has one offset for each record; a rebuild is the same in both modes",
        "both with whatever the source's reading costs; broker and Redis share the machine",
    )
    Report(("what", "records/s", ""), rows, caveats).show()


if __name__ == "__main__":
    main()
