"""Kafka in memory: topics, a producer whose answers take their time, the ledger as it is read back.

Order is kept within a partition and nowhere else. What a crash leaves of the records under way is a prefix of each
partition's, as with an idempotent producer.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from sidecar.ledger.frame import unpack_frame
from sidecar.ledger.topic import LedgerError, LedgerRecord, LedgerUnavailable
from sidecar.model.partitioner import partition_of
from sidecar.model.ports import DeliveryReport, SourceRecord
from sidecar.model.record import Headers, TopicPartition
from tests.simulation.fake_time import VirtualClock

VALUE_BYTES_MAX = 1_000  # of a batch; a value twice as large is refused by `produce` itself
NOWHERE_SHARE = 0.002  # of the records that are reported as written
CREATE_TIME = 1
LOG_APPEND_TIME = 2


@dataclass(frozen=True, slots=True, eq=False)
class FakeRecord:
    """One record of a topic, read as confluent-kafka's Message is."""

    place: tuple[str, int, int]
    stamp: tuple[int, int]
    pair: tuple[bytes | None, bytes | None]
    named: Headers | None
    handed_over_ms: int = -1  # when the producer got it, by the engine's time
    garbled: bool = False  # a header name that is not UTF-8
    epoch: int = 0  # of the leader that took it

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.place[2]

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def leader_epoch(self) -> int:
        return self.epoch

    def key(self) -> bytes | None:
        return self.pair[0]

    def value(self) -> bytes | None:
        return self.pair[1]

    def headers(self) -> Headers | None:
        if self.garbled:
            raise SystemError("a header name is not UTF-8")
        return None if self.named is None else list(self.named)

    def error(self) -> None:
        return None


class Nowhere(NamedTuple):
    """Report of a record that the client believes to be written, and that is not: it has no offset."""

    record: FakeRecord

    def offset(self) -> None:
        return None

    def topic(self) -> str:
        return self.record.topic()

    def partition(self) -> int:
        return self.record.partition()

    def key(self) -> bytes | None:
        return self.record.key()

    def value(self) -> bytes | None:
        return self.record.value()


class FakeError(NamedTuple):
    """The client's error."""

    word: str

    def name(self) -> str:
        return self.word

    def fatal(self) -> bool:
        return False

    def str(self) -> "str":
        return self.word


def as_read(headers: Sequence[tuple[str, str | bytes | None]]) -> Headers:
    """Headers as a consumer gets them: the client takes text for a value and writes it as UTF-8."""
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]


class Killed(BaseException):
    """The process is gone, whatever it was doing."""


class Fate:
    """When a process is killed: at its n-th call to the outside from now."""

    def __init__(self) -> None:
        self.calls_left = -1  # not yet

    def strike(self) -> None:
        """Called at the beginning of each call to the outside."""
        if self.calls_left == 0:
            raise Killed
        self.calls_left -= self.calls_left > 0


class Refused(Exception):
    """Raised by `produce` for one record."""


@dataclass(slots=True)
class Log:
    """One partition."""

    records: list[FakeRecord]
    end: int = 0
    start: int = 0  # retention took what was before
    epoch: int = 0  # of its leader
    undecided: set[int] = field(default_factory=set)  # offsets of records in open transactions

    def stable_end(self) -> int:
        """Where a reader of committed records has to stop."""
        return min(self.undecided, default=self.end)


class Broker:
    """All topics. `listeners` hear of every record as it is appended."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.logs: dict[str, list[Log]] = {}
        # Topics, or partitions of them, with too few replicas in sync: nothing is written to them.
        self.short: set[str | tuple[str, int]] = set()
        self.listeners: list[Callable[[FakeRecord], None]] = []
        self.handing_over: list[Callable[[str, Headers], None]] = []  # told of each record that a producer gets
        self._created: Counter[str] = Counter()
        self.block_bytes_max = 1_000_000  # of a ledger block before it is compressed

    def create(self, topic: str, partitions: int) -> None:
        """A topic, or another one of the same name."""
        self._created[topic] += 1
        self.logs[topic] = [Log([]) for _ in range(partitions)]

    def add_partition(self, topic: str) -> None:
        self.logs[topic].append(Log([]))

    def topic_id(self, topic: str) -> str:
        return f"{topic}.{self._created[topic]}"

    def append(self, topic: str, partition: int, record: FakeRecord, undecided: bool = False) -> FakeRecord:
        """Give a record its offset.

        An `undecided` one is in an open transaction: nobody hears of it before it is committed.
        """
        log = self.logs[topic][partition]
        offset = log.end
        placed = FakeRecord(
            (topic, partition, offset), record.stamp, record.pair, record.named, record.handed_over_ms, record.garbled,
            log.epoch,
        )  # fmt: skip
        log.records.append(placed)
        log.end = offset + 1
        if undecided:
            log.undecided.add(offset)
        else:
            self.announce(placed)
        return placed

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """As retention does."""
        log = self.logs[topic][partition]
        log.records = [record for record in log.records if record.offset() >= offset]
        log.start = offset

    def announce(self, record: FakeRecord) -> None:
        """Readers of committed records see it."""
        for listener in self.listeners:
            listener(record)

    def decide(self, record: FakeRecord, commit: bool) -> None:
        """The transaction of an undecided record has ended."""
        topic, partition, offset = record.place
        log = self.logs[topic][partition]
        log.undecided.discard(offset)
        if not commit:
            log.records.remove(record)

    def partition_count(self, topic: str) -> int:
        return len(self.logs.get(topic, ()))


@dataclass(slots=True)
class _Sending:
    record: FakeRecord
    report: DeliveryReport
    arrives_ms: int
    reported_ms: int


class FakeOutput:
    """A producer. `delay_ms` draws how long a record takes there, and its answer back."""

    refused: type[Exception] = Refused

    def __init__(self, broker: Broker, rng: Random, delay_ms: Callable[[], int], queue_max: int, fate: Fate) -> None:
        self.lone = False  # every record in a batch of its own
        self._fate = fate
        self._broker = broker
        self._rng = rng
        self._delay_ms = delay_ms
        self._queue_max = queue_max
        self._sending: dict[tuple[str, int], deque[_Sending]] = defaultdict(deque)
        self._answers: dict[tuple[str, int], deque[tuple[_Sending, FakeRecord | Nowhere | None]]] = defaultdict(deque)
        self.under_way = 0

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        report: DeliveryReport,
        report_unused: None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, str | bytes | None]],
        /,
    ) -> None:
        """See `Output.produce`."""
        self._fate.strike()
        if self.under_way >= self._queue_max:
            raise BufferError("queue full")
        count = self._broker.partition_count(topic)
        if self._is_ledger(topic):
            too_large = len(unpack_frame(value)[1]) > self._broker.block_bytes_max
        else:
            too_large = len(value or b"") > 2 * VALUE_BYTES_MAX
        if too_large:
            raise Refused(FakeError("MSG_SIZE_TOO_LARGE"))
        if not count or partition >= count:
            raise Refused(FakeError("_UNKNOWN_TOPIC" if not count else "_UNKNOWN_PARTITION"))
        if partition < 0:
            partition = partition_of(key or b"", count)
        now_ms = self._broker.clock.now_ms
        place, named = (topic, partition, -1), as_read(headers)
        record = FakeRecord(place, (LOG_APPEND_TIME, 0), (key, value), named, self._broker.clock.turn_ms)
        for listener in self._broker.handing_over:
            listener(topic, named or [])
        arrives_ms = now_ms + self._delay_ms()
        self._sending[topic, partition].append(_Sending(record, report, arrives_ms, arrives_ms + self._delay_ms()))
        self.under_way += 1

    def deliver(self, until_ms: int) -> None:
        """Put what has arrived by `until_ms` into the log, or refuse it."""
        for place, queue in self._sending.items():
            while queue and queue[0].arrives_ms <= until_ms and self._takes(place):
                sending = queue.popleft()
                stored = Nowhere(sending.record) if self._is_nowhere(sending.record) else self._store(sending.record)
                self._answers[place].append((sending, stored))

    def _takes(self, place: tuple[str, int]) -> bool:
        """Records for this partition are answered for now; else the client tries again by itself."""
        return self._broker.short.isdisjoint((place, place[0]))

    def poll(self, seconds: float) -> int:
        """See `Output.poll`. Waiting lets time pass for everybody."""
        self._fate.strike()
        clock = self._broker.clock
        if seconds > 0:
            clock.advance(max(round(seconds * 1_000), 1))
        self.deliver(clock.now_ms)
        return self._serve(clock.now_ms)

    def _serve(self, until_ms: int) -> int:
        served = 0
        for queue in list(self._answers.values()):
            while queue and queue[0][0].reported_ms <= until_ms:
                sending, stored = queue.popleft()
                self.under_way -= 1
                served += 1
                error = None if stored else FakeError("MSG_SIZE_TOO_LARGE")
                sending.report(error, stored or sending.record)
        return served

    def unheard_of(self) -> list[FakeRecord]:
        """Refused, or nowhere, without the client's having been told yet."""
        answers = [answer for queue in self._answers.values() for answer in queue]
        return [sending.record for sending, stored in answers if stored is None or isinstance(stored, Nowhere)]

    def crash(self) -> None:
        """The process is gone: of each partition's records under way a prefix arrives, and nobody hears of it."""
        for queue in self._sending.values():
            for _ in range(self._rng.randint(0, len(queue))):
                self._store(queue.popleft().record)
            queue.clear()

    def _is_nowhere(self, record: FakeRecord) -> bool:
        """The broker has not taken this one, and the client is misled by a later one: see `Unproven`.

        Found again by content: those that others may equal are spared.
        """
        return bool(record.value()) and not self._is_ledger(record.topic()) and self._rng.random() < NOWHERE_SHARE

    def _store(self, record: FakeRecord) -> FakeRecord | None:
        topic, partition, _ = record.place
        key, value = record.pair
        if not self._is_ledger(topic):
            # Found again by content, so those that others may equal are spared: they would all be repeated.
            neighbour = bool(value) and not self.lone and self._rng.random() < 0.003
            if len(value or b"") > VALUE_BYTES_MAX or neighbour:
                return None
        stamp = (LOG_APPEND_TIME, self._broker.clock.broker_ms)
        return self._append(
            topic, partition, FakeRecord(record.place, stamp, (key, value), record.named, record.handed_over_ms)
        )

    def _append(self, topic: str, partition: int, record: FakeRecord) -> FakeRecord | None:
        return self._broker.append(topic, partition, record)

    @staticmethod
    def _is_ledger(topic: str) -> bool:
        return topic.endswith(".ledger")


class FakeLedgerLog:
    """`LedgerLog` over the broker's memory."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._logs = broker.logs[topic]
        self._waited_for: dict[int, int] = {}  # by partition: its end when a reader first had to wait

    def bounds(self, partition: int) -> tuple[int, int]:
        log = self._logs[partition]
        return log.start, log.stable_end()

    def read(self, starts: Mapping[int, int], at_least: Mapping[int, int]) -> Iterator[LedgerRecord]:
        for partition, start in starts.items():
            log = self._logs[partition]
            known = partition in at_least
            until = at_least[partition] if known else self._waited_for.setdefault(partition, log.end) - 1
            if until >= log.end:
                raise LedgerError("the ledger was cut")
            if until >= log.stable_end():
                raise LedgerUnavailable("an open transaction is in the way")  # the real reader waits
            if not known:
                del self._waited_for[partition]
            for record in log.records:
                if start <= record.offset() < log.stable_end():
                    yield LedgerRecord(partition, record.offset(), record.key() or b"", record.value() or b"")


class FakeSourceLog:
    """`SourceLog` over the broker's memory."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def fetch(self, lane: TopicPartition, offsets: Sequence[int]) -> dict[int, SourceRecord]:
        """See `SourceLog.fetch`."""
        assert list(offsets) == sorted(offsets)
        wanted = set(offsets)
        records = self._broker.logs[lane.topic][lane.partition].records
        return {record.offset(): record for record in records if record.offset() in wanted}

    def release(self) -> None:
        """See `SourceLog.release`."""
