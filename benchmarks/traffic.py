"""Records into sources at full speed, and what has arrived in targets."""

import itertools
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.harness import PARTITIONS, BenchmarkError, Child, percentile, wait_until
from policies.headers import DELAY, DUE, ID, TARGET
from sidecar.kafka.client_settings import producer_settings
from sidecar.model.record import Headers

VALUE_BYTES: Final = 200
VALUES: Final = 5_000  # distinct ones: enough that a batch doesn't compress to nothing
POLL_EVERY: Final = 1_000
READ_BATCH: Final = 10_000
QUIET_S: Final = 30.0
# An idempotent producer's thread takes a whole core while an acknowledgement is late: see docs/decisions/0039.
NOT_IDEMPOTENT: Final = {"enable.idempotence": "false"}


class Arrival(NamedTuple):
    """One record in a target: when the broker appended it, and when it was due."""

    appended_ms: int
    due_ms: int


def values() -> Iterator[bytes]:
    """Orders of 200 bytes, without end."""
    chance = random.Random(1).getrandbits
    made = [
        json.dumps(
            {
                "order_id": f"{chance(128):032x}",
                "customer": f"C{chance(27):09d}",
                "status": ("new", "paid", "sent", "back")[chance(2)],
                "amount": chance(20) / 100,
                "items": [{"sku": f"{chance(32):08X}", "quantity": 1 + chance(2)}],
            }
        )
        .encode()
        .ljust(VALUE_BYTES)[:VALUE_BYTES]
        for _ in range(VALUES)
    ]
    return itertools.cycle(made)


def request_headers(delay_ms: int, target: str) -> Headers:
    """Two of the user's own, and what asks for the delay."""
    return [
        ("trace-id", b"4bf92f3577b34da6"),
        ("content-type", b"application/json"),
        (DELAY, b"%dms" % delay_ms),
        (TARGET, target.encode()),
    ]


def new_id() -> bytes:
    """36 bytes, as a UUID is written."""
    return str(uuid.UUID(int=random.getrandbits(128))).encode()


class Filler:
    """Produces requests; the record's timestamp is an argument, since a delay counts from it."""

    def __init__(self, bootstrap: str, source: str, target: str, *, with_ids: bool = False) -> None:
        self._producer: Any = Producer({**producer_settings({"bootstrap.servers": bootstrap}), **NOT_IDEMPOTENT})
        self._source = source
        self._target = target
        self._with_ids = with_ids
        self._values = values()
        self._failed = 0

    def fill(self, count: int, stamp_ms: int, delay_ms: Callable[[], int]) -> None:
        """`count` records with one timestamp, as fast as it goes; returns when all are acknowledged."""
        for number in range(count):
            self.send(number, stamp_ms, delay_ms())
        self.flush()

    def send(self, number: int, stamp_ms: int, delay_ms: int) -> None:
        """One record."""
        key, headers = b"C%09d" % number, request_headers(delay_ms, self._target)
        if self._with_ids:
            headers.append((ID, new_id()))
        while True:
            try:
                self._producer.produce(self._source, next(self._values), key, -1, self._report, None, stamp_ms, headers)
                break
            except BufferError:
                self._producer.poll(0.1)
        if number % POLL_EVERY == 0:
            self._producer.poll(0)

    def flush(self) -> None:
        """Until all are acknowledged."""
        if self._producer.flush(60) or self._failed:
            raise BenchmarkError(f"the source was not filled: {self._failed} records refused")

    def _report(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed += 1


class Reader:
    """Looks at one target."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-reader",
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "queued.min.messages": "100000",
            }
        )

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def arrived(self) -> int:
        """How many records the topic has at most: the markers that end a transaction count too."""
        ends = (
            self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=False)
            for partition in range(PARTITIONS)
        )
        return sum(pair[1] for pair in ends)

    def wait_for(self, count: int, child: Child, timeout_s: float) -> None:
        """Until so many have arrived from a child that runs."""
        what = f"{count} records in {self._topic}"
        wait_until(lambda: self.arrived() >= count or child.check(), timeout_s, what)

    def read(self, count: int) -> list[Arrival]:
        """All records, by their time of arrival. More or less than `count` is an error: lost or repeated."""
        self._consumer.assign(
            [TopicPartition(self._topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)]
        )
        found: list[Arrival] = []
        heard = time.monotonic()
        while len(found) < count and time.monotonic() < heard + QUIET_S:
            for message in self._consumer.consume(READ_BATCH, 0.5):
                if message.error() is None:
                    found.append(arrival_of(message))
                    heard = time.monotonic()
        found += [arrival_of(message) for message in self._consumer.consume(READ_BATCH, 1.0) if not message.error()]
        if len(found) != count:
            raise BenchmarkError(f"{len(found)} records in {self._topic}, {count} were sent")
        found.sort()
        return found


def arrival_of(message: Any) -> Arrival:
    due = next((value for name, value in message.headers() or () if name == DUE), None)
    return Arrival(message.timestamp()[1], int(due or -1))


class Rates(NamedTuple):
    """Records per second: of all, and of the middle 80 % of the records, without start and end."""

    whole: float
    middle: float


def rates(arrivals: list[Arrival]) -> Rates:
    """How fast records were appended; `arrivals` in order."""
    times = [arrival.appended_ms for arrival in arrivals]
    middle_ms = percentile(times, 0.9) - percentile(times, 0.1)
    return Rates(len(times) * 1000 / max(times[-1] - times[0], 1), len(times) * 800 / max(middle_ms, 1))


class Lateness(NamedTuple):
    """Append time minus due."""

    p50_ms: int
    p99_ms: int
    max_ms: int
    early: int


def lateness(arrivals: list[Arrival], first_ms: int = 0) -> Lateness:
    """Of all that fell due later than `first_ms` after the first; the early ones are counted among all."""
    start_ms = min(arrival.due_ms for arrival in arrivals) + first_ms
    late = sorted(arrival.appended_ms - arrival.due_ms for arrival in arrivals if arrival.due_ms >= start_ms)
    early = sum(1 for arrival in arrivals if arrival.appended_ms < arrival.due_ms)
    return Lateness(percentile(late, 0.5), percentile(late, 0.99), late[-1], early)
