"""One topic into one bronze table, each record once, whatever ends the job.

A batch's offsets are in the checkpoint before it is read, and its directory is replaced as a whole. A batch that was
begun and not finished is read again with the same offsets.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.errors import WarehouseConflict
from pipeline.ingest.kafka import KafkaPlace
from pipeline.ingest.topics import RECORDS, LostRange, Offsets, bounds, lost_ranges, topic_id
from pipeline.warehouse.tables import Warehouse

CHECKPOINTS: Final = "_checkpoints"
LEDGER_TABLE: Final = "bronze/ledger"
BLOCKS_TABLE: Final = "silver/blocks"
ENTRIES_TABLE: Final = "silver/entries"
LIFECYCLE_TABLE: Final = "silver/lifecycle"
TOPIC_ID: Final = "topic-id"  # beside Spark's own in the checkpoint
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
    """Take in what the topic has now. Returns what retention took before it could be read. Raises as `follow`."""

    def write(batch: DataFrame, number: int) -> None:
        warehouse.write_batch(batch, table, number, "timestamp_ms")

    return follow(warehouse, kafka, topic, table, write, lambda lost: keep_lost(warehouse, lost))


def follow(
    warehouse: Warehouse,
    kafka: KafkaPlace,
    topic: str,
    table: str,
    write: Callable[[DataFrame, int], None],
    note: Callable[[Sequence[LostRange]], None],
) -> list[LostRange]:
    """Give `write` what the topic has now; it leaves a batch of the table with the number that it gets.

    `note` hears of what retention took before the stream moves on: after a kill nobody could tell any more. Raises
    PipelineError when Kafka doesn't answer, WarehouseConflict when table and checkpoint don't belong together.
    """
    checkpoint = _checkpoint(table)
    last = _last_written(warehouse, table, checkpoint)
    # Not the last one noted as done: what counts already is not lost, though retention may have taken it since.
    read = {} if last is None else _planned(warehouse, checkpoint, last)
    ends = bounds(kafka.client, topic)[1]
    ahead = {part: offset for part, offset in read.get(topic, {}).items() if ends.get(part, 0) < offset}
    if ahead or _is_another(warehouse, kafka, topic, checkpoint):
        shorter = f" ends before what was read of it (by partition: {ahead}): it" if ahead else ""
        raise WarehouseConflict(
            f"topic {topic}{shorter} was deleted and created again. "
            f"Delete {warehouse.path(table)} and {warehouse.path(checkpoint)}, or take it into another warehouse"
        )
    lost = lost_ranges(kafka.client, read)
    note(lost)
    query: Any = (
        kafka.stream(warehouse.spark, topic)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", warehouse.path(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return lost


def _is_another(warehouse: Warehouse, kafka: KafkaPlace, topic: str, checkpoint: str) -> bool:
    """Whether the topic isn't the one that the checkpoint is about: one that was made anew may have grown past it. The
    first run notes the id in the checkpoint, so that both are deleted together."""
    now = topic_id(kafka.client, topic)
    known = _noted_id(warehouse, checkpoint)
    if known and now and known != now and any(True for _ in warehouse.names(checkpoint, "offsets")):
        return True
    if now and now != known:
        warehouse.write_text(now, checkpoint, TOPIC_ID)
    return False


def ingested_id(warehouse: Warehouse, topic: str) -> str:
    """Kafka's id of the topic that a table's records are of; empty where brokers have none, or nobody has noted it."""
    return _noted_id(warehouse, _checkpoint(records_table(topic)))


def _noted_id(warehouse: Warehouse, checkpoint: str) -> str:
    return warehouse.text(checkpoint, TOPIC_ID) if warehouse.exists(checkpoint, TOPIC_ID) else ""


def _last_written(warehouse: Warehouse, table: str, checkpoint: str) -> int | None:
    """The last batch that counts. Raises WarehouseConflict when table and checkpoint don't belong together: a batch is
    planned in the checkpoint before it is written, and noted as done after."""
    written, done = warehouse.batches(table), _finished(warehouse, checkpoint)
    if written and str(written[-1]) not in warehouse.names(checkpoint, "offsets"):
        raise WarehouseConflict(
            f"{warehouse.path(table)} has batches of which {warehouse.path(checkpoint)} knows nothing: records would "
            "be taken in twice. Put the checkpoint back, or delete the table and begin again"
        )
    if done and (not written or written[-1] < done[-1]):
        raise WarehouseConflict(
            f"{warehouse.path(table)} lacks a batch that {warehouse.path(checkpoint)} has as done: records would be "
            "missing. Put the table back, or delete the checkpoint too and begin again"
        )
    return written[-1] if written else None


def keep_lost(warehouse: Warehouse, lost: Sequence[LostRange]) -> None:
    """Add to the table of what was never read."""
    if lost:
        frame = warehouse.spark.createDataFrame([tuple(place) for place in lost], LOST)
        frame.write.mode("append").parquet(warehouse.path(LOST_TABLE))


def read_lost(warehouse: Warehouse) -> DataFrame:
    """`LOST` rows, each place once: a run that was killed has told of it, and the next one tells of it again."""
    told = warehouse.read_plain(LOST_TABLE, LOST)
    return told.groupBy("topic", "partition", "start").agg(F.max("end").alias("end"))


def _checkpoint(table: str) -> str:
    return f"{CHECKPOINTS}/{table.replace('/', '.')}"


def ledger_read(warehouse: Warehouse) -> Offsets:
    """How far the ledger was taken in, by the last batch that is done; nothing when there is none."""
    checkpoint = _checkpoint(LEDGER_TABLE)
    finished = _finished(warehouse, checkpoint)
    return _planned(warehouse, checkpoint, finished[-1]) if finished else {}


def planned_ms(warehouse: Warehouse, table: str, batch: int) -> int:
    """When this batch was planned: the same time however often it is made again."""
    plan = warehouse.text(_checkpoint(table), "offsets", str(batch)).strip().splitlines()
    return int(json.loads(plan[1])["batchTimestampMs"])


def _planned(warehouse: Warehouse, checkpoint: str, batch: int) -> Offsets:
    """Up to where this batch reads."""
    plan = warehouse.text(checkpoint, "offsets", str(batch)).strip().splitlines()
    read: Offsets = json.loads(plan[-1])
    return read


def _finished(warehouse: Warehouse, checkpoint: str) -> list[int]:
    return sorted(int(name) for name in warehouse.names(checkpoint, "commits") if name.isdigit())
