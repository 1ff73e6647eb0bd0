"""Lists of the operations that wait for each key, in shards."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from purgatory.locks import Rank, monitor
from purgatory.operation.delayed_operation import DelayedOperation

Operation = TypeVar("Operation", bound=DelayedOperation)


class Watchers(Generic[Operation]):
    """The operations that wait for one key, in the order in which they came.

    No lock: each step on the dict is atomic, and a walk goes over a copy. What is added during a walk is not seen by
    it, but checks its condition itself after it was added.
    """

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self._operations: dict[Operation, None] = {}

    def __len__(self) -> int:
        return len(self._operations)

    def watch(self, operation: Operation) -> None:
        """Add an operation."""
        self._operations[operation] = None

    def try_complete_watched(self) -> int:
        """Try all, forget those that are completed. The number completed by this call."""
        completed = 0
        for operation in list(self._operations):
            if operation.is_completed():
                self._operations.pop(operation, None)
            elif operation.safe_try_complete():
                self._operations.pop(operation, None)
                completed += 1
        return completed

    def cancel(self) -> list[Operation]:
        """Take all off the timer and forget them. They are not completed."""
        cancelled = list(self._operations)
        for operation in cancelled:
            operation.cancel()
            self._operations.pop(operation, None)
        return cancelled

    def purge_completed(self) -> int:
        """Forget what others have completed. How many that were."""
        completed = [operation for operation in list(self._operations) if operation.is_completed()]
        for operation in completed:
            self._operations.pop(operation, None)
        return len(completed)


class WatcherList(Generic[Operation]):
    """One shard: the keys whose hash falls here, under one lock. Adding is done under it too, so that nothing can be
    added to watchers that were just removed."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Watchers[Operation]] = {}
        self._lock = monitor(Rank.SHARD)

    def watch(self, operation: Operation, key: Hashable) -> None:
        """Add an operation under a key."""
        with self._lock:
            watchers = self._by_key.get(key)
            if watchers is None:
                watchers = self._by_key[key] = Watchers(key)
            watchers.watch(operation)

    def find(self, key: Hashable) -> Watchers[Operation] | None:
        """The watchers of a key."""
        with self._lock:
            return self._by_key.get(key)

    def all_watchers(self) -> list[Watchers[Operation]]:
        """The watchers of all keys."""
        with self._lock:
            return list(self._by_key.values())

    def cancel_for_key(self, key: Hashable) -> list[Operation]:
        """Forget a key, and take its operations off the timer."""
        with self._lock:
            watchers = self._by_key.pop(key, None)
            return [] if watchers is None else watchers.cancel()

    def remove_key_if_empty(self, watchers: Watchers[Operation]) -> None:
        """Forget the key, unless it has other watchers by now or these are not empty any more."""
        with self._lock:
            if self._by_key.get(watchers.key) is watchers and not len(watchers):
                del self._by_key[watchers.key]
