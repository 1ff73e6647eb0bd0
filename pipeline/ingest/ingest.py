"""`ingest`: the ledger and the topics around it into tables.

    ledger topic  -> bronze/ledger   -> silver/blocks, silver/entries, silver/lifecycle
    other topics  -> bronze/records

Silver is made of finished bronze batches, batch by batch, and a batch that was made halfway is made again. Sources
are read after the ledger, so that whatever the ledger settles has its source record here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.ingest.kafka import KafkaPlace
from pipeline.ingest.ledger import BLOCKS, ENTRIES, LEDGER_RECORD, blocks, entries, settlements
from pipeline.ingest.lifecycle import LIFECYCLE, arrivals, lifecycle
from pipeline.ingest.stream import (
    BLOCKS_TABLE,
    ENTRIES_TABLE,
    LEDGER_TABLE,
    LIFECYCLE_TABLE,
    read_records,
    records_table,
    records_topics,
    stream_topic,
)
from pipeline.ingest.topics import LostRange
from pipeline.warehouse.tables import Warehouse

SILVER: Final = {BLOCKS_TABLE: BLOCKS, ENTRIES_TABLE: ENTRIES, LIFECYCLE_TABLE: LIFECYCLE}


@dataclass(frozen=True, slots=True)
class Ingested:
    """Result of one run of `ingest`."""

    batches: list[int]
    blocks: int
    undecodable: int
    newer: int
    undated: int
    settled: dict[str, int]
    entries: int
    lost: list[LostRange] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "batches": self.batches,
            "blocks": self.blocks,
            "undecodable": self.undecodable,
            "newer": self.newer,
            "undated": self.undated,
            "settled": self.settled,
            "entries": self.entries,
            "lost": [place._asdict() for place in self.lost],
        }


def ingest(warehouse: Warehouse, kafka: KafkaPlace, ledger: str, topics: Sequence[str]) -> Ingested:
    """Take in what Kafka has now, and make silver of it. `topics`: sources, dead letters, targets, in any order.

    Run again after any end, it goes on where it was. Raises PipelineError.
    """
    lost = stream_topic(warehouse, kafka, ledger, LEDGER_TABLE)
    for topic in topics:
        lost += stream_topic(warehouse, kafka, topic, records_table(topic))
    made = refine(warehouse)
    return count(warehouse, made, lost)


def refine(warehouse: Warehouse) -> list[int]:
    """Make silver of every finished bronze batch that has none yet; returns their numbers."""
    finished = set.intersection(*(set(warehouse.batches(table)) for table in SILVER))
    todo = [batch for batch in warehouse.batches(LEDGER_TABLE) if batch not in finished]
    for batch in todo:
        raw = warehouse.read(LEDGER_TABLE, LEDGER_RECORD, batch)
        warehouse.write_batch(blocks(raw), BLOCKS_TABLE, batch, "settled_ms")
        warehouse.write_batch(entries(raw), ENTRIES_TABLE, batch, "settled_ms")
        arrived = _arrived(warehouse, batch)
        warehouse.write_batch(lifecycle(settlements(raw), arrived), LIFECYCLE_TABLE, batch, "settled_ms")
    return todo


def _arrived(warehouse: Warehouse, batch: int) -> DataFrame | None:
    """Source records of the lanes in this batch, as far as they were ever taken in."""
    ingested = records_topics(warehouse)
    if not ingested:
        return None
    lanes = warehouse.read(BLOCKS_TABLE, BLOCKS, batch).select("topic").where(F.col("topic").isin(ingested)).distinct()
    frames = [arrivals(read_records(warehouse, row.topic)) for row in lanes.collect()]
    return reduce(DataFrame.unionByName, frames) if frames else None


def count(warehouse: Warehouse, batches: list[int], lost: list[LostRange]) -> Ingested:
    """The figures of these batches."""
    of_run = F.col("batch").isin(batches)
    block = warehouse.read(BLOCKS_TABLE, BLOCKS).where(of_run)
    totals = block.agg(
        F.count("*").alias("blocks"),
        F.count("problem").alias("undecodable"),
        F.count_if("newer").alias("newer"),
        F.count_if(F.col("date").isNull()).alias("undated"),
        F.coalesce(F.sum("entries"), F.lit(0)).alias("entries"),
    ).collect()[0]
    outcomes = warehouse.read(LIFECYCLE_TABLE, LIFECYCLE).where(of_run).groupBy("outcome").count().collect()
    settled = {row["outcome"]: row["count"] for row in outcomes}
    told = (totals.blocks, totals.undecodable, totals.newer, totals.undated)
    return Ingested(batches, *told, settled, totals.entries, lost)
