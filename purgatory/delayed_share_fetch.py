"""A share group's fetch: it waits until records can be acquired, then acquires and reads them.

While a request checks a partition it holds that partition's fetch lock, so that no other request acquires in between.
Locks are given back in any case, and then the group's other requests get their turn: through the action queue, since
completing them right here could come back here.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from purgatory.delayed_operation import DelayedOperation


class DelayedShareFetchGroupKey(NamedTuple):
    """A group's interest in a partition."""

    group_id: str
    topic_id: str
    partition: int


class DelayedShareFetchPartitionKey(NamedTuple):
    """Anybody's interest in a partition."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    """A partition, whose fetch lock is held, as a waiting share fetch sees it."""

    can_acquire: bool
    readable_bytes: int = 0


class SharePartition(Protocol):
    """A partition as a share group knows it. `fetch_id` says who holds the fetch lock."""

    def maybe_acquire_fetch_lock(self, fetch_id: object) -> bool:
        """Take the fetch lock, if nobody else has it."""

    def release_fetch_lock(self, fetch_id: object) -> None:
        """Give it back."""

    def look(self) -> ShareSnapshot:
        """The partition's state."""


def decide_share_fetch(min_bytes: int, partitions: Sequence[ShareSnapshot]) -> bool:
    """Whether something can be acquired, and enough of it."""
    acquirable = [partition.readable_bytes for partition in partitions if partition.can_acquire]
    return bool(acquirable) and sum(acquirable) >= min_bytes


class DelayedShareFetch(DelayedOperation):
    """`respond(records)` answers with what `read(keys)` gives; with nothing to acquire it is not called.

    `check_later(keys)` queues an action that checks these group keys again. It always completes under its lock: up to
    4.0 a check that loses to the timeout could give back the locks of the answer that is being read.
    """

    def __init__(
        self,
        max_wait_ms: int,
        partitions: Mapping[DelayedShareFetchGroupKey, SharePartition],
        read: Callable[[Sequence[DelayedShareFetchGroupKey]], Mapping[Hashable, Any]],
        respond: Callable[[Mapping[Hashable, Any]], None],
        check_later: Callable[[Sequence[DelayedShareFetchGroupKey]], None],
        *,
        min_bytes: int = 0,
    ) -> None:
        super().__init__(max_wait_ms)
        self._partitions = partitions
        self._read = read
        self._respond = respond
        self._check_later = check_later
        self._min_bytes = min_bytes
        self._acquired: list[DelayedShareFetchGroupKey] = []

    def try_complete(self) -> bool:
        """Lock what can be locked; keep the locks only if that is enough."""
        self._acquire()
        snapshots = [self._partitions[key].look() for key in self._acquired]
        if decide_share_fetch(self._min_bytes, snapshots):
            completed = self.force_complete()
            if not completed:  # another thread answered meanwhile, with its own locks
                self._release()
            return completed
        self._release()
        return False

    def on_complete(self) -> None:
        """Read what is locked, or, after the timeout, what can be locked now."""
        if not self._acquired:
            self._acquire()
        try:
            self._respond(self._read(tuple(self._acquired)) if self._acquired else {})
        finally:
            locked = tuple(self._acquired)
            self._release()
            if locked:
                self._check_later(locked)

    def on_expiration(self) -> None:
        """The answer is what could be acquired, perhaps nothing."""

    def _acquire(self) -> None:
        for key, partition in self._partitions.items():
            if partition.maybe_acquire_fetch_lock(self):
                if partition.look().can_acquire:
                    self._acquired.append(key)
                else:
                    partition.release_fetch_lock(self)

    def _release(self) -> None:
        for key in self._acquired:
            self._partitions[key].release_fetch_lock(self)
        self._acquired.clear()
