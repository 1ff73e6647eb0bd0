"""Parts of `key_order.py`: the last record of a key that was held, and what of a key has fired and isn't settled."""

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from sidecar.model.record import Held, Position


class Tail(NamedTuple):
    """The last record of a key that was held, by position."""

    due_ms: int
    offset: int
    stored: bool  # it, or one before it, went to the overflow

    def ahead_of(self, cursor: Position) -> bool:
        """The overflow may have something of this key that isn't in the wheel yet."""
        return self.stored and (self.due_ms, self.offset) > cursor


class Chain:
    """Records of one key that have fired and aren't settled: `out` counts those handed over, `waiting` follow,
    sorted by position.
    """

    __slots__ = ("out", "single", "waiting")

    def __init__(self) -> None:
        self.out = 0
        self.single = False  # something came back: one at a time until all have left
        self.waiting: deque[Held] = deque()

    def add(self, held: Held) -> None:
        """Insert a record by position: usually at the end, and near the beginning if it came back."""
        waiting = self.waiting
        if not waiting or waiting[-1].position < held.position:
            waiting.append(held)
        else:
            waiting.insert(next(place for place, other in enumerate(waiting) if held.position < other.position), held)


def add_before(known: list[tuple[int, int]], offset: int, due_ms: int) -> None:
    """(offset, latest due up to it), sorted: almost always the new one is the last."""
    place = bisect_left(known, (offset, -1))
    latest_ms = max(due_ms, known[place - 1][1]) if place else due_ms
    known.insert(place, (offset, latest_ms))
    for later in range(place + 1, len(known)):
        if known[later][1] >= latest_ms:
            break
        known[later] = (known[later][0], latest_ms)


def remove_before(known: list[tuple[int, int]], offset: int) -> None:
    """Take out what `add_before` put in; the latest due of later ones stays."""
    place = bisect_left(known, (offset, -1))
    if place < len(known) and known[place][0] == offset:
        del known[place]
