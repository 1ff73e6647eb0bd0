"""Views of what the engine holds, for readers in other threads: references taken within a fraction of a millisecond.

The engine's thread copies a lane's table of buckets, not the records: held records never change, and a bucket is only
ever added to or given up whole. Looking at the records is the reader's work, in the reader's time.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sidecar.engine.assignment import Assignment
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.intake.control_records import Actions
from sidecar.engine.partition.partition import Lane
from sidecar.model.record import Held, LaneId, Position

BUCKETS_MAX: Final = 20_000  # copied in one turn of the engine, about; 0.1 ms


class LaneView(NamedTuple):
    """One lane at one moment. What the overflow has up to `cursor` is in the wheel, too, or settled."""

    lane: LaneId
    cursor: Position
    tick_ms: int
    buckets: dict[int, list[Held]]
    cancelled: frozenset[int]
    due: Sequence[tuple[Sequence[Held], int]]  # fired and not handed over: from this index on
    on_the_way: list[Held]  # to the overflow
    skip: dict[int, Position]  # the overflow may have a copy behind the cursor that doesn't count
    leaving: list[Held]  # with an id: handed over, and not settled
    whole: bool  # False: the overflow is being rebuilt, or what was read before a crash isn't read again yet
    next: int  # what is held was read below this offset; from it on something isn't read, or waits to be held
    acknowledged: int  # the last change block that the overflow has: with fewer it lost something, noticed or not

    def loose(self) -> Iterator[Held]:
        """Records that are due, in no order."""
        for records, start in self.due:
            yield from records[start:]

    def in_wheel(self, from_ms: int = -1) -> Iterator[list[Held]]:
        """Buckets with what is due then or later, in the order of their ticks; overdue records are all in the first."""
        cancelled = self.cancelled
        for tick in sorted(tick for tick in self.buckets if tick * self.tick_ms >= from_ms):
            bucket = self.buckets[tick]
            yield [held for held in bucket if held.offset not in cancelled] if cancelled else list(bucket)


class Viewer:
    """Takes views. For the engine's thread, by mail."""

    def __init__(self, assignment: Assignment, emitter: Emitter, actions: Actions) -> None:
        self._assignment = assignment
        self._emitter = emitter
        self._actions = actions

    def has(self, lane_id: LaneId) -> bool:
        """Whether this process has the partition."""
        return lane_id in self._assignment.lanes

    def look(self, after: LaneId | None) -> tuple[list[LaneView], bool]:
        """Views of the lanes behind this one, as many as a turn has time for, and whether those are all."""
        lanes = self._assignment.lanes
        views: list[LaneView] = []
        buckets = 0
        for lane_id in sorted(lane_id for lane_id in lanes if after is None or lane_id > after):
            if buckets >= BUCKETS_MAX:
                return views, False
            lane = lanes[lane_id]
            buckets += len(lane.wheel.buckets) + 1
            views.append(self._view(lane))
        return views, True

    def _view(self, lane: Lane) -> LaneView:
        buckets, cancelled = lane.wheel.copy()
        on_the_way = list(lane.puts)
        for change in lane.changes:
            on_the_way += change.records.values()
        return LaneView(
            lane=lane.id,
            cursor=lane.promotion.cursor,
            tick_ms=lane.wheel.tick_ms,
            buckets=buckets,
            cancelled=cancelled,
            due=self._emitter.due_of(lane),
            on_the_way=[held for held in on_the_way if held.offset not in lane.promotion.skip],
            skip=dict(lane.promotion.skip),
            leaving=list(lane.ids.leaving.values()),
            whole=lane.loss is None and lane.offsets.next >= lane.recovered_until,
            next=self._held_until(lane),
            acknowledged=lane.acknowledged,
        )

    def _held_until(self, lane: Lane) -> int:
        waiting = self._actions.first_waiting(lane)
        if lane.order is not None and lane.order.queue:
            first = lane.order.queue[0].offset
            waiting = first if waiting is None else min(first, waiting)
        return lane.offsets.next if waiting is None else waiting
