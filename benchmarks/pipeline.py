"""How fast settlements become silver, and what it costs to prove that none is lost.

    python -m benchmarks.pipeline [--records 1000000 3000000 10000000]

Ledger blocks of 2,000 settled records each, as a sidecar writes them with delays over seconds, lie in bronze. Timed:
`refine` (decode, the lifecycle, entries and blocks as Parquet by day), then `reconcile` over it, with one loss, one
repeat and one early record put in, which must be found. Nothing is joined with sources. The baseline is Spark's own
work in the same run: the finished lifecycle read and written again. Spark's start is not in the figures. A line below
the table says how much more a settlement costs in the largest run than in the smallest: 1.0 is linear.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import BenchmarkError, Report
from sidecar.ledger.block import NO_ENTRIES, NOTHING_SETTLED, Block, Settled, encode
from sidecar.model.record import Outcome, Position

PER_BLOCK: Final = 2_000
LANES: Final = 8
NOW_MS: Final = 1_763_720_000_000
INTERVAL_MS: Final = 50
SPARK: Final = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "4g"}
FAULTS: Final = {"lost": 1, "repeated": 1, "early": 1}


def blocks(records: int) -> Iterator[tuple[str, int, int, int, bytearray, bytearray]]:
    """Ledger records that settle this many records, but for one; one of them twice and one early."""
    count = records // PER_BLOCK
    empty = Block("bench", "orders", "id", 0, NOW_MS, 0, Position(0, 0), 0, 0, (), 0, NOTHING_SETTLED, NO_ENTRIES)
    for number in range(count):
        lane, turn = number % LANES, number // LANES
        now_ms = NOW_MS + number * INTERVAL_MS
        first = turn * PER_BLOCK
        offsets = list(range(first, first + PER_BLOCK))
        dues = [now_ms - (offset * 7919) % INTERVAL_MS for offset in offsets]
        if number == count // 2:
            del offsets[5], dues[5]  # lost: offset `first + 5` of this lane is below the next block's L
            dues[9] = now_ms + 60_000  # early
        if number == count // 2 + LANES:
            offsets.insert(0, first - 1)  # repeated: the block before has settled it
            dues.insert(0, now_ms)
        size = len(offsets)
        settled = Settled(
            offsets, dues, [Outcome.EMITTED] * size, [0] * size, ["orders@1"] * size, ["out"] * size, [0] * size, {}, {}
        )
        block = replace(empty, partition=lane, written_ms=now_ms, low=first + PER_BLOCK, settled=settled)
        yield ("ledger", lane, turn, now_ms, bytearray(b"key"), bytearray(encode(block)))


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, seconds of CPU of this process and all it has started, what came of it)."""
    started_s, used_s = time.monotonic(), cpu_s()
    came = work()
    return time.monotonic() - started_s, cpu_s() - used_s, came


def cpu_s() -> float:
    """CPU time of this process, of Spark's JVM and of its workers, those that have ended included."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(") ")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    ours = sum(used for pid, used in ticks.items() if os.getpid() in ancestry(pid, parents))
    return ours / os.sysconf("SC_CLK_TCK")


def ancestry(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """A process and those it comes from."""
    while pid in parents:
        yield pid
        pid = parents[pid]


def growth(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Cost of one record in the largest run, in those of the smallest."""
    small, large = (seconds[at] / sizes[at] for at in (sizes.index(min(sizes)), sizes.index(max(sizes))))
    return large / small


def measure(spark: Any, records: int, root: Path) -> tuple[tuple[str, ...], tuple[float, float]]:
    """One row of the table, and the seconds to silver and of reconcile."""
    from pipeline import jobs
    from pipeline.ingest.ingest import refine
    from pipeline.ingest.ledger import LEDGER_RECORD
    from pipeline.ingest.lifecycle import LIFECYCLE
    from pipeline.ingest.stream import LEDGER_TABLE, LIFECYCLE_TABLE, records_table
    from pipeline.warehouse.tables import Warehouse

    warehouse = Warehouse(spark, str(root / str(records)))
    ledger = spark.createDataFrame(list(blocks(records)), LEDGER_RECORD).repartition(2)
    warehouse.write_batch(ledger, LEDGER_TABLE, 0, "timestamp_ms")
    # The source's offsets alone: what reconcile needs of it.
    per_lane = records // LANES
    sources = spark.range(records).selectExpr(
        "'orders' topic", f"int(id % {LANES}) partition", f"id DIV {LANES} offset", f"{NOW_MS}L timestamp_ms",
        "CAST(NULL AS BINARY) key", "CAST(NULL AS BINARY) value",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) headers",
    )  # fmt: skip
    silver_s, silver_cpu_s, _ = timed(lambda: refine(warehouse))
    warehouse.write_batch(sources.where(f"offset < {per_lane}"), records_table("orders"), 0, "timestamp_ms")
    rows = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE)
    copied_s, copied_cpu_s, _ = timed(
        lambda: warehouse.write_batch(rows.drop("batch", "date"), "bronze/copy", 0, "settled_ms")
    )
    if rows.count() != records:
        raise BenchmarkError(f"{rows.count()} rows of {records} settlements")
    judged_s, judged_cpu_s, came = timed(lambda: jobs.reconcile(warehouse, ""))
    if came["faults"] != FAULTS:
        raise BenchmarkError(f"the faults put in are {FAULTS}, found were {came['faults']}")
    row = (
        f"{records:,}",
        f"{silver_s:.1f} s ({silver_cpu_s:.1f} s)",
        f"{silver_s / records * 1e6:.2f} ({silver_cpu_s / records * 1e6:.2f}) µs",
        f"{copied_s:.1f} s ({copied_cpu_s:.1f} s)",
        f"{judged_s:.1f} s ({judged_cpu_s:.1f} s)",
        ", ".join(f"{found['kind']} {found['partition']}/{found['offset']}" for found in came["findings"]),
    )
    return row, (silver_s, judged_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    sizes: list[int] = parser.parse_args().records
    from pipeline.session import spark_session

    started_s, _, spark = timed(lambda: spark_session(SPARK))
    with tempfile.TemporaryDirectory(prefix="tickover-bench-") as directory:
        measure(spark, PER_BLOCK * LANES * 4, Path(directory))  # warms the JVM up
        rows, seconds = zip(*(measure(spark, records, Path(directory)) for records in sizes), strict=True)
    silver, judged = (growth(sizes, each) for each in zip(*seconds, strict=True))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    caveats = (
        f"one of the largest run costs {silver:.2f} times one of the least, to reconcile {judged:.2f} times",
        f"Spark's start, {started_s:.0f} s, and a small warm-up run are not in it; local[2], 4 GB for the JVM",
        f"the driver's Python took {memory} MB at most: rows don't come to it",
        "in brackets CPU time, of Spark and its workers",
        "reconcile reads the source's offsets too; its faults were put in, and each is named",
    )
    names = ("settlements", "to silver", "each", "baseline: copied by Spark", "reconcile", "found")
    Report(names, rows, caveats).show()
    spark.stop()


if __name__ == "__main__":
    main()
