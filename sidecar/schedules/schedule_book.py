"""What the topic of schedules says, without its I/O: records in, schedules out. Every reader comes to the same.

One partition, compacted; a record's key says what it is about, its value is JSON, and the last one of a key counts.

    <name>/schedule    {"schema": 1, "version": 3, "author": "...", "write": "...", "time": ms, "since": ms,
                        "source": "...",
                        "schedule": {...} or null}     null: deleted. It stays, so that no version is ever used twice
    <name>/progress    {"schema": 1, "last": ms, "problem": "..."}

`write` is unique: a writer knows its own record by it.

A schedule is written in a transaction of whoever won the right to write (`schedule_store.py`), a progress in the one
that writes the occurrences it speaks of (`firing.py`).
"""

import json
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sidecar.schedules.schedule import TIME_MAX_MS, Entry, Progress, Schedule, schedule_document

SCHEMA: Final = 1
SCHEDULES_MAX: Final = 1_000
RECORD_BYTES_MAX: Final = 512 * 1024
WRITES_MAX: Final = 1_000  # the last ones of which it is known whether they are in the topic

_MODEL: Final = ConfigDict(frozen=True, extra="ignore", strict=True)
_Time = Annotated[int, Field(ge=0, le=TIME_MAX_MS)]


class _Written(BaseModel):
    """The value of a schedule's record, but for what only some programs understand."""

    model_config = _MODEL
    version: Annotated[int, Field(ge=1)]
    author: str
    time: _Time
    since: _Time
    source: str
    write: str = ""


class _Schedule(BaseModel):
    """The rest of it: of this schema or not for us."""

    model_config = _MODEL
    schema_: Annotated[Literal[1], Field(alias="schema")]
    schedule: Annotated[Schedule | None, Field(strict=False)]


class _Progress(BaseModel):
    model_config = _MODEL
    last: _Time
    problem: str = ""


class Known(NamedTuple):
    """One name at one moment. `version` 0: it never was. Without an entry it was deleted, or is of a newer program."""

    version: int = 0
    entry: Entry | None = None
    progress: Progress = Progress()
    legible: bool = True


class ScheduleBook:
    """Not safe for threads: its owner guards it."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._writes: dict[str, Known] = {}  # what each of the last writes has made of its name

    def apply(self, key: bytes, value: bytes) -> None:
        """Take in the next record. What isn't one of ours is passed over."""
        name, _, kind = key.decode(errors="replace").rpartition("/")
        known = self._known.get(name, Known())
        try:
            if kind == "schedule":
                written = _Written.model_validate_json(value)
                self._known[name] = known = _with_schedule(known, name, value, written)
                self._remember(written.write, known)
            elif kind == "progress":
                progress = _Progress.model_validate_json(value)
                self._known[name] = known._replace(progress=Progress(progress.last, progress.problem))
        except ValidationError:
            return

    def made_by(self, write: str) -> Known | None:
        """What this write has made of its name; None: it isn't in the topic, or was there long ago."""
        return self._writes.get(write)

    def _remember(self, write: str, known: Known) -> None:
        self._writes[write] = known
        if len(self._writes) > WRITES_MAX:
            del self._writes[next(iter(self._writes))]

    def get(self, name: str) -> Known:
        return self._known.get(name, Known())

    def alive(self) -> Mapping[str, Known]:
        """All schedules that there are, by name; a new mapping."""
        return {name: known for name, known in self._known.items() if known.entry is not None}


def _with_schedule(known: Known, name: str, value: bytes, written: _Written) -> Known:
    try:
        schedule = _Schedule.model_validate_json(value).schedule
    except ValidationError:
        return known._replace(version=written.version, entry=None, legible=False)
    if schedule is None:
        return known._replace(version=written.version, entry=None, legible=True)
    if schedule.name != name:
        return known
    entry = Entry(schedule, written.source, written.version, written.author, written.time, written.since)
    return known._replace(version=written.version, entry=entry, legible=True)


def schedule_record(name: str, entry: Entry, write: str, deleted: bool = False) -> tuple[bytes, bytes]:
    """Key and value of a version; `deleted`: the one that says there is no such schedule any more."""
    document = {
        "schema": SCHEMA,
        "version": entry.version,
        "author": entry.author,
        "write": write,
        "time": entry.time_ms,
        "since": entry.since_ms,
        "source": entry.source,
        "schedule": None if deleted else schedule_document(entry.schedule),
    }
    return f"{name}/schedule".encode(), _json(document)


def progress_record(name: str, progress: Progress) -> tuple[bytes, bytes]:
    """Key and value of how far a schedule has come."""
    document = {"schema": SCHEMA, "last": progress.last_ms, "problem": progress.problem}
    return f"{name}/progress".encode(), _json(document)


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
