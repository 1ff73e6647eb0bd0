"""One topic into one bronze table, each record once, whatever ends the job.

A batch's offsets are in the checkpoint before it is read, and its directory is replaced as a whole. A batch that was
begun and not finished is read again with the same offsets.
"""

import json
from typing import Any, Final

from pyspark.sql import DataFrame

from pipeline.errors import WarehouseConflict
from pipeline.kafka import KafkaPlace
from pipeline.tables import Warehouse
from pipeline.topics import RECORDS, LostRange, Offsets, bounds, lost_ranges

CHECKPOINTS: Final = "_checkpoints"
LEDGER_TABLE: Final = "bronze/ledger"
BLOCKS_TABLE: Final = "silver/blocks"
ENTRIES_TABLE: Final = "silver/entries"
LIFECYCLE_TABLE: Final = "silver/lifecycle"
LOST_TABLE: Final = "silver/lost_ranges"
LOST: Final = "topic string, partition int, `start` bigint, `end` bigint"


def records_table(topic: str) -> str:
    """Where a topic's records are."""
    return f"bronze/records/topic={topic}"


def records_topics(warehouse: Warehouse) -> list[str]:
    """The topics that were taken in."""
    names = warehouse.names("bronze/records")
    return sorted(name.removeprefix("topic=") for name in names if name.startswith("topic="))


def read_records(warehouse: Warehouse, topic: str) -> DataFrame:
    """A topic's records as ingested: `RECORDS` rows, with their partitions."""
    return warehouse.read(records_table(topic), RECORDS)


def stream_topic(warehouse: Warehouse, kafka: KafkaPlace, topic: str, table: str) -> list[LostRange]:
    """Take in what the topic has now. Returns what retention took before it could be read.

    Raises PipelineError when Kafka doesn't answer, WarehouseConflict when table and checkpoint don't belong together.
    """
    checkpoint = _checkpoint(table)
    read = offsets_read(warehouse, checkpoint)
    written = warehouse.batches(table)
    # A batch is planned in the checkpoint before it is written, and noted as done after.
    if written and str(written[-1]) not in warehouse.names(checkpoint, "offsets"):
        raise WarehouseConflict(
            f"{warehouse.path(table)} has batches of which {warehouse.path(checkpoint)} knows nothing: records would "
            "be taken in twice. Put the checkpoint back, or delete the table and begin again"
        )
    ends = bounds(kafka.client, topic)[1]
    ahead = {part: offset for part, offset in read.get(topic, {}).items() if ends.get(part, 0) < offset}
    if ahead:
        raise WarehouseConflict(
            f"topic {topic} ends before what was read of it (by partition: {ahead}): it was deleted and created again. "
            f"Delete {warehouse.path(table)} and {warehouse.path(checkpoint)}, or take it into another warehouse"
        )
    lost = lost_ranges(kafka.client, read)

    def write(batch: DataFrame, number: int) -> None:
        warehouse.write_batch(batch, table, number, "timestamp_ms")

    query: Any = (
        kafka.stream(warehouse.spark, topic)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", warehouse.path(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return lost


def _checkpoint(table: str) -> str:
    return f"{CHECKPOINTS}/{table.replace('/', '.')}"


def ledger_read(warehouse: Warehouse) -> Offsets:
    """How far the ledger was taken in."""
    return offsets_read(warehouse, _checkpoint(LEDGER_TABLE))


def offsets_read(warehouse: Warehouse, checkpoint: str) -> Offsets:
    """Where a stream stands by its last finished batch; nothing when it has none."""
    finished = [int(name) for name in warehouse.names(checkpoint, "commits") if name.isdigit()]
    if not finished:
        return {}
    lines = warehouse.text(checkpoint, "offsets", str(max(finished))).strip().splitlines()
    read: Offsets = json.loads(lines[-1])
    return read
