"""Taking a held record from where it is, before it fires; and forgetting what had to be remembered for it."""

from enum import Enum, auto

from policies.headers import OFFSET_MAX
from sidecar.engine.partition.partition import NEVER, Lane
from sidecar.model.record import Held


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
        if lane.is_open(held.offset):
            lane.overtaken.add(held.offset)
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


def overtaken(lane: Lane, due_ms: int) -> list[Held]:
    """Take out what is on its way to the overflow and falls due too soon to wait for it: it goes into the wheel.

    Records of a change block will reach the overflow all the same: their offsets stay open, and promotion skips the
    copies. Records in the order of their keys stay: the overflow may have one that must fire before. But not those that
    the cursor has passed, which were overtaken before a crash: nothing would ever bring them back, be they far from due
    because the clock was set back since, or is another machine's.
    """
    stay = lane.order.on_the_way if lane.order is not None else ()
    cursor = lane.cursor
    soon: list[Held] = []
    if lane.puts_due_ms <= due_ms:
        puts, lane.puts, lane.puts_due_ms = lane.puts, [], OFFSET_MAX
        soon = [held for held in puts if held.due_ms <= due_ms and held.offset not in stay]
        lane.put([held for held in puts if held.due_ms > due_ms or held.offset in stay])
    for change in lane.changes:
        if change.earliest.due_ms <= due_ms or change.earliest <= cursor:
            waiting = [held for held in change.records.values() if held.offset not in lane.skip]
            late = [
                held
                for held in waiting
                if held.position <= cursor or (held.due_ms <= due_ms and held.offset not in stay)
            ]
            lane.skip.update((held.offset, held.position) for held in late)
            lane.overtaken.update(held.offset for held in late)
            soon += late
            if not change.missing:
                change.earliest = min(
                    (held.position for held in waiting if held.offset not in lane.skip), default=NEVER
                )
    return soon
