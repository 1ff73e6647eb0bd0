"""A log in memory, brokers' replicas round it, and a clock set by hand: what tests of partitions stand on."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from purgatory.delayed.delayed_fetch import FetchParams, FetchPartition
from purgatory.errors import ApiError, Errors, UnexpectedAppendOffset
from purgatory.log_offsets import Isolation, LogOffsetMetadata, TopicPartition
from purgatory.partition.isr import AlterPartition, PartitionAssignment
from purgatory.partition.partition import Partition, PartitionSettings
from purgatory.partition.replica_log import AppendInfo, BatchInfo, FetchDataInfo, ReplicaLog
from purgatory.replica_manager.partition_reader import ReadingSettings
from purgatory.replica_manager.replica_manager import ReplicaManager, Surroundings
from purgatory.timer.system_timer import SystemTimer
from tests.unit.purgatory_tasks import Clock

KEY = TopicPartition("topic", 0)
SIZE = 100  # bytes of a batch


@dataclass(frozen=True)
class Batch:
    """A batch that a producer sends, or (with `first` and `epoch`) a leader."""

    count: int = 1
    size: int = SIZE
    producer_id: int = -1
    ends: str | None = None
    first: int = -1
    epoch: int = -1
    refused: Errors | None = None  # what the log says to it

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class ModelLog:
    """Batches in a list; positions are the sums of their sizes, a segment begins where one would not fit."""

    def __init__(self, segment_bytes: int = 1 << 30) -> None:
        self.batches: list[Batch] = []
        self.places: list[LogOffsetMetadata] = []
        self.end = LogOffsetMetadata(0, 0, 0)
        self.segment_bytes = segment_bytes
        self.reads = 0

    def append(self, records: Any, leader_epoch: int | None) -> AppendInfo:
        first = self.end.offset
        batches = []
        for sent in records:
            batch = sent
            if sent.refused is not None:
                raise ApiError(sent.refused)
            if leader_epoch is not None:
                batch = replace(sent, first=self.end.offset, epoch=leader_epoch)
            elif batch.first != self.end.offset:
                raise UnexpectedAppendOffset(batch.first, batch.last, self.end.offset)
            if self.end.position + batch.size > self.segment_bytes:
                self.roll()
            self.batches.append(batch)
            self.places.append(LogOffsetMetadata(batch.first, self.end.segment_base_offset, self.end.position))
            self.end = LogOffsetMetadata(batch.last + 1, self.end.segment_base_offset, self.end.position + batch.size)
            is_transactional = batch.producer_id >= 0
            batches.append(
                BatchInfo(batch.first, batch.last, batch.epoch, batch.producer_id, is_transactional, batch.ends)
            )
        return AppendInfo(first, self.end.offset - 1, self.end, batches)

    def roll(self) -> None:
        self.end = LogOffsetMetadata(self.end.offset, self.end.offset, 0)

    def read(self, offset: int, max_bytes: int, end: LogOffsetMetadata, *, min_one_message: bool) -> FetchDataInfo:
        self.reads += 1
        index = next(i for i, batch in enumerate(self.batches) if batch.last >= offset)
        start = self.places[index]
        same = [
            batch.size
            for batch, place in zip(self.batches[index:], self.places[index:], strict=True)
            if place.segment_base_offset == start.segment_base_offset and place.offset < end.offset
        ]
        limit = max(max_bytes, self.batches[index].size) if min_one_message else max_bytes
        size = min(sum(same), limit)
        return FetchDataInfo(start, b"." * size, size, first_entry_incomplete=0 < size < self.batches[index].size)

    def locate(self, offset: int) -> LogOffsetMetadata:
        for batch, place in zip(self.batches, self.places, strict=True):
            if batch.first <= offset <= batch.last:
                return replace(place, offset=offset)
        return self.end if offset == self.end.offset else LogOffsetMetadata(offset)

    def truncate_to(self, offset: int) -> LogOffsetMetadata:
        if not self.batches:
            self.end = LogOffsetMetadata(offset, offset, 0)
        while self.batches and self.batches[-1].last >= offset:
            cut = self.batches.pop()
            self.end = replace(self.places.pop(), offset=cut.first)
        return self.end


@dataclass
class Brokers:
    """The cluster's metadata: who is there, and which partitions exist."""

    epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, 8), 100))
    fenced: set[int] = field(default_factory=set)
    shutting_down: set[int] = field(default_factory=set)
    known: set[TopicPartition] = field(default_factory=lambda: {KEY})

    def is_eligible(self, broker_id: int) -> bool:
        return self.is_alive(broker_id) and broker_id not in self.shutting_down

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self.epochs and broker_id not in self.fenced

    def broker_epoch(self, broker_id: int) -> int | None:
        return self.epochs.get(broker_id)

    def knows(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self.known


def assignment(
    leader: int = 1, epoch: int = 0, partition_epoch: int = 0, replicas: Iterable[int] = (1,), isr: Any = None
) -> PartitionAssignment:
    replicas = tuple(replicas)
    return PartitionAssignment(leader, epoch, partition_epoch, replicas, frozenset(replicas if isr is None else isr))


def new_partition(
    brokers: Brokers | None = None, *, broker_id: int = 1, key: TopicPartition = KEY, **settings: Any
) -> Partition:
    topic_id = settings.pop("topic_id", None)
    log = ReplicaLog(ModelLog(settings.pop("segment_bytes", 1 << 30)))
    return Partition(key, broker_id, log, brokers or Brokers(), PartitionSettings(**settings), topic_id)


class World:
    """Broker 1 and its replica manager. Answers are kept in `answers`, in the order in which they came."""

    def __init__(self, **reading: Any) -> None:
        self.clock = Clock(1_000_000)
        self.brokers = Brokers()
        self.proposals: list[AlterPartition] = []
        self.answers: list[Any] = []
        self.manager = ReplicaManager(
            1,
            Surroundings(
                self.clock,
                lambda: SystemTimer(self.clock),
                self.brokers,
                lambda key, proposal: self.proposals.append(proposal),
                ReadingSettings(**reading),
            ),
        )

    def lead(
        self, replicas: Iterable[int] = (1,), isr: Any = None, key: TopicPartition = KEY, **settings: Any
    ) -> Partition:
        self.brokers.known.add(key)
        partition = new_partition(self.brokers, key=key, **settings)
        self.manager.host(partition)
        self.manager.become(key, assignment(replicas=replicas, isr=isr))
        return partition

    def produce(self, *batches: Batch, acks: int = -1, timeout_ms: int = 1000, key: TopicPartition = KEY) -> None:
        """One request, handled to its end."""
        self.manager.append_records(timeout_ms, acks, {key: batches or (Batch(),)}, self.answers.append)
        self.manager.try_complete_actions()

    def consume(self, offset: int, key: TopicPartition = KEY, *, wanted: Any = None, **params: Any) -> None:
        """A consumer's fetch of one partition."""
        partition = FetchPartition(offset, **(wanted or {}))
        self.manager.fetch_messages(FetchParams(**params), [(key, partition)], self.answers.append)

    def follow(
        self, offset: int, broker_id: int = 2, key: TopicPartition = KEY, *, wanted: Any = None, **params: Any
    ) -> None:
        """A follower's fetch of one partition, which does not wait unless it is told to."""
        params = {"max_wait_ms": 0, "isolation": Isolation.LOG_END, "replica_id": broker_id, **params}
        partition = FetchPartition(offset, **{"log_start_offset": 0, **(wanted or {})})
        self.manager.fetch_messages(FetchParams(**params), [(key, partition)], self.answers.append)

    def pass_time(self, milliseconds: int) -> None:
        self.clock.now_ms += milliseconds
        for purgatory in self.manager.purgatories:
            purgatory.advance_clock(self.clock.now_ms)

    def answer(self) -> Any:
        """The only answer since the last call, of its only partition."""
        [answer] = self.answers
        self.answers.clear()
        [(_, result)] = answer.items() if isinstance(answer, dict) else answer
        return result

    @property
    def parked(self) -> int:
        return sum(purgatory.num_delayed for purgatory in self.manager.purgatories)
