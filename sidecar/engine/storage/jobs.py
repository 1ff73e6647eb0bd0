"""Jobs that the overflow's worker gives to its thread."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from sidecar.engine.partition.partition import SourcePartition
from sidecar.overflow.interface import OverflowFailure, OverflowFull, OverflowRefused


@dataclass(slots=True)
class Job:
    """One piece of work and what follows from it, on the engine's thread."""

    lanes: list[SourcePartition]
    future: Future[Any]
    done: Callable[[Any], None]
    undone: Callable[[], None]
    writes: bool

    def refuses_writes(self, error: OverflowFailure) -> bool:
        """Whether this failure is one of writing, while reading may go on."""
        return isinstance(error, OverflowFull) or (self.writes and isinstance(error, OverflowRefused))


@dataclass(slots=True)
class Applying:
    """Change blocks on their way: the last number of each lane. `happened` is for the overflow's thread alone."""

    numbers: Mapping[SourcePartition, int]
    happened: bool = False

    def needed(self, lane: SourcePartition) -> Callable[[], int]:
        """How many blocks Redis must have when a job runs that is submitted now, after these.

        By the time its answer comes, the engine has forgotten what these blocks strike out. A Redis that went back
        behind them, which the number of now would allow, would give it as if it were held.
        """
        acknowledged = lane.acknowledged
        return lambda: max(acknowledged, self.numbers.get(lane, 0)) if self.happened else acknowledged
