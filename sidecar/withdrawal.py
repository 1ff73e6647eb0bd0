"""Taking a held record from where it is, before it fires; and forgetting what had to be remembered for it."""

from enum import Enum, auto

from sidecar.lane import Lane
from sidecar.record import Held


class Place(Enum):
    """Where a held record was."""

    PUTS = auto()  # about to go to the overflow
    OVERFLOW = auto()  # there, or in a change block on its way there
    WHEEL = auto()


def take_out(lane: Lane, held: Held, in_memory: bool) -> Place:
    """Take it out of its lane; where it was in the wheel, that is left to the caller."""
    if not in_memory or _is_on_the_way(lane, held.offset):
        lane.skip[held.offset] = held.position
        lane.struck.add(held.offset)
        return Place.OVERFLOW
    return Place.PUTS if _take_put(lane, held) else Place.WHEEL


def _is_on_the_way(lane: Lane, offset: int) -> bool:
    """A change block has this record, and the wheel hasn't."""
    return offset not in lane.skip and any(offset in change.records for change in lane.changes)


def _take_put(lane: Lane, held: Held) -> bool:
    if held.due_ms < lane.puts_due_ms:
        return False
    kept = [put for put in lane.puts if put.offset != held.offset]
    taken = len(kept) < len(lane.puts)
    lane.puts = kept
    return taken


def lose(lane: Lane, offset: int) -> None:
    """Give up a record that was read and can't be put together any more."""
    lane.done[offset - lane.base] = 1
    lane.lost += 1
    lane.uncommitted = True
    for change in lane.changes:
        change.missing.discard(offset)


def forget_passed(lane: Lane) -> None:
    """Drop what W has passed from the list of overflow copies to skip, unless its change block is still here."""
    watermark = lane.watermark
    passed = [offset for offset, position in lane.skip.items() if position <= watermark]
    for offset in passed:
        if lane.in_care(offset) and not any(offset in change.records for change in lane.changes):
            del lane.skip[offset]
