"""The internal topics' partitions as coordinators write and read them.

An append is made in a turn of its own, and answered in a later one, when all in-sync replicas have it. So whoever
appends may hold locks, and what it does next may append again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from broker.log.file import FileRegion, Part
from broker.log.log import CoordinatorRecords
from broker.records.record_batch import BatchHeader, Buffer, whole_batches
from purgatory.delayed.delayed_produce import ProduceResult
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager.replica_manager import ReplicaManager

GROUPS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
APPEND_TIMEOUT_MS: Final = 5000
LOAD_BYTES: Final = 5 << 20


class Appended(NamedTuple):
    """How an append has ended. The base offset is -1 if nothing is in the log."""

    error: Errors
    base_offset: int = -1


class CoordinatorLog(Protocol):
    """The broker's logs as coordinators need them."""

    def append(self, key: TopicPartition, batch: Buffer, then: Callable[[Appended], None]) -> None:
        """Append, and call `then` once all in-sync replicas have it, or it has failed: always later, never now."""

    def batches(self, key: TopicPartition) -> Iterator[tuple[BatchHeader, bytes]]:
        """All batches that this broker has of the partition. ApiError if it has none of it."""


class ReplicatedCoordinatorLog:
    """Through the replica manager. `post` runs a function in a later turn of the event loop, in order."""

    def __init__(self, manager: ReplicaManager, post: Callable[[Callable[[], None]], object]) -> None:
        self._manager = manager
        self._post = post
        self._is_stopped = False

    def stop(self) -> None:
        """Append nothing any more: the logs are about to be closed. Nobody is told of what was on its way."""
        self._is_stopped = True

    def append(self, key: TopicPartition, batch: Buffer, then: Callable[[Appended], None]) -> None:
        """As `CoordinatorLog.append`."""

        def answered(results: Mapping[TopicPartition, ProduceResult]) -> None:
            result = results[key]
            self._post(lambda: then(Appended(result.error, result.base_offset)))

        def append_now() -> None:
            if self._is_stopped:
                return
            self._manager.append_records(APPEND_TIMEOUT_MS, -1, {key: CoordinatorRecords(batch)}, answered)
            self._manager.try_complete_actions()

        self._post(append_now)

    def batches(self, key: TopicPartition) -> Iterator[tuple[BatchHeader, bytes]]:
        """As `CoordinatorLog.batches`."""
        log = self._manager.partition(key).log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            found = log.storage.read(offset, LOAD_BYTES, log.log_end, min_one_message=True)
            region: Part = found.records
            data = region.read() if isinstance(region, FileRegion) else region
            is_read = False
            for header, position in whole_batches(data):
                yield header, data[position : position + header.size]
                offset = header.last_offset + 1
                is_read = True
            if not is_read:
                return


def java_hash(text: str) -> int:
    """Java's `String.hashCode`, which spreads groups and transactions over partitions."""
    units = text.encode("utf-16-be", "surrogatepass")
    number = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFFFFFF
    return number - (1 << 32) if number & 0x80000000 else number


def partition_of(name: str, partitions: int) -> int:
    """The partition of an internal topic that a group or transactional id belongs to."""
    number = java_hash(name)
    return (0 if number == -(1 << 31) else abs(number)) % partitions


class Ownership:
    """Partitions of an internal topic that this broker leads, and those of them that it still reads."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        self.count = partitions
        self.owned: dict[int, int] = {}  # partition -> leader epoch
        self.loading: set[int] = set()
        self.is_active = True

    def partition_for(self, name: str) -> TopicPartition:
        """Where what has this name is kept."""
        return TopicPartition(self.topic, partition_of(name, self.count))

    def check(self, name: str) -> None:
        """COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR unless it is all here."""
        partition = self.partition_for(name).partition
        if not self.is_active:
            raise ApiError(Errors.COORDINATOR_NOT_AVAILABLE, "this coordinator has stopped")
        if partition in self.loading:
            raise ApiError(Errors.COORDINATOR_LOAD_IN_PROGRESS, "its state is still being read")
        if partition not in self.owned:
            raise ApiError(Errors.NOT_COORDINATOR, "another broker has it")
