"""The last events of this process, numbered, and the differences that they tell of. Pure.

    run-0    run-1    run-2    run-3        ids: `run` names the life of this process
             [ oldest ....... last ]        kept: who has seen run-0 or later is told exactly what came after

An event says what has changed and never how it was or is: who hears it asks again.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple

from sidecar.model.times import with_times

EVENTS_KEPT: Final = 1_000
NAMES_MAX: Final = 100  # of each list of one event
DIGITS_MAX: Final = 18  # of an id's number

Snapshot = Mapping[str, object]  # what there is, by name; values are compared


class EventName(StrEnum):
    """Kinds of things that may have changed."""

    OVERVIEW = "overview"
    PROBLEMS = "problems"
    REPLICAS = "replicas"
    POLICIES = "policies"
    SCHEDULES = "schedules"
    PAUSES = "pauses"
    REDRIVES = "redrives"
    CHANGES = "changes"


RESET: Final = "reset"  # what was missed isn't known: read all again


class Difference(NamedTuple):
    """Names that are new, have changed, or are gone, in order; `more` is how many aren't named."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    more: int = 0


class Event(NamedTuple):
    """An event; `name` is an `EventName`, or `RESET`."""

    id: str
    name: str
    at_ms: int
    difference: Difference = Difference()

    @property
    def document(self) -> dict[str, Any]:
        """Data of the event."""
        return with_times({"at": self.at_ms, **self.difference._asdict()}, "at")


def difference(before: Snapshot, after: Snapshot) -> Difference | None:
    """How the snapshots differ; None: not at all."""
    added = sorted(after.keys() - before.keys())
    changed = sorted(name for name in after.keys() & before.keys() if after[name] != before[name])
    removed = sorted(before.keys() - after.keys())
    count = len(added) + len(changed) + len(removed)
    if not count:
        return None
    shown = [tuple(names[:NAMES_MAX]) for names in (added, changed, removed)]
    return Difference(shown[0], shown[1], shown[2], count - sum(map(len, shown)))


class Ring:
    """The last `kept` events. `run`: a name that no other process has had."""

    def __init__(self, run: str, kept: int = EVENTS_KEPT) -> None:
        self._run = run
        self._events: deque[Event] = deque(maxlen=kept)
        self.last = 0  # number of the last event

    def add(self, name: EventName, at_ms: int, found: Difference) -> None:
        """Number an event and keep it; the oldest one goes where there is no more room."""
        self.last += 1
        self._events.append(Event(self.id_of(self.last), name, at_ms, found))

    def after(self, number: int) -> Sequence[Event] | None:
        """All events after this one, in order; None: the first of them are gone."""
        first = self.last - len(self._events) + 1
        if number < first - 1:
            return None
        return list(islice(self._events, number - first + 1, None))

    def id_of(self, number: int) -> str:
        """The id of an event."""
        return f"{self._run}-{number}"

    def number_of(self, id: str) -> int | None:
        """Number of the event of this id; None: it is of another process, or was never there."""
        run, _, digits = id.rpartition("-")
        if run != self._run or not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
            return None
        number = int(digits)
        return number if number <= self.last else None
