"""Changes to the records and commits of a group that gets another name. Pure.

A block names its group; a commit has places in the ledger, which are others in the copy:

    old ledger   0  1  2  -  -  5  6  -      -  of aborted transactions, or their ends: nobody is given them
    new ledger   0  1  2  5' 6' -

A pointer (recovery, rebuild) goes to the copy of the first block at or after its place, or to the copy's end. E must
go to the copy of its own block: a recovery looks for that one.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from sidecar.ledger.block import decode, encode
from sidecar.ledger.commit_metadata import CommitState
from sidecar.ledger.frame import LedgerFormatError, NewerLedgerFormatError
from sidecar.operations.renaming.errors import RenameRefusedError
from sidecar.operations.schedules.schedule_book import with_times_said

NONE: Final = -1


def renamed_block(value: bytes | None, group: str) -> bytes | None:
    """A ledger record's value under the group's new name. What is no block stays as it is: it stops a recovery of the
    new group as it would have stopped one of the old.

    Raises RenameRefusedError for a block of a newer version.
    """
    try:
        block = decode(value)
    except NewerLedgerFormatError as error:
        raise RenameRefusedError(str(error)) from None
    except LedgerFormatError:
        return value
    return encode(replace(block, group=group))


def schedule_value(key: bytes, value: bytes | None, appended_ms: int) -> bytes | None:
    """A record of the topic of schedules: with the broker's time in it, which the copy has no more."""
    return with_times_said(key, value, appended_ms)


def change_value(key: bytes, value: bytes | None, _appended_ms: int) -> bytes | None:
    """A record of the topic of changes: receipts are at other offsets in the copy, and looked for from its start."""
    if value is None or not key.endswith(b"/progress"):
        return value
    try:
        fields = json.loads(value)
        if fields["receipts_from"] <= 0:
            return value
    except (ValueError, KeyError, TypeError, RecursionError):
        return value
    return json.dumps({**fields, "receipts_from": 0}, ensure_ascii=False, separators=(",", ":")).encode()


def as_it_is(_key: bytes, value: bytes | None, _appended_ms: int) -> bytes | None:
    """A record that says nothing of its group or its place."""
    return value


class Places:
    """Where the places of one ledger partition are in its copy. Fed with what is copied, in order."""

    def __init__(self, wanted: Iterable[int] = ()) -> None:
        self._wanted = deque(sorted({place for place in wanted if place >= 0}))
        self._blocks: dict[int, int] = {}
        self._following: dict[int, int] = {}
        self.end = 0  # of the copy

    def copied(self, old: int, new: int) -> None:
        """Note that the record at `old` was copied to `new`."""
        while self._wanted and self._wanted[0] <= old:
            place = self._wanted.popleft()
            self._following[place] = new
            if place == old:
                self._blocks[place] = new
        self.end = new + 1

    def following(self, place: int) -> int:
        """The copy of the first record at or after this place, or the copy's end; what is below 0 stays."""
        return place if place < 0 else self._following.get(place, self.end)

    def block(self, place: int) -> int:
        """The copy of the record at this place; -1: it wasn't there."""
        return self._blocks.get(place, NONE)


def wanted_places(state: CommitState) -> tuple[int, int, int]:
    """The places in the ledger that a commit has."""
    return state.block_offset, state.recovery_pointer, state.rebuild_pointer


def renamed_state(
    state: CommitState, places: Places, first: int, ledger_id: str, ledger_partitions: int
) -> CommitState:
    """The commit for the new group. `first`: where the old ledger's partition begins by now.

    A block that retention took isn't looked for any more. One that must be there and isn't is said to be behind the
    copy's end: a recovery of the new group ends with the words that one of the old group would have ended with.
    """
    block = places.block(state.block_offset)
    if block == NONE and state.block_offset >= first:
        block = places.end
    return replace(
        state,
        block_offset=block,
        recovery_pointer=places.following(state.recovery_pointer),
        rebuild_pointer=places.following(state.rebuild_pointer),
        ledger_id=ledger_id,
        ledger_partitions=ledger_partitions,
    )
