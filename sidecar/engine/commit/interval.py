"""A commit interval: records handed to the producer between two settlements, until Kafka has answered for all."""

from collections import Counter
from collections.abc import Collection, Sized
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.record_queue import size_of, topic_of
from sidecar.model.ports import refusal
from sidecar.model.record import Diverted, Held, TargetPartition, due_of

_size: Final = itemgetter(Held._fields.index("size"))


class Failure(NamedTuple):
    """A delivery that Kafka refused: the client's error and message, and whether the record was alone in its batch, or
    in a small one.
    """

    error: Any
    message: Any
    isolated: bool
    small: bool = False


class NoOutput:
    """No producer for now: records stay where they are."""

    class refused(Exception):  # noqa: N801 - as the port calls it; never raised
        """Nothing is refused: nothing is taken."""

    def produce(self, *_: Any) -> None:
        """Nothing is taken."""
        raise BufferError("no producer")

    def poll(self, _: float) -> int:
        """Nothing to report."""
        return 0


NO_OUTPUT: Final = NoOutput()


class CommitInterval:
    """Records handed to the producer within one interval, and how many of them Kafka has acknowledged.

    `output` is the producer they go to; `isolation_output`, where there is one, sends every record in a batch of its
    own, `small_output` in small batches. `batches`: records of one lane with the time at which they were handed over,
    epoch milliseconds. `bytes`: of all in it; `oldest_due_ms`: the earliest due time of what is emitted, or -1.
    """

    __slots__ = (
        "acknowledged", "batches", "bytes", "departures", "failures", "isolation_output", "oldest_due_ms", "output",
        "sent", "small_output",
    )  # fmt: skip

    def __init__(self, output: Any, isolation_output: Any = None, small_output: Any = None) -> None:
        self.output = output
        self.isolation_output = isolation_output
        self.small_output = small_output
        self.sent = 0
        self.acknowledged = 0
        self.batches: list[tuple[SourcePartition, list[Held], int]] = []
        self.departures: list[tuple[SourcePartition, Diverted]] = []
        self.failures: list[Failure] = []
        self.bytes = 0
        self.oldest_due_ms = -1

    def took(self, lane: SourcePartition, records: list[Held], now_ms: int, first_due_ms: int) -> None:
        """Note records that the producer has taken. `first_due_ms`: the earliest due time among them."""
        self.sent += len(records)
        self.batches.append((lane, records, now_ms))
        self.bytes += sum(map(_size, records))
        if self.oldest_due_ms < 0 or first_due_ms < self.oldest_due_ms:
            self.oldest_due_ms = first_due_ms

    def took_departure(self, lane: SourcePartition, departure: Diverted) -> None:
        """Note a record that leaves another way, and that the producer has taken."""
        self.sent += 1
        self.departures.append((lane, departure))
        self.bytes += size_of(departure)

    def handed_over(self, place: TargetPartition) -> None:
        """The producer has taken a record for this partition, one of those that are handed over one by one."""

    def report(self, error: Any, message: Any) -> None:
        """Delivery report of any record of this interval: one shared bound method, as it runs once a record."""
        self.acknowledged += 1
        if error is not None or message.offset() is None:
            self.failures.append(Failure(refusal(error, message), message, isolated=False))

    def report_isolated(self, error: Any, message: Any) -> None:
        """Delivery report of a record that was sent in a batch of its own."""
        self.acknowledged += 1
        if error is not None or message.offset() is None:
            self.failures.append(Failure(refusal(error, message), message, isolated=True))

    def report_small(self, error: Any, message: Any) -> None:
        """Delivery report of a record that was sent in a small batch."""
        self.acknowledged += 1
        if error is not None or message.offset() is None:
            self.failures.append(Failure(refusal(error, message), message, isolated=False, small=True))

    def give_to_lanes(self) -> None:
        """Hand the records to their lanes, which seal them from now on."""
        for lane, batch, _ in self.batches:
            lane.emitted(batch)
        for lane, departure in self.departures:
            lane.depart((departure,))

    def is_early(self, now_ms: float) -> bool:
        """Something of it isn't due: it was handed over before the clock was set back."""
        return any(
            handed_over_ms > now_ms and max(map(due_of, records)) > now_ms
            for _, records, handed_over_ms in self.batches
        )

    @property
    def owners(self) -> list[SourcePartition]:
        """Lanes that the records are of, a lane as often as it comes."""
        return [lane for lane, _, _ in self.batches] + [lane for lane, _ in self.departures]

    @property
    def complete(self) -> bool:
        """Every record has its report."""
        return self.acknowledged == self.sent

    @property
    def topics(self) -> set[str]:
        """Where its records were to go."""
        return set(map(topic_of, self.parcels()))

    def parcels(self) -> list[Held | Diverted]:
        """All of its records."""
        departures: list[Held | Diverted] = [departure for _, departure in self.departures]
        return departures + [held for _, batch, _ in self.batches for held in batch]

    @property
    def taken_in_part(self) -> bool:
        """Whether a topic took some of its records and not others. Asked when all have their reports."""
        missed = Counter(failure.message.topic() for failure in self.failures)
        sent = Counter(map(topic_of, self.parcels()))
        return any(count < sent[topic] for topic, count in missed.items())


class EmissionApart(Protocol):
    """How a settlement fills a transaction of its own with records that go apart from others."""

    def emit_isolated(self, now_ms: int) -> None:
        """Hand records of one target to the open interval's `isolation_output`."""

    def emit_small(self, now_ms: int) -> None:
        """Hand some of those that go in small batches to the open interval's `small_output`."""


class Refusals(Protocol):
    """Where a interval's failed deliveries go: they are emitted again or leave another way."""

    @property
    def isolated(self) -> Sized:
        """Records that wait to be tried one by one."""

    @property
    def small(self) -> Sized:
        """Records that wait to be sent in small batches."""

    def refused(self, interval: CommitInterval) -> None:
        """Take the failed records out of the interval and see to them."""

    def given_up(self, interval: CommitInterval) -> None:
        """Remember the partitions that did not acknowledge in time. What a failed transaction has purged is no sign of
        it: its client drops all that is under way, to healthy targets, too.
        """

    def suspect(self, interval: CommitInterval, cause: Any, careful: bool) -> None:
        """A record or target of this interval is at fault, and the client doesn't say which: take them all out."""

    def take_back(self, interval: CommitInterval, careful: bool) -> None:
        """Nothing of this interval has happened: all that is left in it is to be emitted again."""

    def passed_isolated(self, interval: CommitInterval) -> None:
        """All records of this interval, sent one by one, were taken."""

    def passed_small(self) -> None:
        """All that was sent in small batches was taken."""

    def watch(self, topics: Collection[str]) -> None:
        """From now on the partition of each record for these topics, and for no others, is to be known here."""

    def silent(self, places: Collection[TargetPartition]) -> None:
        """Partitions don't acknowledge: nothing more is to be sent there until they are `answering`."""

    def answering(self, places: Collection[TargetPartition]) -> None:
        """Partitions that were `silent` acknowledge again."""
