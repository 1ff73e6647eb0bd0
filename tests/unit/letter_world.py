"""Dead letters in memory."""

from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from sidecar.kafka.topic_follower import TopicReader
from sidecar.model.record import Headers, Place
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.redriven_log import RedrivenLog
from sidecar.operations.jobs.transactional_sender import OutgoingRecord, Sendable

NOW_MS = 1_800_000_000_000


class MemoryLetterLog:
    """`LetterLog` of lists. An offset without a letter is a gap, as an aborted transaction leaves."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], list[DeadLetter | None]] = {}
        self.batch = 3
        self.reads = 0

    def add(
        self,
        topic: str,
        headers: Headers | None = None,
        *,
        partition: int = 0,
        key: bytes | None = b"k",
        value: bytes | None = b"v",
    ) -> DeadLetter:
        """One letter more, a second later than the one before."""
        letters = self.partitions.setdefault((topic, partition), [])
        place = Place(topic, partition, len(letters))
        letter = DeadLetter(place, NOW_MS + 1_000 * len(letters), key, value, [] if headers is None else headers)
        letters.append(letter)
        return letter

    def topics(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for topic, partition in self.partitions:
            counts[topic] = max(counts.get(topic, 0), partition + 1)
        return counts

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return 0, len(self.partitions.get((topic, partition), ()))

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        letters = self.partitions[topic, partition]
        return next((letter.place.offset for letter in letters if letter and letter.timestamp_ms >= time_ms), None)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[DeadLetter]]:
        letters = self.partitions[topic, partition]
        for first in range(start, end, self.batch):
            self.reads += 1
            yield [letter for letter in letters[first : min(first + self.batch, end)] if letter is not None]

    def close(self) -> None:
        pass


class MemoryRedriven(RedrivenLog):
    """`RedrivenLog` that reads what a test writes."""

    def __init__(self, ids: Mapping[str, str] | None = None) -> None:
        self.ids = dict(ids or {})
        super().__init__(TopicReader({}), "tickover.g.redriven", lambda names: dict.fromkeys(names, "") | self.ids)
        self._writer = MemoryWriter(self)  # type: ignore[assignment]
        self.end = 0
        self.taken: list[OutgoingRecord] = []
        self.unread: list[Record] = []  # committed, and not read yet

    def catch_up(self) -> None:
        """All that was written is known."""
        while self.unread:
            self.take(self.unread.pop(0))
        self._is_read = True

    def write(self, plan: str, places: Sequence[Place], now_ms: int = NOW_MS, discards: bool = False) -> None:
        """A plan has sent or discarded these."""
        pen = self.pen(plan, places[0].topic, discards=discards)
        for record in pen.records(places, now_ms):
            self.take(Record(self.end, record.key, record.value))
            self.taken.append(record)
            self.end += 1
        pen.written()


class MemoryShipping:
    """A producer of transactions. `failures` come first, one a `write`; facts are read when the log catches up."""

    def __init__(self, redriven: MemoryRedriven, sent: list[Sendable], failures: list[Exception]) -> None:
        self._redriven, self._sent, self._failures = redriven, sent, failures
        self.is_closed = False

    def init(self) -> None:
        pass

    def write(self, parcels: Sequence[Sendable], facts: Sequence[Sendable]) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self._sent += parcels
        for fact in facts:
            self._redriven.unread.append(Record(self._redriven.end, fact.key, fact.value))
            self._redriven.end += 1

    def close(self) -> None:
        self.is_closed = True


class MemoryWriter:
    """`LogWriter` of a log that takes in what is written."""

    def __init__(self, log: MemoryRedriven) -> None:
        self._log = log

    def write(self, key: bytes, value: bytes | None) -> None:
        self._log.take(Record(self._log.end, key, value))
        self._log.end += 1


class Record:
    """A consumed record."""

    def __init__(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        self._offset, self._key, self._value = offset, key, value

    def error(self) -> None:
        return None

    def leader_epoch(self) -> int | None:
        return None

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_NOT_AVAILABLE, 0


def dead(reason: str = "attempts_exhausted", policy: str = "orders@1", **more: str) -> Headers:
    """Headers of a dead letter; `error_class="X"` is `tickover-error-class`."""
    given = {"reason": reason, "policy": policy, "source": "orders-retry/0/7", "attempt": "6", **more}
    return [(f"tickover-{name.replace('_', '-')}", value.encode()) for name, value in given.items()]
