"""Interfaces between the engine and the world, each small, with a real implementation and a fake.

The engine's core imports no client library; these types are all it knows of Kafka and Redis.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple, Protocol

from sidecar.model.log_cuts import ReadMark
from sidecar.model.record import TopicPartition

MESSAGE_BYTES_MAX: Final = 1_048_588  # what brokers take by default, and what our producer sends
SMALL_BATCH_BYTES: Final = (
    16_384  # Java's own default: what refuses it refuses every Java producer that is set to nothing
)
NO_ANSWER: Final = -1  # in place of a partition count: brokers are away, which says nothing about the topic


class SourceRecord(Protocol):
    """A consumed record, as confluent-kafka's Message gives it."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def leader_epoch(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def error(self) -> Any: ...


def mark_of(record: SourceRecord) -> ReadMark:
    """Offset, leader epoch and timestamp of a record that was read, to be kept."""
    epoch = record.leader_epoch()
    return ReadMark(record.offset() or 0, -1 if epoch is None else epoch, record.timestamp()[1])


class Start(NamedTuple):
    """Where a lane begins: its committed offset and metadata, cut to what the source still has.

    `metadata` is empty where nothing was committed. `partitions`: how many the source had when it was new to the group;
    0: not known. `earliest`: the log's start, where nothing was committed and `offset` is the log's end by the setting
    `start`; else -1. `log_start`: the first offset that the source still has. `made_anew`: the group's commit is about
    a former topic of this name, and isn't used. `log_end`: where the log ends, -1 where that isn't known. `offset` may
    lie beyond, where it was cut back.
    """

    offset: int
    metadata: str
    topic_id: str
    partitions: int = 0
    earliest: int = -1
    made_anew: bool = False
    log_start: int = 0
    log_end: int = -1


class Starts(Protocol):
    """The group's commits. Blocking: a recovery asks from its own thread."""

    def starts(self, lanes: Sequence[TopicPartition]) -> Mapping[TopicPartition, Start]:
        """Starts of the lanes, as far as known; a lane left out is asked for again."""

    def has_commits(self) -> bool:
        """The group has a commit of some partition, of whatever topic."""

    def records(self, places: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, ReadMark | None]:
        """The first record that each log has at or behind this offset; None: it has none. A lane of which nobody knows
        for now is left out.
        """

    def may_read(self, topic: str) -> bool:
        """The brokers let this process read a source, or it is gone."""


class Member(NamedTuple):
    """Place of this process in its group, as of when it was asked for.

    `is_named`: it says which member this is, of which generation, so that the coordinator refuses it once the group has
    gone on. From who doesn't say, the coordinator takes a transaction's offsets at any time, as older producers have no
    names to give; and a commit while the group has no members. So offsets that count are never sent without.
    """

    metadata: Any  # the client's own, for `send_offsets`
    is_named: bool


NO_MEMBER: Final = Member(None, False)


class GroupEvents(Protocol):
    """Events of the consumer group, told on the engine's own thread, from within `Intake.take`."""

    def assigned(self, lanes: Sequence[TopicPartition]) -> None: ...
    def revoked(self, lanes: Sequence[TopicPartition]) -> None: ...
    def lost(self, lanes: Sequence[TopicPartition]) -> None: ...
    def refused(self, words: str) -> None:
        """The group doesn't take this process in, and waiting won't change that."""

    def unreadable(self, topic: str, words: str) -> None:
        """The brokers refuse this process the right to read a source, in `words` of theirs."""

    def out_of_range(self, lane: TopicPartition) -> None:
        """The log doesn't have any more what was to be read next, or what was read before it; nothing is read of it
        until `begin` says from where.
        """

    def committed(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """The group has these (offset, metadata) now."""


class Intake(Protocol):
    """The consumer."""

    def take(self, count: int) -> Sequence[SourceRecord]:
        """At most `count` records, without waiting. Group events are delivered from within."""

    def wait(self, seconds: float) -> bool:
        """Wait until there is something to take, for at most so long; True: there is. Group events are delivered from
        within, and count. Nothing may be asked of the intake between this and the next `take`.
        """

    def begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        """From where each lane is read; lanes are paused when they are assigned, and stay so."""

    def pause(self, lanes: Sequence[TopicPartition]) -> None: ...
    def resume(self, lanes: Sequence[TopicPartition]) -> None: ...

    def positions(self, lanes: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Up to where each of these has been read, by what `take` has given out: marks of transactions and other
        offsets without a record are passed. Those of which it isn't known are left out. Asks nobody.
        """

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]], wait: bool) -> None:
        """Commit (offset, metadata) of each lane; `wait` for the broker's answer or let it come by itself. Nothing is
        sent while this process has no place in its group."""

    def member(self) -> Member:
        """Place of this process in its group as of now, for a transaction's offsets."""

    def close(self) -> None:
        """Leave the group."""


DeliveryReport = Callable[[Any, Any], None]


class Output(Protocol):
    """The producer. `produce` raises BufferError when its queue is full, `refused` when it refuses this record.

    The first argument of `refused` is the client's error, with `name()`, `fatal()` and `str()`.
    """

    refused: type[Exception]

    # tidy: confluent-kafka's own signature
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
        """confluent-kafka's own method, by position because keywords cost time on the hot path.

        It takes the report in two places of which the first counts; timestamp 0 means: when it is sent.
        """

    def poll(self, seconds: float) -> int:
        """Serve delivery reports; returns how many."""


class TransactionalOutput(Output, Protocol):
    """A producer that works in transactions. Calls raise `refused`, whose error has also `txn_requires_abort()`.

    All but `produce`, `poll` and `begin` wait for the brokers: not for the engine's thread, but for a flush of 1 ms.
    """

    def init(self, seconds: float) -> None:
        """End what a former producer of the same transactional id has under way, and fence it off."""

    def begin(self) -> None: ...

    def flush(self, seconds: float) -> int:
        """Wait for delivery reports; returns how many are missing."""

    def purge(self) -> None:
        """Give up what has no delivery report: it is reported as failed."""

    def give_up(self) -> None:
        """Give up this producer: it is not used any more, and what has no delivery report never will have. A report on
        its way keeps the producer alive. Raises nothing.
        """

    def send_offsets(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], member: Member, seconds: float
    ) -> None: ...
    def commit(self, seconds: float) -> None: ...
    def abort(self, seconds: float) -> None: ...


class TransactionalOutputs(Protocol):
    """Makes the producers, and the threads that wait for them."""

    def output(self, name: str) -> TransactionalOutput:
        """A producer of this name; whoever had it before is fenced off when it is initialised."""

    def successor(self, name: str) -> TransactionalOutput:
        """Producer of the same name under a fresh transactional id: the last one's transaction can't end for now."""

    def let_go(self, output: TransactionalOutput) -> None:
        """Let go of a producer that is not used any more. Returns at once."""

    def executor(self) -> Executor: ...


class Time(Protocol):
    """The engine's clock (`engine/clock.py`): epoch milliseconds, boot time that nobody can set, and time.monotonic().

    `is_known`: the broker's clock was seen. Until then `now_ms` is what this machine believes, and may be far ahead.
    """

    is_known: bool

    def now_ms(self) -> int: ...

    def boot_ms(self) -> float: ...

    def observe(self, sent_boot_ms: float, broker_ms: float, acknowledged_boot_ms: float) -> None: ...

    def latest_ms(self, sent_boot_ms: float, broker_ms: float) -> float: ...

    def probe_due(self) -> bool: ...

    def monotonic_s(self) -> float: ...

    @property
    def skew_ahead_ms(self) -> float: ...


def is_over(now_ms: int, until_ms: int, longest_ms: int) -> bool:
    """Whether a wait of at most `longest_ms` is over. The clock was set back by more than that: it is, too.

    So no wait by the engine's time, which may be set back (`engine/clock.py`), lasts longer than twice as long.
    """
    return not 0 < until_ms - now_ms <= 2 * longest_ms


class Unproven:
    """The error of a record that was reported as written, at no offset: the broker has not said that it has it.

    librdkafka takes a record for written when a later one of the same partition is. But a broker that knows nothing of
    a producer yet lets it begin anywhere: of two requests on the way to a new partition, the first may be refused
    ("not the leader", a moment before it is) and the second taken. The first record is then nowhere.
    """

    def name(self) -> str:
        """As Kafka's names of errors."""
        return "NO_OFFSET"

    def fatal(self) -> bool:
        """The producer is fine."""
        return False

    def str(self) -> "str":
        """For logs."""
        return "reported as written, but at no offset"


UNPROVEN: Final = Unproven()


def refusal(error: Any, message: Any) -> Any:
    """Error of a record that may not be in its topic; None when its delivery report proves that it is."""
    return UNPROVEN if error is None and message.offset() is None else error


class SourceUnavailable(Exception):
    """The brokers don't give the source's records for now: it passes."""


class SourceLog(Protocol):
    """Reading a source by offset, beside the group."""

    def fetch(self, lane: TopicPartition, offsets: Sequence[int]) -> dict[int, SourceRecord]:
        """The records at these ascending offsets, for the caller to keep; those that the source has no more are left
        out.

        Raises SourceUnavailable.
        """

    def release(self) -> None:
        """Nothing more is wanted for now."""
