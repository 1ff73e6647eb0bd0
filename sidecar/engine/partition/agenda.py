"""Partitions that have work: what a turn of the engine has to look at, so that it looks at no others.

    something changed -> stir ----> restless, until `SourcePartition.is_quiet`    visited each turn
                               +--> changed, until the next snapshot               visited once
    held in the wheel -> expect --> a heap of due times                            visited when the first is reached

A due time in the heap is a lower bound: who is asked then may have nothing, and says when to ask again. All of it is
kept by the one thread that owns the partitions. What must hold: a partition that isn't restless is quiet, and one with
records in its wheel is expected no later than the first of them falls due.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from policies.headers import OFFSET_MAX

if TYPE_CHECKING:
    from sidecar.engine.partition.partition import SourcePartition

NEVER_MS: Final = OFFSET_MAX


class Agenda:
    """Partitions of one process. As a collection: those with work, or any one of all where none has, to speak for them.

    `topics`: how many partitions there are of each source, replaced whenever that changes. Times are epoch
    milliseconds.
    """

    __slots__ = ("_changed", "_dues", "_first_ms", "_lanes", "_now_ms", "_numbers", "_restless", "topics")

    def __init__(self) -> None:
        self.topics: Mapping[str, int] = MappingProxyType({})
        self._lanes: dict[SourcePartition, None] = {}
        # Dicts, as they keep their order: runs of the simulation can be repeated.
        self._restless: dict[SourcePartition, None] = {}
        self._changed: dict[SourcePartition, None] = {}
        self._dues: list[tuple[int, int, SourcePartition]] = []
        self._first_ms: dict[SourcePartition, int] = {}  # of each that is expected: the entry that counts
        self._numbers = count()
        self._now_ms = 0

    def __iter__(self) -> Iterator["SourcePartition"]:
        """As of now: what stirs meanwhile isn't among them."""
        return iter(list(self._restless) or [next(iter(self._lanes))] if self._lanes else [])

    def __len__(self) -> int:
        return len(self._restless) or min(len(self._lanes), 1)

    def __contains__(self, lane: object) -> bool:
        return lane in self._restless

    @property
    def lanes(self) -> list["SourcePartition"]:
        """All partitions."""
        return list(self._lanes)

    # --- which there are ------------------------------------------------------------------------------------------

    def add(self, lanes: list["SourcePartition"]) -> None:
        """Partitions that are served from now on, with empty wheels: all about them is news."""
        for lane in lanes:
            lane.agenda = self
            self._lanes[lane] = None
            self.stir(lane)
            self.expect(lane, 0)  # its wheel was made a while ago: the clock may have been set back since
        self._count(lanes, 1)

    def remove(self, lanes: list["SourcePartition"]) -> None:
        """Partitions that are given up. The next snapshot is told."""
        here = [lane for lane in lanes if lane in self._lanes]
        for lane in here:
            lane.agenda = Agenda()  # what settles now is its own affair
            del self._lanes[lane]
            self._restless.pop(lane, None)
            self._first_ms.pop(lane, None)
            self._changed[lane] = None
        self._count(here, -1)

    def _count(self, lanes: list["SourcePartition"], by: int) -> None:
        topics = Counter(self.topics)
        for lane in lanes:
            topics[lane.id.topic] += by
        self.topics = MappingProxyType({topic: number for topic, number in topics.items() if number})

    # --- news -----------------------------------------------------------------------------------------------------

    def stir(self, lane: "SourcePartition") -> None:
        """Something about a partition has changed: it may have work."""
        self._restless[lane] = None

    def stir_all(self) -> None:
        """Something has changed that concerns all of them."""
        self._restless.update(self._lanes)

    def settle_down(self) -> None:
        """Let go of those that have no more work."""
        for lane in [lane for lane in self._restless if lane.is_quiet]:
            del self._restless[lane]
            self._changed[lane] = None

    def take_changed(self) -> list["SourcePartition"]:
        """Partitions that may have changed since the last call, those that were given up among them."""
        changed = [*self._changed, *(lane for lane in self._restless if lane not in self._changed)]
        self._changed.clear()
        return changed

    # --- due times ------------------------------------------------------------------------------------------------

    def expect(self, lane: "SourcePartition", due_ms: int) -> None:
        """The wheel of a partition has something that falls due then."""
        if due_ms < self._first_ms.get(lane, NEVER_MS):
            self._first_ms[lane] = due_ms
            heappush(self._dues, (due_ms, next(self._numbers), lane))

    def due(self, now_ms: int) -> list["SourcePartition"]:
        """Partitions that may have something due, each to be expected again; all, where the clock was set back: their
        wheels have to hear of it.
        """
        before_ms, self._now_ms = self._now_ms, now_ms
        dues, first_ms = self._dues, self._first_ms
        if now_ms < before_ms:
            dues.clear()
            first_ms.clear()
            return list(self._lanes)
        due: list[SourcePartition] = []
        while dues and dues[0][0] <= now_ms:
            due_ms, _, lane = heappop(dues)
            if first_ms.get(lane) == due_ms:
                del first_ms[lane]
                due.append(lane)
        return due

    @property
    def next_due_ms(self) -> int:
        """When the first record of all wheels may fall due: none does before; NEVER_MS when there is none."""
        return self._dues[0][0] if self._dues else NEVER_MS

    def due_within(self, now_ms: int, most_ms: int) -> int:
        """How long after a turn at this time nothing falls due in the wheels, at most so long."""
        return max(min(self.next_due_ms - now_ms, most_ms), 0)

    def expected_ms(self, lane: "SourcePartition") -> int:
        """When a partition will be looked at; NEVER_MS: its wheel has nothing."""
        return self._first_ms.get(lane, NEVER_MS)
