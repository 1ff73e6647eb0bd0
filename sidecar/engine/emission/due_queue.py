"""Records that are due and must wait, in the order of their due times over all lanes.

They come in runs of one lane, each in order, and lie in a heap by the first of each run: a record costs its place in a
list. A run is only ever added to or replaced, never changed in place, so that readers in other threads may look at it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final

from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.record import Held, due_of, place_of

RUN_MAX: Final = 1_000  # records; what has left a run is let go of with the run


class Batch:
    """Records of one lane, and from which on they are not handed over."""

    __slots__ = ("lane", "records", "start")

    def __init__(self, lane: SourcePartition, records: list[Held]) -> None:
        self.lane = lane
        self.records = records
        self.start = 0


class DueQueue:
    """See the module."""

    __slots__ = ("_heap", "_last", "_numbers", "count")

    def __init__(self) -> None:
        self.count = 0
        self._heap: list[tuple[int, int, Batch]] = []  # due time of its first, a number, the run
        self._last: dict[SourcePartition, Batch] = {}  # the one that came last
        self._numbers = count()

    def put(self, lane: SourcePartition, records: Sequence[Held]) -> None:
        """Add records of a lane, in any order."""
        ordered = sorted(records, key=place_of)
        self.count += len(ordered)
        last = self._last.get(lane)
        if last is not None and len(last.records) < RUN_MAX and last.records[-1].position <= ordered[0].position:
            room = RUN_MAX - len(last.records)
            last.records += ordered[:room]
            ordered = ordered[room:]
        for start in range(0, len(ordered), RUN_MAX):
            self._last[lane] = run = Batch(lane, ordered[start : start + RUN_MAX])
            heappush(self._heap, (run.records[0].due_ms, next(self._numbers), run))

    def take(self, wanted: int, now_ms: int) -> tuple[list[tuple[SourcePartition, list[Held]]], int]:
        """The first `wanted` records, by lane, and how many those are; what has expired comes with them uncounted.

        After the clock was set back some may not be due: they go on waiting.
        """
        taken: list[tuple[SourcePartition, list[Held]]] = []
        counted = 0
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            _, number, run = heap[0]
            records, start = run.records, run.start
            until_ms = min((entry[0] for entry in heap[1:3]), default=now_ms)
            stop, end = start, bisect_right(records, min(until_ms, now_ms), lo=start + 1, key=due_of)
            while stop < end:
                if not 0 <= records[stop].expires_ms < now_ms:
                    if counted == wanted:
                        break
                    counted += 1
                stop += 1
            if stop == start:
                break
            taken.append((run.lane, records[start:stop]))
            self.count -= stop - start
            run.start = stop
            if stop < len(records):
                heapreplace(heap, (records[stop].due_ms, number, run))
            else:
                heappop(heap)
                if self._last.get(run.lane) is run:
                    del self._last[run.lane]
        return taken, counted

    def remove(self, lane: SourcePartition, held: Held) -> bool:
        """Take one record out; False: it isn't here."""
        for run in (run for _, _, run in self._heap if run.lane is lane):
            place = bisect_left(run.records, held.position, lo=run.start, key=place_of)
            if place < len(run.records) and run.records[place].offset == held.offset:
                run.records = [*run.records[run.start : place], *run.records[place + 1 :]]
                run.start = 0
                self.count -= 1
                self._rebuild()
                return True
        return False

    def take_out(self, wanted: Callable[[Held], bool]) -> list[tuple[SourcePartition, list[Held]]]:
        """Take out the records of which this is true, by lane. All that waits is looked at."""
        taken: list[tuple[SourcePartition, list[Held]]] = []
        for _, _, run in self._heap:
            waiting = run.records[run.start :]
            if gone := [held for held in waiting if wanted(held)]:
                taken.append((run.lane, gone))
                run.records = [held for held in waiting if not wanted(held)]
                run.start = 0
                self.count -= len(gone)
        if taken:
            self._rebuild()
        return taken

    def drop(self, lanes: set[SourcePartition]) -> list[Held]:
        """Take out what belongs to these lanes."""
        gone = [run for _, _, run in self._heap if run.lane in lanes]
        dropped = [held for run in gone for held in run.records[run.start :]]
        for run in gone:
            run.records = []
            run.start = 0
        self.count -= len(dropped)
        self._rebuild()
        return dropped

    def _rebuild(self) -> None:
        """Some runs begin with another record, or are empty."""
        kept = [(number, run) for _, number, run in self._heap if run.start < len(run.records)]
        self._heap = [(run.records[run.start].due_ms, number, run) for number, run in kept]
        heapify(self._heap)
        self._last = {lane: run for lane, run in self._last.items() if run.start < len(run.records)}

    def runs(self, lane: SourcePartition) -> Iterator[tuple[Sequence[Held], int]]:
        """Runs of a lane's waiting records, in no order: records, and the index from which on they wait."""
        return ((run.records, run.start) for _, _, run in self._heap if run.lane is lane)

    def all_runs(self) -> Iterator[tuple[Sequence[Held], int]]:
        """Runs of all lanes, as `runs` gives them."""
        return ((run.records, run.start) for _, _, run in self._heap)

    def by_topic(self) -> Counter[str]:
        """How many records wait, by source."""
        found: Counter[str] = Counter()
        for _, _, run in self._heap:
            found[run.lane.id.topic] += len(run.records) - run.start
        return found

    def oldest_due_ms(self) -> int:
        """Due time of the first, -1 when none waits."""
        return self._heap[0][0] if self._heap else -1
