"""The words every part of the sidecar shares: a held record, its place, and the ways it can leave."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import islice, zip_longest
from operator import itemgetter
from typing import Any, Final, NamedTuple

from policies.headers import ID, OFFSET_MAX
from policies.request import INT32_MAX

Headers = list[tuple[str, bytes | None]]
NO_HEADERS: Final[Headers] = []  # shared: whoever holds a record never changes its header lists


# Names of topics as `policies.fields` has them, which takes longer to import than all of this.
_PLACE: Final = re.compile(r"(?!\.{1,2}/)([A-Za-z0-9._-]{1,249})/([0-9]{1,10})/([0-9]{1,19})")
NEVER_HELD: Final = -1  # in place of the bytes that a departure took while it was held


class TopicPartition(NamedTuple):
    """One source partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Place(NamedTuple):
    """Where a record lies; written `topic/partition/offset`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def of_text(cls, text: str) -> "Place | None":
        """The place that a text names; None: it names none."""
        found = _PLACE.fullmatch(text)
        if found is None:
            return None
        place = cls(found[1], int(found[2]), int(found[3]))
        return place if place.partition <= INT32_MAX and place.offset <= OFFSET_MAX else None


PLACE: Final = "place"


def with_places(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Document with the text of a place behind each of these fields that it has: `place` behind `position`, else
    `<name>_place`; null for null. The fields have topic, partition and offset, or that text.
    """
    told: dict[str, Any] = {}
    for name, value in document.items():
        told[name] = value
        if name in names:
            is_text = value is None or isinstance(value, str)
            text = value if is_text else "{topic}/{partition}/{offset}".format_map(value)
            told[PLACE if name == "position" else f"{name}_{PLACE}"] = text
    return told


class Position(NamedTuple):
    """A place in the order in which records of one lane fall due: by due time, then by source offset."""

    due_ms: int
    offset: int


def just_before(position: Position) -> Position:
    """The last position ahead of this one."""
    return Position(position.due_ms, position.offset - 1)


class Tombstone(NamedTuple):
    """A copy in the overflow that must never be promoted: its record has left, or goes on elsewhere."""

    position: Position
    id: str | None


class Outcome(IntEnum):
    """How a record left. The numbers are written to the ledger: never reuse one."""

    EMITTED = 0
    DEAD = 1
    QUARANTINED = 2
    CANCELLED = 3
    REPLACED = 4
    APPLIED = 5
    MOVED = 6  # it goes on under the offset of the control record that moved it, which counts as applied


class Window:
    """One promotion: the range of the overflow that one step of a lane's cursor copied into the wheel.

    The overflow watermark may pass `start` only when all records of the window are settled (`unsettled == 0`).
    """

    __slots__ = ("start", "unsettled")

    def __init__(self, start: Position, unsettled: int) -> None:
        self.start = start
        self.unsettled = unsettled


def settle_promoted(windows: Sequence[Window], positions: Sequence[tuple[int, int]]) -> None:
    """Less in the windows that hold these positions; both are in order."""
    settled = 0
    for window, following in zip_longest(windows, islice(windows, 1, None)):
        assert settled or not positions or positions[0] > window.start, f"settled {positions[0]}, which no window holds"
        reached = bisect_right(positions, following.start) if following else len(positions)
        window.unsettled -= reached - settled
        assert window.unsettled >= 0, f"settled more than the window from {window.start} holds"
        settled = reached
        if settled == len(positions):
            return


class Held(NamedTuple):
    """A record that was accepted and not yet settled, with the decision made for it.

    `headers` are the user's own, in order; what tickover adds is made at emission (`header_codec.py`).
    `trailer` holds error headers and then the id as they came, which follow tickover's own headers.
    """

    due_ms: int
    offset: int
    target: str
    target_partition: int  # -1: by key
    key: bytes | None
    value: bytes | None
    headers: Headers
    policy: str  # name@version
    origin: bytes | None  # topic/partition/offset where it was first met; None: here
    attempt: int  # 0: a delay policy, no attempts are counted
    first_failure_ms: int  # -1: a delay policy
    trailer: Headers
    expires_ms: int  # -1: never
    dead_letter: str
    size: int  # bytes of key, value and header values: what it counts against the wheel's limit
    source: int = -1  # offset of the record with its payload, when it was moved and goes by its control record's offset

    @property
    def came_at(self) -> int:
        """The offset under which it came."""
        return self.offset if self.source < 0 else self.source

    @property
    def position(self) -> Position:
        return Position(self.due_ms, self.offset)


as_held: Final[Callable[[Iterable[Any]], Held]] = partial(tuple.__new__, Held)  # of all its fields: half the time
# Whole columns are read with these: a third of the time of asking each record by name.
place_of: Final = itemgetter(0, 1)
due_of: Final = itemgetter(0)


def held_id(held: Held) -> str | None:
    """The user's id of a held record, None when it has none."""
    for name, value in held.trailer:
        if name == ID and value is not None:
            return value.decode(errors="replace")
    return None


class Diverted(NamedTuple):
    """A record that leaves another way than by being emitted: what is written, where to, and why.

    Without a topic nothing is written but its settlement: a control record, and the record it hit.
    """

    due_ms: int
    offset: int
    outcome: Outcome
    reason: str
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    policy: str
    attempt: int
    id: str | None
    related: int = -1  # as in the ledger (`block.Settled`)
    carried: Held | None = None  # of a moved record: what goes on under the control record's offset
    held_bytes: int = NEVER_HELD  # what it took while it was held (`Held.size`)

    @property
    def came_at(self) -> int:
        """The offset under which it came, of one that is written somewhere."""
        return self.offset if self.related < 0 else self.related


class Control(NamedTuple):
    """A control record: what it asks for, of whom."""

    offset: int
    action: str
    id: str
    due_ms: int  # of a reschedule; -1 for others
    policy: str
    at_ms: int  # its own timestamp
    if_offset: int  # acts on the record held under this offset alone; -1: on whichever is held with the id


class ReplayedMove(NamedTuple):
    """A control record read again that has moved a record: `held` is known from the ledger, but for its payload."""

    held: Held
    id: str


class AwaitingTarget(NamedTuple):
    """A decided record whose target isn't known yet to exist, with its headers as they came."""

    held: Held
    headers: Headers


ANY_PARTITION: Final = -1  # the client chooses: by the key, where there is one


class TargetPartition(NamedTuple):
    """A partition of a target."""

    topic: str
    partition: int
