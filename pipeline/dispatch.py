"""A job that sends: in slices, each with its report, so that it can be stopped, goes on, and never sends a row twice.

    gold/<kind>/<job>/_slices/<n>      where the topics ended before slice n was begun
    gold/<kind>/<job>/batch=<n>/...    the report of slice n, row for row, once all of it was sent
    gold/<kind>/<job>/stop             somebody wants it to stop before the next slice

A slice that was begun and has no report was cut off: what it sent stands in the topics behind the noted ends, under
ids that its records carry. It is read from there, becomes that slice's report, and the rest is sent.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.kafka import KafkaPlace
from pipeline.kafka_source import OffsetRange, read_range
from pipeline.records import header
from pipeline.sending import REPORT, send
from pipeline.tables import Warehouse
from pipeline.topics import RECORDS, bounds

SLICES: Final = "_slices"
STOP: Final = "stop"
TOPICS_MAX: Final = 1_000
FOUND: Final = "found in the topic, after a run that was cut off"


@dataclass(frozen=True, slots=True)
class Errand:
    """What is sent, and how it is known again: records of `job` carry their row's id in the header `mark`."""

    kind: str
    job: str
    mark: str
    rate: float = 0.0
    slice_rows: int = 100_000

    @property
    def table(self) -> str:
        """Where its report is."""
        return f"gold/{self.kind}/{self.job}"


def dispatch(warehouse: Warehouse, kafka: KafkaPlace, errand: Errand, rows: DataFrame) -> dict[str, Any]:
    """Send what of these rows (see `send`) was not sent yet. Returns counts by state, and whether it was stopped."""
    warehouse.remove(errand.table, STOP)
    recover(warehouse, kafka, errand)
    done = warehouse.read(errand.table, REPORT).where("state = 'sent'").select("id").distinct()
    left = rows.join(done, "id", "left_anti").cache()  # else each slice would read the input again
    count = left.count()
    slices = -(-count // errand.slice_rows)
    first = max([-1, *_begun(warehouse, errand)]) + 1
    topics = _topics(left)
    stopped = False
    for number in range(slices):
        if warehouse.exists(errand.table, STOP):
            stopped = True
            break
        ends = {topic: bounds(kafka.client, topic)[1] for topic in topics}
        warehouse.write_text(json.dumps(ends), errand.table, SLICES, str(first + number))
        one = left.where(F.pmod(F.xxhash64("id"), F.lit(slices)) == number)
        warehouse.write_batch(send(one, kafka.client, errand.rate), errand.table, first + number, "sent_ms")
    return {"stopped": stopped, "rows": _states(warehouse, errand)}


def stop(warehouse: Warehouse, errand: Errand) -> None:
    """Have a run end before its next slice."""
    warehouse.write_text("", errand.table, STOP)


def recover(warehouse: Warehouse, kafka: KafkaPlace, errand: Errand) -> list[int]:
    """Make a report for each slice that was cut off, of what it sent; returns their numbers."""
    finished = set(warehouse.batches(errand.table))
    cut = [number for number in _begun(warehouse, errand) if number not in finished]
    for number in cut:
        ends = json.loads(warehouse.text(errand.table, SLICES, str(number)))
        found = _sent_since(warehouse, kafka, errand, ends)
        warehouse.write_batch(found, errand.table, number, "sent_ms")
    return cut


def _sent_since(warehouse: Warehouse, kafka: KafkaPlace, errand: Errand, ends: Mapping[str, Any]) -> DataFrame:
    ranges = [
        (topic, int(partition), start, now[partition])
        for topic, starts in ends.items()
        for now in (bounds(kafka.client, topic)[1],)
        for partition, start in starts.items()
        if now[partition] > start
    ]
    records = read_ranges(warehouse, kafka.client, ranges)
    marked = records.withColumn("id", header(errand.mark)).where("id IS NOT NULL")
    known = marked.groupBy("id").agg(
        F.min_by(F.struct("topic", "partition", "offset", "timestamp_ms"), "offset").alias("at")
    )
    said = {"state": F.lit("sent"), "detail": F.lit(FOUND)}
    return known.select("id", "at.topic", *(value.alias(name) for name, value in said.items()), "at.partition",
                        "at.offset", F.col("at.timestamp_ms").alias("sent_ms"))  # fmt: skip


def read_ranges(
    warehouse: Warehouse, client: Mapping[str, str], ranges: Sequence[tuple[str, int, int, int]]
) -> DataFrame:
    """`RECORDS` of these (topic, partition, start, end)."""
    settings = dict(client)

    def batches(parts: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for part in parts:
            for row in part.to_pylist():
                yield from read_range(settings, OffsetRange(**row))

    schema = "topic string, partition int, start bigint, end bigint"
    planned = warehouse.spark.createDataFrame(list(ranges), schema)
    return planned.repartition(max(len(ranges), 1)).mapInArrow(batches, RECORDS)


def _topics(rows: DataFrame) -> list[str]:
    sent = rows.where("refused IS NULL").select("topic").distinct()
    return sorted(row.topic for row in sent.limit(TOPICS_MAX).collect())


def _begun(warehouse: Warehouse, errand: Errand) -> list[int]:
    return sorted(int(name) for name in warehouse.names(errand.table, SLICES) if name.isdigit())


def _states(warehouse: Warehouse, errand: Errand) -> dict[str, int]:
    """By the last word on each row."""
    report = warehouse.read(errand.table, REPORT)
    last = report.groupBy("id").agg(F.max_by("state", "batch").alias("state"))
    return {row["state"]: row["count"] for row in last.groupBy("state").count().collect()}
