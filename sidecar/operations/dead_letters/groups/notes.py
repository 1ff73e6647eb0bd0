"""Words of people about groups of failures: known, or resolved, and a note. Pure.

    groups/<topic>/<fingerprint>   ->   {"state": "resolved", "note": "mended", "author": "ann", "ends": {"0": 17}}

They are records of the topic of redriven letters, beside the marks: what people have decided about dead letters. A
program of before passes them over. `ends` are the ends of the topic's partitions when it was said: a letter of a
resolved group from there on has come after it, whatever its timestamp says, and the group is back again.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

SCHEMA: Final = 1
PREFIX: Final = "groups"
NOTE_LENGTH_MAX: Final = 2_000
NOTES_MAX: Final = 10_000  # of all groups: each replica keeps them in memory


class GroupState(StrEnum):
    """Where people stand with a group of failures."""

    NEW = "new"  # nobody has said anything
    KNOWN = "known"
    RESOLVED = "resolved"
    BACK_AGAIN = "back_again"  # seen, never said: a letter has come since it was resolved


SAID: Final = (GroupState.NEW, GroupState.KNOWN, GroupState.RESOLVED)


class GroupNote(BaseModel):
    """Words about one group. `ends`: by partition, the first offset that was not there yet."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    schema_version: int = SCHEMA
    state: GroupState
    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX)] = ""
    author: str
    time_ms: int
    ends: Mapping[int, int] = {}

    @property
    def says_nothing(self) -> bool:
        """Whether it is as if nobody had said anything."""
        return self.state is GroupState.NEW and not self.note

    def state_with(self, partition: int, offset: int) -> GroupState:
        """State of the group in which this letter is."""
        came_after = offset >= self.ends.get(partition, 0)
        return GroupState.BACK_AGAIN if self.state is GroupState.RESOLVED and came_after else self.state


class GroupNotes:
    """All of them by topic and fingerprint, as far as the records were read. Not locked."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str], GroupNote] = {}

    def apply(self, key: bytes, value: bytes) -> None:
        """Take in one record; an empty value ends it. Garbage, and what a newer version wrote, is passed over."""
        match key.decode(errors="replace").split("/"):
            case [prefix, topic, fingerprint] if prefix == PREFIX:
                if not value:
                    self._notes.pop((topic, fingerprint), None)
                elif (note := _note(value)) is not None:
                    self._notes[topic, fingerprint] = note

    def find(self, topic: str, fingerprint: str) -> GroupNote | None:
        """Words about a group; None: there are none."""
        return self._notes.get((topic, fingerprint))

    def has_room(self, topic: str, fingerprint: str) -> bool:
        """Whether something may be said of this group."""
        return (topic, fingerprint) in self._notes or len(self._notes) < NOTES_MAX


def key_of(topic: str, fingerprint: str) -> bytes:
    """The key of a group's record."""
    return f"{PREFIX}/{topic}/{fingerprint}".encode()


def _note(value: bytes) -> GroupNote | None:
    try:
        note = GroupNote.model_validate_json(value)
    except ValidationError:
        return None
    return note if note.schema_version <= SCHEMA and note.state in SAID else None
