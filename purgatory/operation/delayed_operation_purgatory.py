"""Where operations wait: under the keys whose events may complete them, and on a timer.

An operation is watched under each of its keys. An event calls `check_and_complete(key)`. A completed operation leaves
the timer at once, but the lists of its other keys only when they are walked next, or in a purge.

Call `check_and_complete` with no lock held that an operation's check may want: A, which holds the operation's lock and
wants the state's, and B, which holds the state's and wants the operation's, would wait for each other for ever.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic

from purgatory.locks import AtomicInteger
from purgatory.operation.watchers import Operation, WatcherList, Watchers
from purgatory.timer.timer import DrivenTimer
from purgatory.versions import LATEST, KafkaVersion

SHARDS = 512
PURGE_INTERVAL = 1000


class DelayedOperationPurgatory(Generic[Operation]):
    """Holds operations until they complete or expire.

    Has no thread: a driver calls `advance_clock`. Completed operations are purged when more than `purge_interval` of
    them are estimated to be watched still. `timer_enabled=False`: nothing expires (Kafka's tests use it).
    """

    def __init__(
        self,
        name: str,
        timer: DrivenTimer,
        purge_interval: int = PURGE_INTERVAL,
        *,
        timer_enabled: bool = True,
        version: KafkaVersion = LATEST,
    ) -> None:
        self.name = name
        self.purge_interval = purge_interval
        self._timer = timer
        self._timer_enabled = timer_enabled
        self._stops_watching_when_completed = version.stops_watching_when_completed
        self._watcher_lists: list[WatcherList[Operation]] = [WatcherList() for _ in range(SHARDS)]
        self._estimated_total_operations = AtomicInteger()

    def try_complete_else_watch(self, operation: Operation, watch_keys: Sequence[Hashable]) -> bool:
        """Complete the operation now if its condition holds (True), otherwise keep it under all these keys.

        False also when another thread has completed it meanwhile. The condition is checked again once it is watched
        under all keys, since an event between the first check and that would be seen by nobody; all of this under the
        operation's lock, which a thread in `check_and_complete` would otherwise hold while it waits for state that
        the caller has locked.
        """
        if not watch_keys:
            raise ValueError("an operation without keys could complete by timeout only")
        if operation.safe_try_complete_or_else(lambda: self._watch(operation, watch_keys)):
            return True
        if not operation.is_completed():
            if self._timer_enabled:
                self._timer.add(operation)
            if operation.is_completed():  # and cancelled, perhaps before it had an entry to be removed
                operation.cancel()
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Something happened to this key: try what waits for it. The number of operations completed by this call."""
        shard = self._shard(key)
        watchers = shard.find(key)
        if watchers is None:
            return 0
        completed = watchers.try_complete_watched()
        if not len(watchers):
            shard.remove_key_if_empty(watchers)
        return completed

    def cancel_for_key(self, key: Hashable) -> list[Operation]:
        """Take the operations of a key off the timer and out of its list. They are returned, not completed."""
        return self._shard(key).cancel_for_key(key)

    @property
    def watched(self) -> int:
        """Number of entries in the lists of all keys, completed operations that nobody met since included."""
        return sum(len(watchers) for shard in self._watcher_lists for watchers in shard.all_watchers())

    @property
    def num_delayed(self) -> int:
        """Number of operations on the timer."""
        return self._timer.size()

    def advance_clock(self, now_ms: float) -> bool:
        """Expire what is due, then purge if it is time. True if a bucket of the timer was flushed."""
        flushed = self._timer.advance_clock(now_ms)
        # Every operation is counted once when it is watched and never counted off; what is not on the timer any
        # more has completed, and may still be in lists.
        if self._estimated_total_operations.value - self.num_delayed > self.purge_interval:
            self._estimated_total_operations.set(self.num_delayed)
            self._purge_completed()
        return flushed

    def next_expiration_ms(self) -> float | None:
        """When the timer wants to be brought forward."""
        return self._timer.next_expiration_ms()

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when that becomes earlier."""
        self._timer.listen(wake)

    def shutdown(self) -> None:
        """Expire nothing any more. What waits is neither completed nor failed."""
        self._timer.close()

    def _watch(self, operation: Operation, watch_keys: Sequence[Hashable]) -> None:
        for key in watch_keys:
            if not (self._stops_watching_when_completed and operation.is_completed()):
                self._shard(key).watch(operation, key)
        self._estimated_total_operations.add(1)

    def _purge_completed(self) -> None:
        for shard, watchers in self._all_watchers():
            watchers.purge_completed()
            if not len(watchers):
                shard.remove_key_if_empty(watchers)

    def _all_watchers(self) -> Iterator[tuple[WatcherList[Operation], Watchers[Operation]]]:
        for shard in self._watcher_lists:
            for watchers in shard.all_watchers():
                yield shard, watchers

    def _shard(self, key: Hashable) -> WatcherList[Operation]:
        return self._watcher_lists[hash(key) % SHARDS]
