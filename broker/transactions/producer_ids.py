"""Ids of producers, none given twice: a broker takes them from the cluster in blocks, and a rest of one is lost when it
stops."""

from collections.abc import Callable
from typing import Final

BLOCK: Final = 1000


class ProducerIds:
    """`allocate(n)` gives the first of n ids that nobody else has, now or ever: it is durable when it returns."""

    def __init__(self, allocate: Callable[[int], int]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0

    def next(self) -> int:
        """A new one."""
        if self._next == self._end:
            self._next = self._allocate(BLOCK)
            self._end = self._next + BLOCK
        self._next += 1
        return self._next - 1
