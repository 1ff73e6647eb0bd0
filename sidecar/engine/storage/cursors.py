"""Partitions that have something in the overflow, by how far their cursors have come: the furthest behind is served
first, as a slow overflow can't serve all at once.

A place in the heap is a lower bound: cursors only move on. One that can't be served now, or is being served, is
put aside until the next step.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final

from policies.headers import OFFSET_MAX
from sidecar.engine.partition.partition import SourcePartition

NEVER_MS: Final = OFFSET_MAX


class Cursors:
    """Owned by the engine's thread. Times are epoch milliseconds."""

    __slots__ = ("_aside", "_heap", "_known", "_numbers")

    def __init__(self) -> None:
        self._known: dict[SourcePartition, None] = {}
        self._heap: list[tuple[int, int, SourcePartition]] = []
        self._aside: list[SourcePartition] = []
        self._numbers = count()

    def note(self, lane: SourcePartition) -> None:
        """A partition that may have come to have something there."""
        if lane not in self._known:
            self._known[lane] = None
            self._add(lane)

    def _add(self, lane: SourcePartition) -> None:
        heappush(self._heap, (lane.promotion.cursor.due_ms, next(self._numbers), lane))

    def put_aside(self, lane: SourcePartition) -> None:
        """A partition that can't be served now."""
        self._aside.append(lane)

    def behind(self, until_ms: int) -> Iterator[SourcePartition]:
        """Partitions whose cursor is before this time, each for the caller to put aside. Those that were
        given up are forgotten on the way.
        """
        for lane in self._aside:
            self._add(lane)
        self._aside = []
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            due_ms, _, lane = heappop(heap)
            if lane.dropped or lane.leaving:
                self._known.pop(lane, None)
            elif lane.promotion.cursor.due_ms > due_ms:  # it has moved on
                self._add(lane)
            else:
                yield lane

    @property
    def first_ms(self) -> int:
        """No cursor is before this time; NEVER_MS when there is none."""
        aside = min((lane.promotion.cursor.due_ms for lane in self._aside), default=NEVER_MS)
        return min(self._heap[0][0] if self._heap else NEVER_MS, aside)

    @property
    def lanes(self) -> list[SourcePartition]:
        """All that are served."""
        return [lane for lane in self._known if not (lane.dropped or lane.leaving)]
