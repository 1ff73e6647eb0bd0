"""Sending rows to Kafka from the workers, and saying of each row what became of it.

A task that Spark repeats would send again what its first try had sent, so a repeated task ends the job instead: run it
again, and `dispatch.py` finds out what is there already.
"""

from collections.abc import Iterable, Iterator, Mapping
from threading import Event
from time import monotonic, time_ns
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from pyspark import TaskContext
from pyspark.sql import DataFrame

from sidecar.partitioner import source_partition

REPORT: Final = "id string, topic string, state string, detail string, partition int, offset bigint, sent_ms bigint"
_REPORT: Final = pa.schema(
    [
        ("id", pa.string()),
        ("topic", pa.string()),
        ("state", pa.string()),
        ("detail", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("sent_ms", pa.int64()),
    ]
)
FLUSH_S: Final = 120.0
PACE_ROWS: Final = 100
_SETTINGS: Final = {"linger.ms": "20", "enable.idempotence": "true"}


def send(rows: DataFrame, client: Mapping[str, str], rate: float) -> DataFrame:
    """`REPORT` rows, one per row: `sent` with its place, `refused`, or `failed`. Sends when it is computed.

    Rows are `id`, `topic`, `key`, `value`, `headers` as in `RECORDS`, and `refused`: why it is not sent, else null.

    `rate`: rows a second of all tasks together, 0: no limit. A row goes to a partition by its key, without one by its
    id, as over REST.
    """
    tasks = rows.sparkSession.sparkContext.defaultParallelism
    settings = {**client, **_SETTINGS}

    def batches(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise RuntimeError("a task is repeated that may have sent something: run the job again")
        shipment = Shipment(settings, rate / tasks)
        for part in parts:
            yield shipment.ship(part.to_pylist())

    return (
        rows.select("id", "topic", "key", "value", "headers", "refused").repartition(tasks).mapInArrow(batches, REPORT)
    )


class Shipment:
    """One task's producer and pace."""

    def __init__(self, settings: Mapping[str, str], rate: float) -> None:
        self._producer = Producer(dict(settings))
        self._rate = rate
        self._started_s = 0.0  # with the first row: time in which there was nothing to send is not to be caught up
        self._sent = 0
        self._partitions: dict[str, int] = {}

    def ship(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        """Send these and wait for all reports."""
        reports: list[tuple[str, str | None, int | None, int | None]] = [("failed", "no answer", None, None)] * len(
            rows
        )
        for index, row in enumerate(rows):
            if row["refused"]:
                reports[index] = ("refused", row["refused"], None, None)
                continue
            self._started_s = self._started_s or monotonic()
            self._produce(index, row, reports)
            self._sent += 1
            if self._sent % PACE_ROWS == 0:
                self._keep_pace()
        self._producer.flush(FLUSH_S)
        now_ms = time_ns() // 1_000_000
        told = [(row["id"], row["topic"], *report, now_ms) for row, report in zip(rows, reports, strict=True)]
        columns = zip(*told, strict=True) if told else [()] * len(_REPORT)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, _REPORT.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_REPORT)

    def _produce(self, index: int, row: dict[str, Any], reports: list[Any]) -> None:
        def note(error: Any, message: Any) -> None:
            if error is not None:
                reports[index] = ("failed", error.str(), None, None)
            elif message.offset() is None:  # the client infers it of a later record: it may be nowhere
                reports[index] = ("failed", "the broker has not said that it has the record", None, None)
            else:
                reports[index] = ("sent", None, message.partition(), message.offset())

        headers = [(one["key"], one["value"]) for one in row["headers"] or ()]
        while True:
            try:
                partition = self._place(row["topic"], row["key"], row["id"])
                self._producer.produce(
                    row["topic"], row["value"], row["key"], partition, headers=headers, on_delivery=note
                )
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                reports[index] = ("failed", error.args[0].str(), None, None)
                return

    def _place(self, topic: str, key: bytes | None, row_id: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = len(self._producer.list_topics(topic, FLUSH_S).topics[topic].partitions)
        count = self._partitions[topic]
        return source_partition(key, row_id.encode(), count) if count else -1

    def _keep_pace(self) -> None:
        self._producer.poll(0)
        ahead_s = self._sent / self._rate - (monotonic() - self._started_s) if self._rate else 0.0
        if ahead_s > 0:
            Event().wait(ahead_s)
