"""Pauses: what somebody has stopped for a while, and since when. Times are epoch milliseconds."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class PauseKind(StrEnum):
    """Kinds of what can be paused. The values are public: paths of REST have them."""

    POLICY = "policy"
    SOURCE = "source"
    TARGET = "target"
    SCHEDULE = "schedule"


class Pausable(NamedTuple):
    """A thing that can be paused: a policy or a schedule by its name, a source or a target by its topic."""

    kind: PauseKind
    name: str


class Pause(NamedTuple):
    """Why, by whom and since when something is paused, and until when: -1 until somebody resumes it."""

    reason: str
    by: str
    since_ms: int
    until_ms: int = -1

    def is_over(self, now_ms: int) -> bool:
        """Whether its time has passed."""
        return 0 <= self.until_ms <= now_ms


Pauses = Mapping[Pausable, Pause]
NO_PAUSES: Final[Pauses] = MappingProxyType({})


def in_force(pauses: Pauses, now_ms: int) -> frozenset[Pausable]:
    """All that is paused at this time."""
    return frozenset(one for one, pause in pauses.items() if not pause.is_over(now_ms))
