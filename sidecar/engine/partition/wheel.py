"""The finest level of the timing wheel: one ring of buckets per lane, in memory.

A bucket holds everything that falls due within one tick. Inserting is finding the bucket, expiring is taking
it away whole; neither looks at any other entry, so both cost the same with ten entries and with a million.
The coarser levels of the wheel are in Redis (`overflow/interface.py`), and the lane's cursor says where one ends and
the other begins, so this level never needs to reach further than the horizon.

The bucket of a due time is the *next* tick boundary at or after it. Kafka's wheel rounds down and fires up to a
tick early; here a bucket is taken only when the clock has reached its boundary, so nothing is ever early:

    tick 10 ms     due 41..50 -> bucket 5     taken when now >= 50

The ring is a dict from tick number to bucket: a flat array over a 30 s horizon at 1 ms is 240 kB per lane whether
or not anything is held, and a dict inserts as fast. A heap has the ticks of the buckets: which one is next is known
without a look at any other, and a bucket pays for its place there once. The wheel has no clock, no thread and no lock.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Final

from sidecar.model.record import Held

_size: Final = itemgetter(Held._fields.index("size"))
FIRED_MAX: Final = 200_000  # records taken at a time, in whole buckets


class Wheel:
    """Held records by due time. Times are epoch milliseconds and always arguments."""

    __slots__ = ("_cancelled", "_fired_tick", "_ticks", "buckets", "count", "tick_ms")

    def __init__(self, now_ms: int, tick_ms: int = 1) -> None:
        self.tick_ms = tick_ms
        self.buckets: dict[int, list[Held]] = {}
        self.count = 0
        self._ticks: list[int] = []  # a heap, of the buckets
        self._fired_tick = now_ms // tick_ms
        self._cancelled: set[int] = set()

    def insert(self, held: Held) -> None:
        """File one record under its due time; what is overdue fires at the next advance."""
        self.insert_all((held,))

    def insert_all(self, records: Sequence[Held]) -> None:
        """File many: half the time of one by one."""
        tick_ms, buckets, fired = self.tick_ms, self.buckets, self._fired_tick
        for held in records:
            tick = -(-held[0] // tick_ms)  # by place: this runs for every record
            if tick <= fired:
                tick = fired + 1
            if tick in buckets:
                buckets[tick].append(held)
            else:
                buckets[tick] = [held]
                heappush(self._ticks, tick)
        self.count += len(records)

    def cancel(self, offset: int) -> None:
        """The record of this source offset will not fire. The caller knows that it is in the wheel."""
        self._cancelled.add(offset)
        self.count -= 1

    def advance(self, now_ms: int) -> list[Held]:
        """Take out all records whose bucket's boundary is at or before `now_ms`, in the order of their ticks."""
        reached = now_ms // self.tick_ms
        first = self._fired_tick + 1
        if reached < first:
            if reached < first - 1:
                self._step_back(reached)
            return []
        self._fired_tick = reached
        buckets, ticks = self.buckets, self._ticks
        fired: list[Held] = []
        while ticks and ticks[0] <= reached:
            tick = heappop(ticks)
            fired += buckets.pop(tick)
            if len(fired) >= FIRED_MAX:  # after a long pause: the rest comes with the next turns
                self._fired_tick = tick
                break
        if self._cancelled and fired:
            fired = self._without_cancelled(fired)
        self.count -= len(fired)
        return fired

    def next_due_ms(self) -> int:
        """When the first bucket with something to fire will, -1 when the wheel is empty. Looks at every bucket where
        something was cancelled.
        """
        if not self._cancelled:
            return self.soonest_ms()
        cancelled, buckets = self._cancelled, self.buckets
        firing = (tick for tick in sorted(buckets) if any(held.offset not in cancelled for held in buckets[tick]))
        first = next(firing, None)
        return -1 if first is None else first * self.tick_ms

    def soonest_ms(self) -> int:
        """When the first bucket will be taken, -1 when the wheel is empty; all in it may be cancelled."""
        return self._ticks[0] * self.tick_ms if self._ticks else -1

    def recount(self) -> int:
        """Number of records by looking at every bucket, to be compared with `count`."""
        return sum(map(len, self.buckets.values())) - len(self._cancelled)

    def records(self) -> list[Held]:
        """All that will fire, in no order. Looks at every bucket."""
        cancelled = self._cancelled
        return [held for bucket in self.buckets.values() for held in bucket if held.offset not in cancelled]

    def copy(self) -> tuple[dict[int, list[Held]], frozenset[int]]:
        """The buckets by tick, and which offsets in them are cancelled, for a reader in another thread."""
        return self.buckets.copy(), frozenset(self._cancelled)

    def _step_back(self, reached: int) -> None:
        """Time was set back: what was filed as overdue at the old time goes where the new time has it."""
        waiting: list[Held] = []
        if self._ticks and self._ticks[0] == self._fired_tick + 1:
            waiting = self.buckets.pop(heappop(self._ticks))
        self._fired_tick = reached
        self.count -= len(waiting)
        self.insert_all(waiting)

    def _without_cancelled(self, fired: list[Held]) -> list[Held]:
        cancelled = self._cancelled
        hit = {held.offset for held in fired if held.offset in cancelled}
        cancelled -= hit
        return [held for held in fired if held.offset not in hit]


class Load:
    """Records and bytes that the wheels of all lanes hold together, against the limits of the settings."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0

    def add(self, records: Sequence[Held]) -> None:
        """Count records that are held in memory now."""
        self.records += len(records)
        self.bytes += sum(map(_size, records))

    def remove(self, records: Sequence[Held]) -> None:
        """Stop counting records that are held in memory no more."""
        self.records -= len(records)
        self.bytes -= sum(map(_size, records))
