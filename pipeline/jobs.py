"""Jobs over the tables: read, compute, write gold, and say what came of it. The computing is in modules of its own."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.errors import PipelineError
from pipeline.ingest.ingest import SILVER
from pipeline.ingest.ledger import BLOCKS, ENTRIES, LEDGER_RECORD
from pipeline.ingest.lifecycle import LIFECYCLE
from pipeline.ingest.stream import (
    BLOCKS_TABLE,
    ENTRIES_TABLE,
    LEDGER_TABLE,
    LIFECYCLE_TABLE,
    ingested_id,
    ledger_read,
    read_lost,
    read_records,
    records_table,
    records_topics,
)
from pipeline.ingest.topics import RECORDS, exists, topic_id
from pipeline.reports import backtest as replay
from pipeline.reports import reconcile as judge
from pipeline.reports.reports import current, held
from pipeline.sending import redrive as again
from pipeline.sending.actions import acted, held_after, waiting_after
from pipeline.sending.marking import Marked, Marking, marked_of, read_marks
from pipeline.sending.plans import Taken
from pipeline.sending.rebuild import overflow
from pipeline.sending.resend import resent, unsettled
from pipeline.warehouse.compact import compact as compact_table
from pipeline.warehouse.tables import Warehouse

FINDINGS_SHOWN_MAX: Final = 100
TOPICS_MAX: Final = 10_000
UNSETTLED: Final = "gold/unsettled"


def reconcile(warehouse: Warehouse, export: str) -> dict[str, Any]:
    """Judge every record that the tables know of; gold/reconcile has the findings. `export`: a file of
    `tickover overflow export`, or nothing. Raises PipelineError for an export that can't be judged by these tables."""
    held = _export(warehouse, export) if export else None
    settled = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE)
    blocks = warehouse.read(BLOCKS_TABLE, BLOCKS)
    ingested = records_topics(warehouse)
    sources = [topic for topic in ingested if topic in _distinct(blocks, "topic")]
    targets = [topic for topic in ingested if topic in _distinct(settled.where("outcome = 'emitted'"), "target")]
    entries = warehouse.read(ENTRIES_TABLE, ENTRIES)
    ends = _ledger_ends(warehouse)
    holes = judge.holes(blocks, _lost_of_ledger(warehouse), ends)
    judged = judge.positions(_records(warehouse, sources), settled, entries, blocks, holes, len(ends)).cache()
    findings = [judge.wrong_positions(judged, settled), judge.early(settled), judge.wrong_blocks(blocks)]
    findings.append(judge.unread(read_lost(warehouse)))
    if targets:
        findings.append(judge.wrong_emissions(settled, _records(warehouse, targets)))
    if held is not None:
        rows, began = held
        due_there = judge.acknowledged(entries, blocks, began)
        findings.append(judge.missing_in_overflow(judged, due_there, rows))
        findings.append(judge.unknown_in_overflow(entries, rows, blocks, holes))
    warehouse.replace(reduce(DataFrame.unionByName, findings), "gold/reconcile")
    found = warehouse.read_report("gold/reconcile")
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    shown = found.orderBy("kind", *judge.PLACE).limit(FINDINGS_SHOWN_MAX).collect()
    unknown = judge.unknown(judged, blocks, holes).orderBy(*judge.LANE).limit(FINDINGS_SHOWN_MAX).collect()
    return {
        "sources": sources,
        "targets": targets,
        "records": {row["state"]: row["count"] for row in judged.groupBy("state").count().collect()},
        "unknown": [row.asDict() for row in unknown],
        "faults": kinds,
        "findings": [row.asDict() for row in shown],
    }


def _ledger_ends(warehouse: Warehouse) -> dict[int, int]:
    """By partition of the ledger up to where it was read; all of its partitions are in it."""
    return {int(name): end for ends in ledger_read(warehouse).values() for name, end in ends.items()}


def _lost_of_ledger(warehouse: Warehouse) -> list[Any]:
    """Read the ranges of the ledger that retention took before `ingest` had them."""
    lost: list[Any] = read_lost(warehouse).where(F.col("topic").isin(list(ledger_read(warehouse)))).collect()
    return lost


def _export(warehouse: Warehouse, path: str) -> tuple[DataFrame, DataFrame]:
    """The records of an export, and where the ledger ended by `ledger_partition` when the export began."""
    try:
        lines = warehouse.spark.read.schema(judge.EXPORT).json(path)
    except PySparkException as error:
        raise PipelineError(f"no export: {str(error).splitlines()[0]}") from error
    last = [row.export for row in lines.where("export IS NOT NULL").limit(2).collect()]
    rows = lines.where("offset IS NOT NULL").drop("export")
    if len(last) != 1 or last[0].records != rows.count():
        raise PipelineError(f"{path} is no whole export: write it again by `tickover overflow export`")
    read = ledger_read(warehouse).get(last[0].ledger, {})
    behind = [partition for partition, end in last[0].ended.items() if read.get(partition, 0) < end]
    if behind:
        raise PipelineError(
            f"{path} is younger than the tables: run ingest after `tickover overflow export`, then reconcile "
            f"(ledger {last[0].ledger}, partitions {', '.join(sorted(behind))})"
        )
    ends = [(int(partition), end) for partition, end in last[0].began.items()]
    return rows, warehouse.spark.createDataFrame(ends, "ledger_partition int, `end` bigint")


def backtest(warehouse: Warehouse, topics: Sequence[str], files: Mapping[str, str]) -> dict[str, Any]:
    """Replay the failures on these retry topics under each policies file; gold/backtest and gold/backtest_load.

    Raises PipelineError for a topic that wasn't taken in.
    """
    _check_ingested(warehouse, topics)
    records = _records(warehouse, topics)
    settled = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE)
    decided = replay.decisions(records, files).cache()
    replayed = replay.replayed(replay.failures(records, settled), decided).cache()
    compared = replay.comparison(replayed).join(replay.agreement(decided, settled), "policies", "left")
    warehouse.replace(compared.fillna(0, ["recorded", "same"]), "gold/backtest")
    warehouse.replace(replay.load(replayed), "gold/backtest_load")
    loads = warehouse.read_report("gold/backtest_load")
    peaks = loads.groupBy("policies").agg(F.max("deliveries").alias("peak")).collect()
    peak = {row.policies: row.peak for row in peaks}
    rows = warehouse.read_report("gold/backtest").orderBy("policies").collect()
    return {"policies": [row.asDict() | {"peak_per_minute": peak.get(row.policies, 0)} for row in rows]}


def redriven(
    warehouse: Warehouse, client: Mapping[str, str], log: str, topics: Sequence[str]
) -> tuple[Marking, list[Marked]] | None:
    """How letters of these topics are marked as sent in the topic `log`, and which ones are, as of now. None: there is
    no such topic, so nobody has marked any.

    Of a dead-letter topic that Kafka no longer has nothing is marked, unless `ingest` has noted its id. Raises
    PipelineError, also while nobody knows which topic the letters are of.
    """
    _check_ingested(warehouse, topics)
    if not exists(client, log):
        return None
    marks = read_marks(client, log)
    ids = {}
    for topic in topics:
        known = ingested_id(warehouse, topic)
        if not known and not exists(client, topic):
            continue
        if not known and (topic_id(client, topic) or marks.has_id(topic)):
            # Under another topic's id its letters would be left out, and these sent again.
            raise PipelineError(
                f"the tables don't say which topic {topic} they are of: run ingest with --topic {topic}"
            )
        ids[topic] = known
    return Marking(log, ids), marked_of(marks, ids)


def redrive_rows(
    warehouse: Warehouse,
    topics: Sequence[str],
    choice: again.Choice,
    terms: again.Terms,
    taken: Sequence[Taken],
    marked: Sequence[Marked] = (),
) -> DataFrame:
    """Rows to send of the chosen letters on these topics, but for those that the sidecar's redrives have, and those
    that are marked as sent.

    Raises PipelineError for a topic that wasn't taken in.
    """
    _check_ingested(warehouse, topics)
    chosen = again.letters(_records(warehouse, topics), choice)
    return again.parcels(again.with_plans(again.with_marks(chosen, marked), taken), terms)


def redrive_plan(rows: DataFrame) -> dict[str, Any]:
    """Plan of a redrive: how many letters would be sent, and counts by kind, the most frequent kinds first."""
    kinds = again.plan(rows).cache()
    [(letters,)] = kinds.where("refused IS NULL").agg(F.coalesce(F.sum("letters"), F.lit(0))).collect()
    return {"letters": letters, "kinds": [row.asDict() for row in kinds.limit(FINDINGS_SHOWN_MAX).collect()]}


def rebuild(warehouse: Warehouse) -> dict[str, Any]:
    """Everything that was accepted and is not settled: with its decision, by the ledger, into gold/overflow; what the
    ledger doesn't name yet, as it came, into gold/unsettled. Both as control records among the latter have left it,
    where one names an offset."""
    settled = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE)
    blocks = warehouse.read(BLOCKS_TABLE, BLOCKS)
    entries = current(warehouse.read(ENTRIES_TABLE, ENTRIES), blocks)
    ingested = records_topics(warehouse)
    sources = [topic for topic in ingested if topic in _distinct(blocks, "topic")]
    records = _records(warehouse, sources)
    ends = _ledger_ends(warehouse)
    holes = judge.holes(blocks, _lost_of_ledger(warehouse), ends)
    judged = judge.positions(records, settled, entries, blocks, holes, len(ends))
    kept, waiting = held(entries, settled), unsettled(judged, entries, records)
    came = acted(kept, waiting).cache()
    warehouse.replace(held_after(overflow(kept, _records(warehouse, ingested)), came), "gold/overflow")
    warehouse.replace(waiting_after(waiting, came), UNSETTLED)
    made, left = warehouse.read_report("gold/overflow"), warehouse.read_report(UNSETTLED)
    known = {row.payload_known: row["count"] for row in made.groupBy("payload_known").count().collect()}
    acts = {row.control: row["count"] for row in left.groupBy("control").count().collect()}
    unknown = judged.where("state = 'unknown'").count()
    return {
        "held": sum(known.values()),
        "without_payload": known.get(False, 0),
        "table": warehouse.path("gold/overflow"),
        "unsettled": sum(acts.values()),
        "of_them_control_records": acts.get(True, 0),
        "by_control_records": {row["outcome"]: row["count"] for row in came.groupBy("outcome").count().collect()},
        "unknown": unknown,
        "sources": sources,
    }


def resend_rows(warehouse: Warehouse) -> DataFrame:
    """Rows to send of what the last `rebuild` found without an outcome. Raises PipelineError where none was made."""
    if not warehouse.exists(UNSETTLED):
        raise PipelineError("nothing was rebuilt: run `tickover pipeline rebuild` first")
    return resent(warehouse.read_report(UNSETTLED))


def compact(warehouse: Warehouse, now_ms: int, grace_ms: int) -> dict[str, Any]:
    """Write small batches of bronze and silver together; by table what was done."""
    tables = {LEDGER_TABLE: LEDGER_RECORD, **SILVER}
    tables |= {records_table(topic): RECORDS for topic in records_topics(warehouse)}
    done = {table: compact_table(warehouse, table, schema, now_ms, grace_ms) for table, schema in tables.items()}
    return {table: came.document() for table, came in done.items()}


def _check_ingested(warehouse: Warehouse, topics: Sequence[str]) -> None:
    absent = sorted(set(topics) - set(records_topics(warehouse)))
    if absent:
        raise PipelineError(f"not ingested: {', '.join(absent)}; run ingest with --topic for each")


def _records(warehouse: Warehouse, topics: Iterable[str]) -> DataFrame:
    frames = [read_records(warehouse, topic).drop("batch", "date") for topic in topics]
    return reduce(DataFrame.unionByName, frames) if frames else warehouse.spark.createDataFrame([], RECORDS)


def _distinct(rows: DataFrame, column: str) -> set[str]:
    return {row[0] for row in rows.select(column).distinct().limit(TOPICS_MAX).collect()}
