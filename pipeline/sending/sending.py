"""Sending rows to Kafka from the workers, and saying of each row what became of it.

Each task sends in short transactions, under a transactional id of its own. When a transaction has ended Kafka has all
of its rows, or none. So only two things are ever said of a row that went to Kafka:

    sent      its transaction was committed, and this is its place
    failed    its transaction was aborted, so Kafka has nothing of it; why

Whatever else happens (no answer to a commit, another run that has taken over) raises Unanswered, and nothing is said of
the whole slice: the next run looks into the topics. Before it does, it makes producers under the same ids (`fence`):
Kafka ends what the former run had left open, and takes nothing more from its producers, wherever they still live.

Letters are marked as sent (`marking.py`) in the transactions that send them, so both become facts together.

A task that Spark repeats would send again what its first try had sent, so a repeated task ends the job, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Event, Thread
from time import monotonic, time_ns
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from pyspark import TaskContext
from pyspark.sql import DataFrame

from pipeline.errors import Unanswered
from pipeline.sending.marking import PARTITION, Marker, Marking
from policies.headers import JOB
from sidecar.model.partitioner import source_partition
from sidecar.model.record import Headers, Place

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
COLUMNS: Final = ("id", "topic", "key", "value", "headers", "refused")
MORE_COLUMNS: Final = ("partition", "message_id", "timestamp_ms", "letter", "place")  # which rows may have
TRANSACTION_MS: Final = 30_000  # a job that was killed holds up the readers of its topics no longer than this
ANSWER_S: Final = 30.0
POLL_S: Final = 0.05
ROWS_MAX: Final = 1_000  # in one transaction: what is open holds up everybody's records behind it
BYTES_MAX: Final = 16 << 20
PACE_S: Final = 0.5  # of the rate's rows are sent at once
REFUSED_MAX: Final = 100  # rows that a task looks for one by one, beside which good ones were refused
_DEFAULTS: Final = {"linger.ms": "5"}
_FIXED: Final = {
    "enable.idempotence": "true",
    "allow.auto.create.topics": "false",
    "transaction.timeout.ms": str(TRANSACTION_MS),
    "message.timeout.ms": str(TRANSACTION_MS),
    "retry.backoff.ms": "1",
    "retry.backoff.max.ms": "100",
}
# The brokers' limit of size is one of a batch, so a small record beside a large one is refused, too.
_OF_ONE_RECORD: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG}
    | {KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP}
)
_OF_THE_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
    | {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION, KafkaError.POLICY_VIOLATION}
)
_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
NO_ANSWER: Final = f"Kafka didn't acknowledge it within {ANSWER_S:.0f} s"
OF_MARKS: Final = -1  # in place of a row's place: a record that marks letters
UNPROVEN: Final = "the broker has not said that it has the record"  # the client infers it of a later one


class Slice(NamedTuple):
    """How a slice's records and producers are known again."""

    mark: str  # in the header `tickover-job` of each record
    producers: str  # what the transactional ids of its tasks begin with
    tasks: int

    def producer_id(self, task: int) -> str:
        """The transactional id of a task."""
        return f"{self.producers}.{task}"


class OutgoingRecord(NamedTuple):
    """A row on its way; `place`: which one of its batch; `letter`: where it lies, if it is one; `in_order`: none that
    follows may go before it."""

    place: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    letter: Place | None = None
    timestamp_ms: int = 0  # as Kafka's client has it: 0 is now
    in_order: bool = False

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class Report(NamedTuple):
    """Outcome of sending a row."""

    state: str
    detail: str | None = None
    partition: int | None = None
    offset: int | None = None


def send(
    rows: DataFrame, client: Mapping[str, str], part: Slice, rate: float, marking: Marking | None = None
) -> DataFrame:
    """`REPORT` rows, one per row: `sent` with its place, `refused`, or `failed`. Sends when it is computed.

    Rows are `COLUMNS`: `headers` as in `RECORDS`, and `refused`: why it is not sent, else null. A row goes to a
    partition by its key, without one by its `message_id` or `id`, as over REST; or where a column `partition` says, if
    there is one of this number. Its timestamp is now, or what a column `timestamp_ms` says. `rate`: rows a second of
    all tasks together, 0: no limit. With a column `letter` (its place) each task sends a stretch of neighbours, and
    marks them as sent if `marking` says how. With a column `place` (where it came) a partition's rows go through one
    task, in the order of their offsets; a fault that passes then ends the computation, too: nothing goes before what it
    has hit. The computation fails, with Unanswered in its words, when nobody knows what Kafka has of the rows.
    """
    settings = dict(client)

    def batches(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        if context is not None and (context.attemptNumber() > 0 or task >= part.tasks):
            raise Unanswered("a task was repeated that may have sent something")
        marker = Marker(marking, f"{part.mark}/{task}") if marking is not None else None
        shipment = Shipment(settings, part.producer_id(task), part.mark, rate / part.tasks, marker)
        try:
            for one in parts:
                yield shipment.ship(one.to_pylist())
        finally:
            shipment.close()

    asked = rows.select(*COLUMNS, *(name for name in MORE_COLUMNS if name in rows.columns))
    if "place" in rows.columns:
        shared = asked.repartition(part.tasks, "place.topic", "place.partition").sortWithinPartitions("place")
    elif "letter" in rows.columns:
        shared = asked.repartitionByRange(part.tasks, "letter")
    else:
        shared = asked.repartition(part.tasks)
    return shared.mapInArrow(batches, REPORT)


def fence(client: Mapping[str, str], part: Slice) -> None:
    """Shut out whoever sends for this slice: what is open ends, and nothing more is taken. Raises Unanswered."""
    for task in range(part.tasks):
        _give_up(_started(client, part.producer_id(task)))


class Shipment:
    """One task's producer and pace. Its methods raise Unanswered; then it can't go on."""

    def __init__(
        self, client: Mapping[str, str], producer_id: str, mark: str, rate: float, marker: Marker | None = None
    ) -> None:
        self._client = dict(client)
        self._producer_id = producer_id
        self._mark = mark.encode()
        self._marker = marker
        self._rate = rate
        self._rows_max = max(1, min(ROWS_MAX, int(rate * PACE_S))) if rate else ROWS_MAX
        self._started_s = 0.0  # with the first row: time in which there was nothing to send is not to be caught up
        self._sent = 0
        self._refused = 0
        self._partitions: dict[str, int] = {}
        self._producer = _started(client, producer_id)

    def close(self) -> None:
        """Let go of the producer. What is open is aborted by whoever comes next, or by the broker in time."""
        _give_up(self._producer)

    def ship(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Send these, and report of each."""
        reports = [Report("refused", row["refused"]) for row in rows]
        parcels = []
        for place, row in enumerate(rows):
            if row["refused"]:
                continue
            if self._count(row["topic"]):
                parcels.append(self._parcel(place, row))
            else:
                reports[place] = Report("failed", "there is no such topic, or no right to see it")
        for batch in _batches(parcels, self._rows_max):
            self._started_s = self._started_s or monotonic()
            self._send(batch, reports)
            self._keep_pace(len(batch))
        now_ms = time_ns() // 1_000_000
        told = [(row["id"], row["topic"], *report, now_ms) for row, report in zip(rows, reports, strict=True)]
        columns = zip(*told, strict=True) if told else [()] * len(_REPORT)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, _REPORT.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_REPORT)

    def _parcel(self, place: int, row: Mapping[str, Any]) -> OutgoingRecord:
        topic, key = row["topic"], row["key"]
        headers = [(one["key"], one["value"]) for one in row["headers"] or ()]
        partition, count = row.get("partition"), self._count(topic)
        if partition is None or not 0 <= partition < count:
            partition = source_partition(key, (row.get("message_id") or row["id"]).encode(), count)
        letter = Place(**row["letter"]) if row.get("letter") else None
        marked = [*headers, (JOB, self._mark)]
        # A record that Kafka has no time of is one of now: the client can't write that there is none.
        timestamp_ms = max(row.get("timestamp_ms") or 0, 0)
        in_order = row.get("place") is not None
        return OutgoingRecord(place, topic, partition, key, row["value"], marked, letter, timestamp_ms, in_order)

    def _count(self, topic: str) -> int:
        """The topic's partitions; 0: there is none of this name."""
        if topic not in self._partitions:
            try:
                self._partitions[topic] = len(self._producer.list_topics(topic, ANSWER_S).topics[topic].partitions)
            except KafkaException as error:
                raise Unanswered(f"Kafka doesn't answer about topic {topic}: {error.args[0].str()}") from error
        return self._partitions[topic]

    def _send(self, parcels: Sequence[OutgoingRecord], reports: list[Report]) -> None:
        groups = [parcels]
        while groups:
            group = groups.pop()
            errors = self._transact(group, reports)
            if errors is not None:
                groups += reversed(self._left_of(group, errors, reports))

    def _transact(self, parcels: Sequence[OutgoingRecord], reports: list[Report]) -> dict[int, KafkaError] | None:
        """One transaction. None: it was committed. Else it was aborted: what the client says of rows, by place."""
        errors: dict[int, KafkaError] = {}
        places: dict[int, Report] = {}
        try:
            self._producer.begin_transaction()
            for parcel in (*parcels, *self._marks(parcels)):
                self._produce(parcel, places, errors)
            if self._is_acknowledged(errors):
                _end(self._producer.commit_transaction)
                for parcel in parcels:
                    reports[parcel.place] = places[parcel.place]
                if self._marker is not None:
                    self._marker.written()
                return None
            _end(self._producer.abort_transaction)
        except KafkaException as error:
            raise Unanswered(f"nobody knows whether a transaction was committed: {error.args[0].str()}") from error
        # A client that aborted may be out of sequence with its brokers, and a fresh epoch shuts out what is under way.
        _give_up(self._producer)
        self._producer = _started(self._client, self._producer_id)
        return errors

    def _marks(self, parcels: Sequence[OutgoingRecord]) -> list[OutgoingRecord]:
        """The records that say of these letters that they were sent."""
        if self._marker is None:
            return []
        letters = [parcel.letter for parcel in parcels if parcel.letter is not None]
        marks = self._marker.records(letters, time_ns() // 1_000_000)
        return [OutgoingRecord(OF_MARKS, self._marker.topic, PARTITION, key, value, []) for key, value in marks]

    def _produce(self, parcel: OutgoingRecord, places: dict[int, Report], errors: dict[int, KafkaError]) -> None:
        def note(error: Any, message: Any) -> None:
            if error is not None:
                errors[parcel.place] = error
            elif message.offset() is None:
                errors[parcel.place] = KafkaError(KafkaError._FAIL, UNPROVEN)
            else:
                places[parcel.place] = Report("sent", None, message.partition(), message.offset())

        _, topic, partition, key, value, headers, _, timestamp_ms, _ = parcel
        while not errors:
            try:
                self._producer.produce(
                    topic, value, key, partition, timestamp=timestamp_ms, headers=headers, on_delivery=note
                )
                return
            except BufferError:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                if error.args[0].code() not in _OF_ONE_RECORD | _OF_THE_TOPIC:
                    raise
                errors[parcel.place] = error.args[0]

    def _is_acknowledged(self, errors: Mapping[int, KafkaError]) -> bool:
        """Wait for all reports; not after the first error, as nothing more is sent in this transaction then."""
        until_s = monotonic() + ANSWER_S
        while len(self._producer) and not errors and monotonic() < until_s:
            self._producer.poll(POLL_S)
        return not errors and not len(self._producer)

    def _left_of(
        self, group: Sequence[OutgoingRecord], errors: Mapping[int, KafkaError], reports: list[Report]
    ) -> list[Sequence[OutgoingRecord]]:
        """Choose what is tried again after an abort, in smaller transactions. For the rest report why it has failed."""
        own = {place: error for place, error in errors.items() if error.code() not in _PURGED}
        faulty = {parcel.topic: own[parcel.place] for parcel in group if parcel.place in own}
        faulty = {topic: error for topic, error in faulty.items() if error.code() in _OF_THE_TOPIC}
        if faulty:
            for parcel in group:
                if parcel.topic in faulty:
                    reports[parcel.place] = Report("failed", faulty[parcel.topic].str())
            rest = [parcel for parcel in group if parcel.topic not in faulty]
            return [rest] if rest else []
        if any(error.code() in _OF_ONE_RECORD for error in own.values()):
            if len(group) > 1 and self._refused < REFUSED_MAX:
                half = len(group) // 2
                return [group[:half], group[half:]]
            self._refused += 1
        why = next((error.str() for error in own.values()), NO_ANSWER)
        if group[0].in_order and not any(error.code() in _OF_ONE_RECORD for error in own.values()):
            raise Unanswered(why)  # it would be sent by the next run, behind what follows it now
        if OF_MARKS in own and self._marker is not None:
            why = f"it can't be marked as sent in topic {self._marker.topic}: {own[OF_MARKS].str()}"
        for parcel in group:
            reports[parcel.place] = Report("failed", why)
        return []

    def _keep_pace(self, sent: int) -> None:
        self._sent += sent
        ahead_s = self._sent / self._rate - (monotonic() - self._started_s) if self._rate else 0.0
        if ahead_s > 0:
            Event().wait(ahead_s)


def _batches(parcels: Sequence[OutgoingRecord], rows_max: int) -> Iterator[list[OutgoingRecord]]:
    batch: list[OutgoingRecord] = []
    size = 0
    for parcel in parcels:
        if batch and (len(batch) >= rows_max or size + parcel.size > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(parcel)
        size += parcel.size
    if batch:
        yield batch


def _end(call: Callable[[float], None]) -> None:
    """Commit or abort, over errors that pass."""
    until_s = monotonic() + ANSWER_S
    while True:
        try:
            call(ANSWER_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or monotonic() > until_s:
                raise


def _started(client: Mapping[str, str], producer_id: str) -> Any:
    """A producer that has shut out all others of its id, and ended what they had left open."""
    producer = Producer({**_DEFAULTS, **client, **_FIXED, "transactional.id": producer_id})
    try:
        _end(producer.init_transactions)
    except KafkaException as error:
        _give_up(producer)
        why = f"{error.args[0].str()} (it needs the right to write under this id)"
        raise Unanswered(f"no producer with the transactional id {producer_id}: {why}") from error
    return producer


def _give_up(producer: Any) -> None:
    """Close a producer, whatever is under way. It may wait for brokers that are away: nobody waits with it."""
    producer.purge(in_queue=True, in_flight=True, blocking=False)
    Thread(target=producer.close, daemon=True).start()
