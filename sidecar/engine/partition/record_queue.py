"""Records that no wheel has: they wait for what the cluster knows of their targets, or came back. What they take counts
against the wheel's limits.
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.header_codec import header_bytes
from sidecar.model.record import AwaitingTarget, Diverted, Held

PendingRecord = Held | Diverted | AwaitingTarget
K = TypeVar("K", bound=Hashable)


class RecordQueue:
    """A queue of them that knows its size in bytes."""

    __slots__ = ("_held", "_queue", "bytes")

    def __init__(self, items: Iterable[tuple[SourcePartition, PendingRecord]] = ()) -> None:
        self._queue: deque[tuple[SourcePartition, PendingRecord]] = deque()
        self._held = 0
        self.bytes = 0
        for lane, parcel in items:
            self.append(lane, parcel)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[tuple[SourcePartition, PendingRecord]]:
        return iter(self._queue)

    @property
    def first(self) -> tuple[SourcePartition, PendingRecord]:
        """The next one. Raises IndexError when there is none."""
        return self._queue[0]

    def append(self, lane: SourcePartition, parcel: PendingRecord) -> None:
        """Append a record."""
        self._queue.append((lane, parcel))
        self._held += isinstance(parcel, Held)
        self.bytes += size_of(parcel)

    def take_all(self, others: "RecordQueue") -> None:
        """All of another queue, at the end. That one is of no use afterwards."""
        self._queue.extend(others._queue)
        self._held += others._held
        self.bytes += others.bytes

    def take_run(self, most: int) -> tuple[SourcePartition, list[Held]]:
        """Take the next ones that were held in one lane, at most so many: none, if the next one wasn't held. Raises
        IndexError when there is none.
        """
        lane, records = self._queue[0][0], list[Held]()
        while self._queue and len(records) < most and self._queue[0][0] is lane:
            parcel = self._queue[0][1]
            if not isinstance(parcel, Held):
                break
            records.append(parcel)
            self._queue.popleft()
            self.bytes -= parcel.size
        self._held -= len(records)
        return lane, records

    def put_back(self, lane: SourcePartition, records: Sequence[Held]) -> None:
        """Put records back before all others."""
        self._queue.extendleft((lane, held) for held in reversed(records))
        self._held += len(records)
        self.bytes += sum(held.size for held in records)

    def popleft(self) -> tuple[SourcePartition, PendingRecord]:
        """Take the next one. Raises IndexError when there is none."""
        item = self._queue.popleft()
        self._held -= isinstance(item[1], Held)
        self.bytes -= size_of(item[1])
        return item

    def oldest_due_ms(self) -> int:
        """Due time of the first record that was held: most come in this order. -1 when there is none."""
        if not self._held:
            return -1
        return next(parcel.due_ms for _, parcel in self._queue if isinstance(parcel, Held))

    def without(self, lanes: set[SourcePartition]) -> "RecordQueue":
        """A new queue without the records of these lanes."""
        return RecordQueue(item for item in self._queue if item[0] not in lanes)


class KeyedQueues(Generic[K]):
    """A queue for each of those they are to go to, none of them empty."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[K, RecordQueue] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __contains__(self, name: K) -> bool:
        return name in self._queues

    @property
    def names(self) -> Collection[K]:
        """Names that have a queue, the one that is next first."""
        return self._queues.keys()

    def append(self, name: K, lane: SourcePartition, parcel: PendingRecord) -> None:
        """Append a record to the queue of this name."""
        self._queues.setdefault(name, RecordQueue()).append(lane, parcel)

    def first(self, name: K) -> tuple[SourcePartition, PendingRecord]:
        """The next one of a queue. Raises KeyError when there is none."""
        return self._queues[name].first

    def pop(self, name: K) -> RecordQueue:
        """All of one queue, out of here."""
        return self._queues.pop(name, None) or RecordQueue()

    def put_back(self, name: K, queue: RecordQueue) -> None:
        """Put records back before those that came for the same name meanwhile. The other queues are next."""
        queue.take_all(self.pop(name))
        if queue:
            self._queues[name] = queue

    def drop(self, lanes: set[SourcePartition]) -> None:
        """Forget what belongs to these lanes."""
        queues = {name: queue.without(lanes) for name, queue in self._queues.items()}
        self._queues = {name: queue for name, queue in queues.items() if queue}

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(queue.bytes for queue in self._queues.values())

    def oldest_due_ms(self) -> int:
        """Due time of the record that was held and has waited longest, -1 when there is none."""
        return earliest(queue.oldest_due_ms() for queue in self._queues.values())


def topic_of(parcel: PendingRecord) -> str:
    """Where a record is to go."""
    if isinstance(parcel, Diverted):
        return parcel.topic
    return (parcel.held if isinstance(parcel, AwaitingTarget) else parcel).target


def is_early(parcel: PendingRecord, now_ms: int) -> bool:
    """True for a held record that isn't due: it fired before the clock was set back. Departures leave at once."""
    return isinstance(parcel, Held) and parcel.due_ms > now_ms


def earliest(dues_ms: Iterable[int]) -> int:
    """The earliest of these times, -1 where there is none; those that are -1 don't count."""
    return min((due_ms for due_ms in dues_ms if due_ms >= 0), default=-1)


def size_of(parcel: PendingRecord) -> int:
    """Bytes of key, value and headers."""
    if isinstance(parcel, Diverted):
        return len(parcel.key or b"") + len(parcel.value or b"") + header_bytes(parcel.headers)
    return (parcel.held if isinstance(parcel, AwaitingTarget) else parcel).size
