"""The acquisition lock of share groups: records given to a consumer come back if it does not acknowledge in time.

A batch is acquired as a whole and has one timer. When part of it is acknowledged it splits into offsets, each with a
timer for the *remaining* time; the batch's own is cancelled.
"""

from collections.abc import Callable
from enum import Enum

from purgatory.timer import Timer, TimerTask


class RecordState(Enum):
    """Where a record of a share group stands."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    ACKNOWLEDGED = "acknowledged"
    ARCHIVED = "archived"


def decide_lock_timeout(
    state: RecordState, delivery_count: int, delivery_count_max: int, *, is_below_start: bool
) -> RecordState:
    """State of a record after its lock has expired: it is delivered again, unless it has been too often, or the group
    has moved past it. One that is not acquired any more stays as it is."""
    if state is not RecordState.ACQUIRED:
        return state
    if is_below_start or delivery_count >= delivery_count_max:
        return RecordState.ARCHIVED
    return RecordState.AVAILABLE


class AcquisitionLockTimerTask(TimerTask):
    """Runs when the lock on these offsets expires. `expiration_ms` is kept, for the time that remains at a split."""

    def __init__(self, delay_ms: int, now_ms: float, expire: Callable[[], None]) -> None:
        super().__init__(delay_ms)
        self.expiration_ms = now_ms + delay_ms
        self._expire = expire

    def run(self) -> None:
        """The consumer has not acknowledged in time."""
        self._expire()


class InFlightBatch:
    """A batch of offsets that were acquired together. One thread only, or under the share partition's lock.

    `on_available` is called when something can be acquired again.
    """

    def __init__(
        self,
        offsets: range,
        timer: Timer,
        clock: Callable[[], float],
        delivery_count_max: int,
        on_available: Callable[[], None],
    ) -> None:
        self.offsets = offsets
        self.start_offset = offsets.start  # of the share partition: what is below is archived
        self._timer = timer
        self._clock = clock
        self._delivery_count_max = delivery_count_max
        self._on_available = on_available
        self._states = dict.fromkeys(offsets, RecordState.AVAILABLE)
        self._delivery_counts = dict.fromkeys(offsets, 0)
        self._task: AcquisitionLockTimerTask | None = None
        self._offset_tasks: dict[int, AcquisitionLockTimerTask] = {}

    def state(self, offset: int) -> RecordState:
        """Of one record."""
        return self._states[offset]

    def acquire(self, lock_duration_ms: int) -> list[int]:
        """Give all that is available to a consumer, for this time. Their offsets."""
        acquired = [offset for offset, state in self._states.items() if state is RecordState.AVAILABLE]
        for offset in acquired:
            self._states[offset] = RecordState.ACQUIRED
            self._delivery_counts[offset] += 1
        if len(acquired) == len(self.offsets):
            self._task = self._arm(lock_duration_ms, acquired)
        else:
            for offset in acquired:
                self._offset_tasks[offset] = self._arm(lock_duration_ms, [offset])
        return acquired

    def acknowledge(self, offset: int, state: RecordState) -> None:
        """The consumer is done with this record: acknowledged, archived (rejected), or available (released)."""
        self._split()
        task = self._offset_tasks.pop(offset, None)
        if task is None:
            raise ValueError(f"offset {offset} is not acquired")
        task.cancel()
        self._states[offset] = state
        if state is RecordState.AVAILABLE:
            self._on_available()

    def _split(self) -> None:
        if self._task is None:
            return
        task, self._task = self._task, None
        task.cancel()
        remaining_ms = max(int(task.expiration_ms - self._clock()), 0)
        for offset, state in self._states.items():
            if state is RecordState.ACQUIRED:
                self._offset_tasks[offset] = self._arm(remaining_ms, [offset])

    def _arm(self, delay_ms: int, offsets: list[int]) -> AcquisitionLockTimerTask:
        task = AcquisitionLockTimerTask(delay_ms, self._clock(), lambda: self._expire(offsets))
        self._timer.add(task)
        return task

    def _expire(self, offsets: list[int]) -> None:
        self._task = None
        for offset in offsets:
            self._offset_tasks.pop(offset, None)
            self._states[offset] = decide_lock_timeout(
                self._states[offset],
                self._delivery_counts[offset],
                self._delivery_count_max,
                is_below_start=offset < self.start_offset,
            )
        if any(self._states[offset] is RecordState.AVAILABLE for offset in offsets):
            self._on_available()
