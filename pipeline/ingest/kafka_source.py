"""Kafka as a streaming source of Spark in Python, for where the connector's jars can't be had.

Runs in Spark's Python workers: the driver asks where topics end, executors read ranges of offsets.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from pipeline.ingest.topics import ANSWER_S, RECORDS, UNREADABLE, Offsets, bounds

MESSAGES_PER_BATCH: Final = 10_000
BYTES_PER_BATCH: Final = 32 << 20
# Not `message.headers()`, which ends the process where a name is not UTF-8, once the interpreter has specialised the
# call: as in `sidecar.model.header_codec`.
_headers_of: Final = methodcaller("headers")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)


class KafkaSource(DataSource):
    """`spark.readStream.format("tickover-kafka")`; options `topic`, and `client`: the client's settings as JSON."""

    @classmethod
    def name(cls) -> str:
        """Name of this format in Spark."""
        return "tickover-kafka"

    def schema(self) -> str:
        """The columns."""
        return RECORDS

    def streamReader(self, schema: Any) -> "KafkaStreamReader":  # noqa: N802 - Spark's name
        """The reader of one stream."""
        return KafkaStreamReader(self.options["topic"], json.loads(self.options["client"]))


@dataclass
class OffsetRange(InputPartition):
    """Offsets of one partition, `end` not included."""

    topic: str
    partition: int
    start: int
    end: int


class KafkaStreamReader(DataSourceStreamReader):
    """Plans and reads ranges of one topic."""

    def __init__(self, topic: str, client: dict[str, str]) -> None:
        self._topic = topic
        self._client = client

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where the topic begins."""
        return {self._topic: bounds(self._client, self._topic)[0]}

    def latestOffset(self, start: Offsets, limit: Any) -> Offsets:  # noqa: N802 - Spark's name
        """Where what is committed ends. Never before `start`: a topic made anew must not turn a stream back."""
        ends = bounds(self._client, self._topic)[1]
        read = (start or {}).get(self._topic, {})
        return {self._topic: {partition: max(end, read.get(partition, 0)) for partition, end in ends.items()}}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[OffsetRange]:
        """One range per partition that has something new."""
        read, ends = start.get(self._topic, {}), end[self._topic]
        ranges = [OffsetRange(self._topic, int(name), read.get(name, 0), stop) for name, stop in ends.items()]
        return [part for part in ranges if part.end > part.start]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        assert isinstance(partition, OffsetRange)
        return read_range(self._client, partition)


def read_range(client: dict[str, str], part: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The committed records of a range, in batches. Raises TimeoutError when Kafka gives nothing for too long."""
    settings = {
        **client,
        "group.id": "tickover-pipeline",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(part.topic, part.partition, part.start)])
    try:
        yield from _batches(consumer, part)
    finally:
        consumer.close()


def read_whole(client: Mapping[str, str], topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of all committed records of a topic, as of now: also of those behind what is still open, whose end
    is waited for. Raises PipelineError, and TimeoutError when what is open doesn't end.
    """
    starts, ends = bounds(client, topic, IsolationLevel.READ_UNCOMMITTED)
    ranges = [OffsetRange(topic, int(name), starts[name], end) for name, end in ends.items() if end > starts[name]]
    for part in ranges:
        for batch in read_range(dict(client), part):
            yield from ((row["key"], row["value"]) for row in batch.select(["key", "value"]).to_pylist())


def _batches(consumer: Consumer, part: OffsetRange) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    while True:
        message = consumer.poll(ANSWER_S)
        if message is None:
            raise TimeoutError(f"{part.topic}/{part.partition}: nothing came for {ANSWER_S:.0f} s before {part.end}")
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        offset = message.offset()
        # The last offsets may be markers of transactions or of what was aborted: then only the end itself shows.
        if offset is not None and offset >= part.end:
            break
        if error is None:
            rows.append(_row(message))
            size += len(message.value() or b"")
        if len(rows) >= MESSAGES_PER_BATCH or size >= BYTES_PER_BATCH:
            yield _batch(rows)
            rows, size = [], 0
        if offset == part.end - 1 and error is None:
            break
    yield _batch(rows)


def _row(message: Message) -> tuple[Any, ...]:
    kind, timestamp_ms = message.timestamp()
    try:
        headers = _headers_of(message)
    except SystemError:  # a name that is not UTF-8: the client can't give the headers out
        headers = [(UNREADABLE, None)]
    place = (message.topic(), message.partition(), message.offset())
    return (*place, timestamp_ms if kind else -1, message.key(), message.value(), headers and _structs(headers))


def _structs(headers: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in headers]


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(_SCHEMA)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
