"""Looking held records up in this process: wheel and overflow of its lanes as one ordered stream.

Runs in a thread of its own. The engine gives references to what is in its wheels (`view.py`), Redis is read by
this thread itself (`redis.py`). The interpreter's lock is let go every few milliseconds, so that the engine
isn't late because somebody looks.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from heapq import merge
from operator import itemgetter
from typing import Any, Final

from policies.headers import OFFSET_MAX
from sidecar.engine.engine import Engine
from sidecar.lookup.query import ALL, OVERFLOW, START, WHEEL, Answer, Key, Query, after_in, key_of, key_of_row, row_of
from sidecar.lookup.redis import HeldOverflow
from sidecar.lookup.view import LaneView, Viewer
from sidecar.model.record import Held, LaneId, Position, held_id, place_of
from sidecar.overflow.connection import Client
from sidecar.overflow.keys import FINE
from sidecar.overflow.signing import UNSIGNED, Signing

PASSED_OVER_SHARE: Final = 4  # how much less it costs to pass a record over than to put it in order with others
LOOKED_AT_MAX: Final = 8_000  # records for one page: then it ends, with fewer rows or none
ANSWER_S: Final = 5.0
WORK_S: Final = 0.002
REST_S: Final = 0.0003

Item = tuple[Key, Held | None, str]  # a place in the order, the record there if there is one, its tier
_key: Final = itemgetter(0)


class GilYield:
    """Lets other threads go on: whoever works on in Python keeps the interpreter's lock for 5 ms at a time."""

    def __init__(self) -> None:
        self._rested_s = time.perf_counter()

    def rest(self) -> None:
        """Sleep for a moment if it was a while ago that this was done."""
        if time.perf_counter() - self._rested_s > WORK_S:
            time.sleep(REST_S)
            self._rested_s = time.perf_counter()


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

    def views(self) -> list[LaneView]:
        """Of all lanes that are whole. The engine is asked for few at a time."""
        views: list[LaneView] = []
        complete = False
        while not complete:
            look = partial(self._viewer.look, views[-1].lane if views else None)
            fresh, complete = self._submit(lambda _, look=look: look()).result(ANSWER_S)  # type: ignore[misc]
            views += fresh
        return [view for view in views if view.whole]

    def page(self, query: Query, after: Key, limit: int) -> Answer:
        """The first `limit` records behind `after` that are meant."""
        views = [view for view in self.views() if query.wants_lane(view.lane)]
        overflow = self._overflow()
        rows: list[dict[str, Any]] = []
        last = after
        stream = merge(*(self._stream(view, query, after, overflow) for view in views), key=_key)
        for looked_at, (key, held, tier) in enumerate(stream, 1):
            if key.due_ms >= query.due_to_ms:
                break
            if held is not None and key != last and query.matches(held):
                rows.append(row_of(LaneId(key.topic, key.partition), held, tier))
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
            answer = self.page(ALL, after, 1)
            if answer.rows:
                return key_of_row(answer.rows[0]).due_ms
            after = answer.reach
        return -1

    def find(self, id: str, query: Query) -> Answer:
        """The records with this id: all in memory, and the latest in the overflow of each lane."""
        views = [view for view in self.views() if query.wants_lane(view.lane)]
        overflow = self._overflow()
        rows: list[dict[str, Any]] = []
        for view in views:
            found = {held.offset: (held, WHEEL) for held in view.leaving if held_id(held) == id}
            found |= {held.offset: (held, tier) for held, tier in self._all_in_memory(view) if held_id(held) == id}
            held = overflow.find(view.lane, id, view.acknowledged)
            if held is not None and held.position > view.cursor and held.offset not in view.skip:
                found.setdefault(held.offset, (held, OVERFLOW))
            rows += [row_of(view.lane, held, tier) for held, tier in found.values()]
        return _answer(views, rows)

    def forecast(self, query: Query, until_ms: int) -> Answer:
        """How many records are due in each minute up to `until_ms`; all later ones by -1. Only whole topics or
        partitions can be asked for.
        """
        views = [view for view in self.views() if query.wants_lane(view.lane)]
        overflow = self._overflow()
        counts: Counter[int] = Counter()
        for view in views:
            counts.update(overflow.minutes(view.lane, view.cursor, until_ms, view.skip, view.acknowledged))
            for held, _ in self._all_in_memory(view):
                counts[held.due_ms // FINE.slot_ms if held.due_ms < until_ms else -1] += 1
        return _answer(views, [], minutes=dict(counts))

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
