"""Looking held records up in this process: wheel and overflow of its lanes as one ordered stream.

Runs in a thread of its own. Redis is read by this thread itself (`redis.py`). The engine gives references to what is
in its wheels (`Viewer`), within a fraction of a millisecond: its thread copies a lane's table of buckets, not the
records. Held records never change, and a bucket is only ever added to or given up whole. Looking at the records is the
reader's work, in the reader's time. The interpreter's lock is let go every few milliseconds, so that the engine isn't
late because somebody looks.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from heapq import merge
from operator import itemgetter
from typing import Any, Final, NamedTuple

from policies.headers import OFFSET_MAX
from sidecar.engine.assignment import Assignment
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.engine import Engine
from sidecar.engine.intake.control_records import Actions
from sidecar.engine.partition.partition import SourcePartition
from sidecar.lookup.query import ALL, OVERFLOW, START, WHEEL, Answer, Key, Query, after_in, key_of, key_of_row, row_of
from sidecar.lookup.redis import HeldOverflow
from sidecar.model.record import Held, Position, TopicPartition, held_id, place_of
from sidecar.overflow.connection import Client
from sidecar.overflow.keys import FINE
from sidecar.overflow.signing import UNSIGNED, Signing

BUCKETS_MAX: Final = 20_000  # copied in one turn of the engine, about; 0.1 ms
BUCKETS_OF_A_VIEW: Final = 40  # what a view of an empty lane costs, in buckets
PASSED_OVER_SHARE: Final = 4  # how much less it costs to pass a record over than to put it in order with others
LOOKED_AT_MAX: Final = 8_000  # records for one page: then it ends, with fewer rows or none
ANSWER_S: Final = 5.0
KEPT_TIMES: Final = 100  # so a look that is asked for again and again takes a hundredth of a thread's time
WORK_S: Final = 0.002
REST_S: Final = 0.0003

Item = tuple[Key, Held | None, str]  # a place in the order, the record there if there is one, its tier
_key: Final = itemgetter(0)


class LaneView(NamedTuple):
    """One lane at one moment. What the overflow has up to `cursor` is in the wheel, too, or settled."""

    lane: TopicPartition
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

    @property
    def is_in_redis(self) -> bool:
        """Whether the overflow has, or ever had, anything of the lane: else nobody needs to ask there."""
        return self.acknowledged > 0

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

    def has(self, lane_id: TopicPartition) -> bool:
        """Whether this process has the partition."""
        return lane_id in self._assignment.lanes

    def look(self, after: TopicPartition | None, holding: bool = False) -> tuple[list[LaneView], bool]:
        """Views of the lanes behind this one, as many as a turn has time for, and whether those are all. `holding`:
        only of those that hold something.
        """
        lanes = self._assignment.lanes
        views: list[LaneView] = []
        buckets = 0
        for lane_id in sorted(lane_id for lane_id in lanes if after is None or lane_id > after):
            if buckets >= BUCKETS_MAX:
                return views, False
            lane = lanes[lane_id]
            if holding and not lane.held_now():
                continue
            buckets += len(lane.wheel.buckets) + BUCKETS_OF_A_VIEW
            views.append(self._view(lane))
        return views, True

    def _view(self, lane: SourcePartition) -> LaneView:
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

    def _held_until(self, lane: SourcePartition) -> int:
        waiting = self._actions.first_waiting(lane)
        if lane.order is not None and lane.order.queue:
            first = lane.order.queue[0].offset
            waiting = first if waiting is None else min(first, waiting)
        return lane.offsets.next if waiting is None else waiting


class GilYield:
    """Lets other threads go on: whoever works on in Python keeps the interpreter's lock for 5 ms at a time."""

    def __init__(self) -> None:
        self._rested_s = time.perf_counter()

    def rest(self) -> None:
        """Sleep for a moment if it was a while ago that this was done."""
        if time.perf_counter() - self._rested_s > WORK_S:
            time.sleep(REST_S)
            self._rested_s = time.perf_counter()


class Seldom:
    """A look for the next of some times, -1 for none. It costs more the more there is, so what it finds is kept: for
    many times as long as it took, or until that time has come.
    """

    def __init__(self, look: Callable[[], int], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock_s = clock_s
        self._answer = -1
        self._comes_ms = math.inf  # the answer, where it was still to come
        self._again_s = -math.inf

    def __call__(self, now_ms: int) -> int:
        """The next time, perhaps as it was a while ago."""
        began_s = self._clock_s()
        if began_s >= self._again_s or now_ms >= self._comes_ms:
            self._answer = self._look()
            self._comes_ms = self._answer if self._answer > now_ms else math.inf
            ended_s = self._clock_s()
            self._again_s = ended_s + KEPT_TIMES * (ended_s - began_s)
        return self._answer


class LocalLookUp:
    """The lanes of this process. `submit` sends the engine mail. For one thread at a time.

    Everything raises OverflowUnavailable or OverflowLoss when Redis doesn't answer, queue.Full, EngineError or
    TimeoutError when the engine doesn't.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[Engine], Any]], "Future[Any]"],
        viewer: Viewer,
        redis: Client,
        group: str,
        signing: Signing = UNSIGNED,
    ) -> None:
        self._submit = submit
        self._viewer = viewer
        self._breather = GilYield()
        self._overflow = partial(HeldOverflow, redis, group, self._breather.rest, signing)

    def views(self, holding: bool = False) -> list[LaneView]:
        """Of all lanes that are whole, or of those that hold something. The engine is asked for few at a time."""
        views: list[LaneView] = []
        complete = False
        while not complete:
            look = partial(self._viewer.look, views[-1].lane if views else None, holding)
            fresh, complete = self._submit(lambda _, look=look: look()).result(ANSWER_S)  # type: ignore[misc]
            views += fresh
        return [view for view in views if view.whole]

    def page(self, query: Query, after: Key, limit: int) -> Answer:
        """The first `limit` records behind `after` that are meant."""
        return self._page([view for view in self.views() if query.wants_lane(view.lane)], query, after, limit)

    def _page(self, views: Sequence[LaneView], query: Query, after: Key, limit: int) -> Answer:
        overflow = self._overflow()
        rows: list[dict[str, Any]] = []
        last = after
        stream = merge(*(self._stream(view, query, after, overflow) for view in views), key=_key)
        for looked_at, (key, held, tier) in enumerate(stream, 1):
            if key.due_ms >= query.due_to_ms:
                break
            if held is not None and key != last and query.matches(held):
                rows.append(row_of(TopicPartition(key.topic, key.partition), held, tier))
            last = key
            self._breather.rest()
            tired = looked_at + overflow.passed_over // PASSED_OVER_SHARE >= LOOKED_AT_MAX
            if len(rows) == limit or (tired and key > after):  # the next page begins further on, in any case
                return _answer(views, rows, reach=last)
        return _answer(views, rows)

    def next_due_ms(self) -> int:
        """Epoch ms at which the next of all records is due; -1 when nothing is held."""
        after: Key | None = START
        while after is not None:
            answer = self._page(self.views(holding=True), ALL, after, 1)
            if answer.rows:
                return key_of_row(answer.rows[0]).due_ms
            after = answer.reach
        return -1

    def find(self, id: str, query: Query) -> Answer:
        """Records with this id that are meant: all in memory, and the latest in the overflow of each lane."""
        views = [view for view in self.views() if query.wants_lane(view.lane)]
        overflow = self._overflow()
        rows: list[dict[str, Any]] = []
        for view in views:
            found = {held.offset: (held, WHEEL) for held in view.leaving if held_id(held) == id}
            found |= {held.offset: (held, tier) for held, tier in self._all_in_memory(view) if held_id(held) == id}
            held = overflow.find(view.lane, id, view.acknowledged) if view.is_in_redis else None
            if held is not None and held.position > view.cursor and held.offset not in view.skip:
                found.setdefault(held.offset, (held, OVERFLOW))
            rows += [row_of(view.lane, held, tier) for held, tier in found.values() if query.matches(held)]
        return _answer(views, rows)

    def forecast(self, query: Query, until_ms: int) -> Answer:
        """How many records are due in each minute up to `until_ms`; all later ones by -1. Only whole topics or
        partitions can be asked for.
        """
        views = [view for view in self.views() if query.wants_lane(view.lane)]
        near, far = self.due(views, until_ms)
        return _answer(views, [], minutes=dict(near + far))

    def due(self, views: Sequence[LaneView], until_ms: int) -> tuple[Counter[int], Counter[int]]:
        """As `forecast` of these partitions: records in memory, and those in the overflow alone."""
        overflow = self._overflow()
        near, far = Counter[int](), Counter[int]()
        for view in views:
            if view.is_in_redis:
                far.update(overflow.minutes(view.lane, view.cursor, until_ms, view.skip, view.acknowledged))
            for held, _ in self._all_in_memory(view):
                near[held.due_ms // FINE.slot_ms if held.due_ms < until_ms else -1] += 1
        return near, far

    def ends(self, query: Query) -> Answer:
        """Of each lane, the offset to be read next: what is held now lies before it."""
        views = [view for view in self.views() if query.wants_lane(view.lane)]
        rows: list[dict[str, Any]] = [{**view.lane._asdict(), "offset": view.next} for view in views]
        return _answer(views, rows)

    # --- streams --------------------------------------------------------------------------------------------------

    def _stream(self, view: LaneView, query: Query, after: Key, overflow: HeldOverflow) -> Iterator[Item]:
        """The lane's records behind `after` and not due before the query's range, in order."""
        start = max(after_in(view.lane, after), Position(query.due_from_ms - 1, OFFSET_MAX))
        return merge(
            self._in_memory(view, start), self._in_redis(view, max(start, view.cursor), query, overflow),
            key=_key,
        )  # fmt: skip

    def _in_memory(self, view: LaneView, start: Position) -> Iterator[Item]:
        lane = view.lane

        def ordered(records: Sequence[Held], tier: str) -> list[Item]:
            behind = sorted((held for held in records if held.position > start), key=place_of)
            return [(key_of(lane, held.position), held, tier) for held in behind]

        def buckets() -> Iterator[Item]:
            for bucket in view.in_wheel(start.due_ms):
                self._breather.rest()
                yield from ordered(bucket, WHEEL)

        return merge(ordered(list(view.loose()), WHEEL), ordered(view.on_the_way, OVERFLOW), buckets(), key=_key)

    def _in_redis(self, view: LaneView, start: Position, query: Query, overflow: HeldOverflow) -> Iterator[Item]:
        if not view.is_in_redis:
            return
        for position, held in overflow.stream(view.lane, start, query, view.acknowledged):
            if held is None or held.offset not in view.skip:
                yield key_of(view.lane, position), held, OVERFLOW

    def _all_in_memory(self, view: LaneView) -> Iterator[tuple[Held, str]]:
        for held in view.loose():
            yield held, WHEEL
        for bucket in view.in_wheel():
            self._breather.rest()
            for held in bucket:
                yield held, WHEEL
        for held in view.on_the_way:
            yield held, OVERFLOW


def _answer(
    views: Sequence[LaneView],
    rows: list[dict[str, Any]],
    reach: Key | None = None,
    minutes: dict[int, int] | None = None,
) -> Answer:
    """Answer with the rows found in these lanes, as far as each was read."""
    return Answer([view.lane for view in views], rows, reach, minutes or {}, [view.next for view in views])
