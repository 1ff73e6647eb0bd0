"""Jobs over the tables: read, compute, write gold, and say what came of it. The computing is in modules of its own."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline import backtest as replay
from pipeline import reconcile as judge
from pipeline import redrive as again
from pipeline.errors import PipelineError
from pipeline.ledger import BLOCKS, ENTRIES
from pipeline.lifecycle import LIFECYCLE
from pipeline.rebuild import overflow
from pipeline.reports import held
from pipeline.stream import BLOCKS_TABLE, ENTRIES_TABLE, LIFECYCLE_TABLE, LOST, LOST_TABLE, read_records, records_topics
from pipeline.tables import Warehouse
from pipeline.topics import RECORDS

FINDINGS_SHOWN_MAX: Final = 100
TOPICS_MAX: Final = 10_000


def reconcile(warehouse: Warehouse, export: str) -> dict[str, Any]:
    """Judge every record that the tables know of; gold/reconcile has the findings. `export`: a table of what Redis
    holds (topic, partition, offset), or nothing."""
    settled = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE)
    blocks = warehouse.read(BLOCKS_TABLE, BLOCKS)
    ingested = records_topics(warehouse)
    sources = [topic for topic in ingested if topic in _distinct(blocks, "topic")]
    targets = [topic for topic in ingested if topic in _distinct(settled.where("outcome = 'emitted'"), "target")]
    entries = warehouse.read(ENTRIES_TABLE, ENTRIES)
    judged = judge.positions(_records(warehouse, sources), settled, entries, blocks).cache()
    findings = [judge.wrong_positions(judged, settled), judge.early(settled), judge.wrong_blocks(blocks)]
    findings.append(judge.unread(warehouse.read_plain(LOST_TABLE, LOST)))
    if targets:
        findings.append(judge.wrong_emissions(settled, _records(warehouse, targets)))
    if export:
        findings.append(judge.missing_in_overflow(judged, warehouse.spark.read.parquet(export)))
    warehouse.replace(reduce(DataFrame.unionByName, findings), "gold/reconcile")
    found = warehouse.spark.read.parquet(warehouse.path("gold/reconcile"))
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    shown = found.orderBy("kind", *judge.PLACE).limit(FINDINGS_SHOWN_MAX).collect()
    return {
        "sources": sources,
        "targets": targets,
        "records": {row["state"]: row["count"] for row in judged.groupBy("state").count().collect()},
        "faults": kinds,
        "findings": [row.asDict() for row in shown],
    }


def backtest(warehouse: Warehouse, topics: Sequence[str], files: Mapping[str, str]) -> dict[str, Any]:
    """Replay the failures on these retry topics under each policies file; gold/backtest and gold/backtest_load.

    Raises PipelineError for a topic that wasn't taken in.
    """
    _check_ingested(warehouse, topics)
    records = _records(warehouse, topics)
    settled = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE)
    replayed = replay.replayed(replay.failures(records, settled), replay.decisions(records, files)).cache()
    compared = replay.comparison(replayed)
    warehouse.replace(compared, "gold/backtest")
    warehouse.replace(replay.load(replayed), "gold/backtest_load")
    loads = warehouse.spark.read.parquet(warehouse.path("gold/backtest_load"))
    peaks = loads.groupBy("policies").agg(F.max("deliveries").alias("peak")).collect()
    peak = {row.policies: row.peak for row in peaks}
    rows = warehouse.spark.read.parquet(warehouse.path("gold/backtest")).orderBy("policies").collect()
    return {"policies": [row.asDict() | {"peak_per_minute": peak.get(row.policies, 0)} for row in rows]}


def redrive_rows(
    warehouse: Warehouse, topics: Sequence[str], choice: again.Choice, target: str, job: str, loops_max: int
) -> DataFrame:
    """Rows to send of the chosen letters on these topics. Raises PipelineError for a topic that wasn't taken in."""
    _check_ingested(warehouse, topics)
    return again.parcels(again.letters(_records(warehouse, topics), choice), target, job, loops_max)


def redrive_plan(rows: DataFrame) -> dict[str, Any]:
    """What would be sent, by kind, the most frequent kinds first."""
    kinds = again.plan(rows).limit(FINDINGS_SHOWN_MAX).collect()
    return {
        "letters": sum(row.letters for row in kinds if row.refused is None),
        "kinds": [row.asDict() for row in kinds],
    }


def rebuild(warehouse: Warehouse) -> dict[str, Any]:
    """Everything the overflow should hold, with its payload, into gold/overflow."""
    settled = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE)
    waiting = held(warehouse.read(ENTRIES_TABLE, ENTRIES).where(~F.col("carried")), settled)
    warehouse.replace(overflow(waiting, _records(warehouse, records_topics(warehouse))), "gold/overflow")
    made = warehouse.spark.read.parquet(warehouse.path("gold/overflow"))
    known = {row.payload_known: row["count"] for row in made.groupBy("payload_known").count().collect()}
    return {
        "held": sum(known.values()),
        "without_payload": known.get(False, 0),
        "table": warehouse.path("gold/overflow"),
    }


def _check_ingested(warehouse: Warehouse, topics: Sequence[str]) -> None:
    absent = sorted(set(topics) - set(records_topics(warehouse)))
    if absent:
        raise PipelineError(f"not ingested: {', '.join(absent)}; run ingest with --topic for each")


def _records(warehouse: Warehouse, topics: Iterable[str]) -> DataFrame:
    frames = [read_records(warehouse, topic).drop("batch", "date") for topic in topics]
    return reduce(DataFrame.unionByName, frames) if frames else warehouse.spark.createDataFrame([], RECORDS)


def _distinct(rows: DataFrame, column: str) -> set[str]:
    return {row[0] for row in rows.select(column).distinct().limit(TOPICS_MAX).collect()}
