"""Records of one lane, read and not yet held: as the decider gives them, and one by one in the order of the offsets."""

from operator import itemgetter
from typing import Any, Final, NamedTuple

from policies.decision import QUOTA_EXCEEDED
from sidecar.engine.intake.decide import Named
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.record import AwaitingTarget, Diverted, Held, ReplayedMove


class Read(NamedTuple):
    """Records of one lane, decided and not yet held, as the decider gives them."""

    held: list[Held]
    others: list[Diverted | AwaitingTarget]
    named: list[Named]


class Ready(NamedTuple):
    """Records of one lane that may be held now; those that are due until `near_ms` go into the wheel."""

    lane: SourcePartition
    read: Read
    near_ms: int


class Item(NamedTuple):
    """One of them; `kind` is its place in `Read`."""

    offset: int
    kind: int
    record: Any


item_offset: Final = itemgetter(Item._fields.index("offset"))  # to sort by


def name_of(label: str) -> str:
    """The policy's name in `name@version`."""
    return label.rpartition("@")[0]


def held_of(record: Any) -> Held | None:
    """The record that is to be held; None: it isn't one of these."""
    if isinstance(record, AwaitingTarget):
        return record.held
    return record if isinstance(record, Held) else None


def refused_of(record: Any) -> Diverted | None:
    """The record that would have been held, had there been room; None: it isn't one of these."""
    return record if isinstance(record, Diverted) and record.reason == QUOTA_EXCEEDED else None


def offset_of(record: Any) -> int:
    """Where it was read."""
    offset: int = record.held.offset if isinstance(record, AwaitingTarget | ReplayedMove) else record.offset
    return offset


def list_of(read: Read, item: Item) -> list[Any]:
    """The list that it belongs to."""
    return read[item.kind]
