"""A job that sends: in slices, each with its report, so that it can be stopped, goes on, and never sends a row twice.

    gold/<kind>/<job>/_slices/<n>      where the topics ended before slice n was begun, its mark and its producers
    gold/<kind>/<job>/batch=<n>/...    the report of slice n, row for row, once all of it was sent
    gold/<kind>/<job>/stop             somebody wants it to stop before the next slice

A slice that was begun and has no report was cut off. Its producers are shut out first, as some may still live. What
they sent stands in the topics behind the noted ends, under the slice's mark and the ids of its rows. It is read from
there, becomes that slice's report, and the rest is sent.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import IsolationLevel
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pipeline.errors import PipelineError, Unanswered
from pipeline.ingest.kafka import KafkaPlace
from pipeline.ingest.kafka_source import OffsetRange, read_range
from pipeline.ingest.records import header
from pipeline.ingest.topics import RECORDS, bounds, topic_id
from pipeline.sending.marking import Marking
from pipeline.sending.sending import REPORT, Slice, fence, send
from pipeline.warehouse.tables import Warehouse
from policies.headers import JOB
from sidecar.model.redrive_marks import BLOCK_LETTERS

SLICES: Final = "_slices"
STOP: Final = "stop"
TOPICS_MAX: Final = 10_000
FOUND: Final = "found in the topic, after a run that was cut off"
PRODUCERS: Final = "tickover-pipeline"
STAGE_ATTEMPTS: Final = "spark.stage.maxConsecutiveAttempts"
# How a worker's words end up in Spark's.
_WORKERS_WORDS: Final = re.compile(r"(?:pipeline\.errors\.Unanswered|TimeoutError): (.+)")


@dataclass(frozen=True, slots=True)
class Errand:
    """Rows to send, and how they are known again: records of `job` carry their row's id in the header `mark`.
    `marking`: how rows that are letters are marked as sent; None: they aren't."""

    kind: str
    job: str
    mark: str
    rate: float = 0.0
    slice_rows: int = 100_000
    marking: Marking | None = None

    @property
    def table(self) -> str:
        """Where its report is."""
        return f"gold/{self.kind}/{self.job}"


def dispatch(warehouse: Warehouse, kafka: KafkaPlace, errand: Errand, rows: DataFrame) -> dict[str, Any]:
    """Send what of these rows (see `send`) was not sent yet. Returns counts by state, and whether it was stopped.

    Raises PipelineError, Unanswered where a slice was cut off: then it is to be run again.
    """
    check_repeats(warehouse.spark)
    warehouse.remove(errand.table, STOP)
    recover(warehouse, kafka, errand)
    done = warehouse.read(errand.table, REPORT).where("state = 'sent'").select("id").distinct()
    left = rows.join(done, "id", "left_anti").cache()  # else each slice would read the input again
    count = left.count()
    slices = -(-count // errand.slice_rows)
    first = max([-1, *_begun(warehouse, errand)]) + 1
    topics = _topics(left)
    numbered = _numbered(left, slices, errand.slice_rows)
    run = uuid4().hex[:12]
    stopped = False
    for number in range(slices):
        if warehouse.exists(errand.table, STOP):
            stopped = True
            break
        part = Slice(
            mark=f"{errand.job}/{run}/{first + number}",
            producers=f"{PRODUCERS}.{errand.kind}.{errand.job}.{run}",
            tasks=warehouse.spark.sparkContext.defaultParallelism,
        )
        noted = {topic: _end_of(kafka.client, topic) for topic in topics}
        note = json.dumps({**part._asdict(), "topics": noted})
        warehouse.write_text(note, errand.table, SLICES, str(first + number))
        sent = send(numbered.where(F.col("slice") == number), kafka.client, part, errand.rate, errand.marking)
        with _told(f"slice {first + number} was cut off", "run it again, it reads in the topics what was sent"):
            warehouse.write_batch(sent, errand.table, first + number, "sent_ms")
    return {"stopped": stopped, "rows": _states(warehouse, errand)}


def _numbered(rows: DataFrame, slices: int, slice_rows: int) -> DataFrame:
    """The rows with the number of their `slice`, which has about `slice_rows`.

    Letters go in the order of their places: each task marks those that it has sent by blocks of neighbours, and
    scattered ones would make a record each. Of rows that came from a `place` each partition is cut by offsets into as
    many slices as there are, so that none is ahead of one that came before it, and all partitions go side by side.
    """
    if not {"letter", "place"} & set(rows.columns):
        return rows.withColumn("slice", F.pmod(F.xxhash64("id"), F.lit(slices)))
    at = "letter" if "letter" in rows.columns else "place"
    piece = F.expr(f"{at}.`offset` DIV {min(BLOCK_LETTERS, slice_rows)}")
    names = ("of", "in", "piece")
    named = rows.withColumns({"of": F.col(f"{at}.topic"), "in": F.col(f"{at}.partition"), "piece": piece})
    pieces = named.groupBy(*names).agg(F.count("*").alias("rows"))
    if at == "letter":
        before = F.sum("rows").over(Window.orderBy(*names)) - F.col("rows")
        number = F.floor(before / slice_rows)
    else:
        partition = Window.partitionBy("of", "in")
        before = F.sum("rows").over(partition.orderBy("piece")) - F.col("rows")
        number = F.floor(before * slices / F.sum("rows").over(partition))
    numbers = pieces.withColumn("slice", number).drop("rows").cache()
    return named.join(F.broadcast(numbers), list(names)).drop(*names)


def check_repeats(spark: SparkSession) -> None:
    """Raises PipelineError where Spark, having lost a worker, would begin anew with tasks that had sent something: of
    a stage that is tried again no task knows that it was there before."""
    context = spark.sparkContext
    if not context.master.startswith("local") and context.getConf().get(STAGE_ATTEMPTS, "4") != "1":
        raise PipelineError(f"a worker that is lost would send twice: start it with --conf {STAGE_ATTEMPTS}=1")


@contextmanager
def _told(what: str, then: str) -> Iterator[None]:
    """Turns what a worker says, which comes in Spark's words, into ours. Raises Unanswered for it."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        words = _WORKERS_WORDS.search(str(error))
        if words is None:
            raise
        raise Unanswered(f"{what}: {words[1]}; {then}") from error


def _end_of(client: Mapping[str, str], topic: str) -> dict[str, Any]:
    return {"id": topic_id(client, topic), "ends": bounds(client, topic)[1]}


def stop(warehouse: Warehouse, errand: Errand) -> None:
    """Have a run end before its next slice."""
    warehouse.write_text("", errand.table, STOP)


def recover(warehouse: Warehouse, kafka: KafkaPlace, errand: Errand) -> list[int]:
    """Make a report for each slice that was cut off, of what it sent; returns their numbers. Raises PipelineError."""
    finished = set(warehouse.batches(errand.table))
    cut = [number for number in _begun(warehouse, errand) if number not in finished]
    for number in cut:
        note = json.loads(warehouse.text(errand.table, SLICES, str(number)))
        if "mark" not in note:
            raise PipelineError(f"slice {number} was begun by an older version, which must end it: run that one again")
        part = Slice(note["mark"], note["producers"], note["tasks"])
        fence(kafka.client, part)
        with _told(f"what slice {number} has sent can't be read", "run it again"):
            found = _sent_by(warehouse, kafka, errand, part, note["topics"])
            warehouse.write_batch(found, errand.table, number, "sent_ms")
    return cut


def _sent_by(
    warehouse: Warehouse, kafka: KafkaPlace, errand: Errand, part: Slice, noted: Mapping[str, Any]
) -> DataFrame:
    ranges = [span for topic, note in noted.items() for span in _since(kafka.client, topic, note)]
    records = read_ranges(warehouse, kafka.client, ranges).where(header(JOB) == part.mark)
    marked = records.withColumn("id", header(errand.mark)).where("id IS NOT NULL")
    known = marked.groupBy("id").agg(
        F.min_by(F.struct("topic", "partition", "offset", "timestamp_ms"), "offset").alias("at")
    )
    said = {"state": F.lit("sent"), "detail": F.lit(FOUND)}
    return known.select("id", "at.topic", *(value.alias(name) for name, value in said.items()), "at.partition",
                        "at.offset", F.col("at.timestamp_ms").alias("sent_ms"))  # fmt: skip


def _since(client: Mapping[str, str], topic: str, note: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """Ranges of offsets that have come into a topic since it was noted, as (topic, partition, start, end). They go to
    its very end: what is committed may stand behind what somebody else has left open. A partition without a note was
    added since then."""
    same = note["id"] in ("", topic_id(client, topic))
    starts = note["ends"] if same else {}  # a topic that was made anew counts from 0
    for name, end in bounds(client, topic, IsolationLevel.READ_UNCOMMITTED)[1].items():
        start = starts.get(name, 0)
        if end > start:
            yield topic, int(name), start, end


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
    """Where rows go. Raises PipelineError for more than can be noted: what one of them has could not be found again."""
    sent = rows.where("refused IS NULL").select("topic").distinct()
    topics = sorted(row.topic for row in sent.limit(TOPICS_MAX + 1).collect())
    if len(topics) > TOPICS_MAX:
        raise PipelineError(f"the rows go to more than {TOPICS_MAX} topics: send them in several jobs")
    return topics


def _begun(warehouse: Warehouse, errand: Errand) -> list[int]:
    return sorted(int(name) for name in warehouse.names(errand.table, SLICES) if name.isdigit())


def _states(warehouse: Warehouse, errand: Errand) -> dict[str, int]:
    """By the last word on each row."""
    report = warehouse.read(errand.table, REPORT)
    last = report.groupBy("id").agg(F.max_by("state", "batch").alias("state"))
    return {row["state"]: row["count"] for row in last.groupBy("state").count().collect()}
