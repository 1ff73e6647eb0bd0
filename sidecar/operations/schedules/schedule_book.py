"""Content of the topic of schedules, without its I/O: records in, schedules out. Every reader comes to the same.

One partition, compacted; a record's key says what it is about, its value is JSON, and the last one of a key counts.

    <name>/schedule    {"schema": 1, "version": 3, "author": "...", "write": "...", "time": ms, "since": ms, "began": 2,
                        "rewound": ms, "source": "...",
                        "schedule": {...} or null}     null: deleted. It stays, so that no version is ever used twice
                       "schema" is 2 where it has a start or an end
    <name>/progress    {"schema": 1, "last": ms, "problem": "...", "began": 2, "waiting": ms, "ahead": [ms, ...],
                        "runs": [[at, written], ...], "missed": [[after, through, count, made up, noticed], ...]}
    /reader            see `claim.py`

A version begins a count of occurrences, or goes on with one: `began` is the version that began it, and a progress says
which count it is about. A count begins when its record was appended, by the broker's clock: then the writer's time for
that doesn't count, where the topic has append times. That time is `since`, or `rewound` where a count begins by going
back to `since`. `write` is unique: a writer knows its own record by it. `waiting`, `ahead`: see `Progress`.

A schedule is written in a transaction of whoever won the right to write (`store.py`), a progress in the one
that writes the occurrences it speaks of (`firing.py`).

What says that it is of a newer schema, or is in a time zone that isn't known here, is *unread*: it is shown as failing,
with the reason, and neither fired nor changed here.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.faults.words import words_of
from sidecar.model.times import with_times
from sidecar.model.version import VERSION
from sidecar.operations.schedules import claim
from sidecar.operations.schedules.claim import Claim
from sidecar.operations.schedules.cron import zone
from sidecar.operations.schedules.schedule import (
    COUNTED_MAX,
    TIME_MAX_MS,
    Entry,
    MissedRuns,
    Progress,
    Run,
    Schedule,
    ScheduleRefused,
    occurrence_id,
    schedule_document,
)

SCHEMA: Final = 2
SCHEMA_WITHOUT_BOUNDS: Final = 1  # of a schedule without start and end, and of all else: older programs read it
SCHEDULES_MAX: Final = 1_000
RECORD_BYTES_MAX: Final = 512 * 1024
WRITES_MAX: Final = 1_000  # the last ones of which it is known whether they are in the topic
PROBLEM_LENGTH_MAX: Final = 500
SHOWN: Final = ("cron", "time_zone", "target", "missed", "paused")  # of one that can't be read: no payload

_MODEL: Final = ConfigDict(frozen=True, extra="ignore", strict=True)
_Time = Annotated[int, Field(ge=0, le=TIME_MAX_MS)]
_Count = Annotated[int, Field(ge=0)]


class _Written(BaseModel):
    """The value of a schedule's record, but for what only some programs understand."""

    model_config = _MODEL
    version: Annotated[int, Field(ge=1)]
    author: str
    time: _Time
    since: _Time
    source: str
    began: Annotated[int, Field(ge=0)] = 0
    rewound: _Time = 0
    write: str = ""


class _Schedule(BaseModel):
    """The rest of it: of this schema or not for us."""

    model_config = _MODEL
    schema_: Annotated[Literal[1, 2], Field(alias="schema")]
    schedule: Annotated[Schedule | None, Field(strict=False)]


class _Progress(BaseModel):
    model_config = _MODEL
    last: _Time
    problem: str = ""
    began: Annotated[int, Field(ge=0)] | None = None
    waiting: _Time = 0
    ahead: tuple[_Time, ...] = ()
    runs: tuple[tuple[_Time, _Time], ...] = ()
    missed: tuple[tuple[_Time, _Time, _Count, _Count, _Time], ...] = ()


class _Claimed(BaseModel):
    model_config = _MODEL
    replica: str
    unread: tuple[str, ...]
    until: _Time


class Unread(NamedTuple):
    """A schedule that this program can't read, as far as it is known."""

    problem: str  # why, and what to do
    is_newer: bool  # a newer program has written it
    source: str = ""
    shown: Mapping[str, Any] = {}  # as it stands there, those of `SHOWN`; nobody changes it


def unread_refused(unread: Unread) -> ScheduleRefused:
    """The refusal of a change: what can't be read here can't be changed here either."""
    if unread.is_newer:
        detail = "A newer version of tickover has written this schedule: change it there, or upgrade this one."
        return ScheduleRefused("schedule-of-newer-version", detail)
    detail = f"This process can't read the schedule: {unread.problem}; or change it at a replica that can read it."
    return ScheduleRefused("schedule-unreadable", detail)


class Known(NamedTuple):
    """One name at one moment. `version` 0: it never was. Without an entry it was deleted, or can't be read here."""

    version: int = 0
    entry: Entry | None = None
    progress: Progress = Progress()
    unread: Unread | None = None


class ScheduleBook:
    """Not safe for threads: its owner guards it."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._writes: dict[str, Known] = {}  # what each of the last writes has made of its name
        self.claim = Claim()  # the last one

    def apply(self, key: bytes, value: bytes, appended_ms: int) -> None:
        """Take in the next record, and when the broker got it (0: not known). What isn't one of ours is passed over."""
        name, _, kind = key.decode(errors="replace").rpartition("/")
        known = self._known.get(name, Known())
        try:
            if key == claim.KEY:
                claimed = _Claimed.model_validate_json(value)
                self.claim = Claim(claimed.replica, claimed.unread, claimed.until)
            elif kind == "schedule" and (newer := _of_newer_version(known, value)) is not None:
                self._known[name] = newer
            elif kind == "schedule":
                written = _Written.model_validate_json(value)
                self._known[name] = known = _with_schedule(known, name, value, _stamped(written, appended_ms))
                self._remember(written.write, known)
            elif kind == "progress":
                said = _Progress.model_validate_json(value)
                self._known[name] = known._replace(progress=_progress(said))
        except ValidationError:
            return

    def made_by(self, write: str) -> Known | None:
        """State in which this write left its name; None: the write isn't in the topic, or was there long ago."""
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

    def unread(self) -> Mapping[str, Known]:
        """All that can't be read here, by name; a new mapping."""
        return {name: known for name, known in self._known.items() if known.unread is not None}


def _progress(said: _Progress) -> Progress:
    runs, missed = tuple(Run(*one) for one in said.runs), tuple(MissedRuns(*one) for one in said.missed)
    return Progress(said.last, said.problem, said.began, said.waiting, said.ahead, runs, missed)


def _stamped(written: _Written, appended_ms: int) -> _Written:
    """With the broker's time for when its count began."""
    if not appended_ms or written.began != written.version:
        return written
    return written.model_copy(update={"rewound" if written.rewound else "since": appended_ms})


def with_times_said(key: bytes, value: bytes | None, appended_ms: int) -> bytes | None:
    """The value of a record that says itself what the topic said of it: when its count began. So it may be copied into
    a topic that has another time for it. Other records are as they were.
    """
    if value is None or not key.endswith(b"/schedule"):
        return value
    try:
        written = _Written.model_validate_json(value)
    except ValidationError:
        return value
    if _stamped(written, appended_ms) is written:
        return value
    return _json({**json.loads(value), "rewound" if written.rewound else "since": appended_ms})


def _with_schedule(known: Known, name: str, value: bytes, written: _Written) -> Known:
    try:
        schedule = _Schedule.model_validate_json(value).schedule
    except ValidationError as error:
        unread = Unread(_why(error), False, written.source, _shown(json.loads(value)))
        return known._replace(version=written.version, entry=None, unread=unread)
    if schedule is None:
        return known._replace(version=written.version, entry=None, unread=None)
    if schedule.name != name:
        return known
    who, when = (written.source, written.version, written.author), (written.time, written.since)
    entry = Entry(schedule, *who, *when, written.began, written.rewound)
    return known._replace(version=written.version, entry=entry, unread=None)


def _of_newer_version(known: Known, value: bytes) -> Known | None:
    """State of a name that a newer program has written, as far as can be told; None: no newer one has."""
    try:
        document = json.loads(value)
    except ValueError:
        return None
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema <= SCHEMA:
        return None
    version, source = document.get("version"), document.get("source")
    known = known._replace(version=version if type(version) is int and version > 0 else known.version or 1, entry=None)
    if "schedule" in document and document["schedule"] is None:
        return known._replace(unread=None)  # deleted
    problem = (
        f"a newer version of tickover has written it (schema {schema}), which this one ({VERSION}) can't read: "
        "upgrade this replica"
    )
    return known._replace(unread=Unread(problem, True, source if isinstance(source, str) else "", _shown(document)))


def _why(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if place == "schedule.time_zone":
        what = f"the time zone {first['input']!s:.100} is not known here: upgrade this replica, whose tzdata lacks it"
    else:
        what = f"this version of tickover ({VERSION}) can't read its {place}: {words_of(first)}; upgrade this replica"
    return what[:PROBLEM_LENGTH_MAX]


def _shown(document: Mapping[str, Any]) -> dict[str, Any]:
    schedule = document.get("schedule")
    if not isinstance(schedule, dict):
        return {}
    return {name: schedule[name] for name in SHOWN if isinstance(schedule.get(name), str | bool)}


def claim_record(said: Claim) -> tuple[bytes, bytes]:
    """Key and value of a claim."""
    return claim.KEY, _json({"replica": said.replica, "unread": said.unread, "until": said.until_ms})


def schedule_record(name: str, entry: Entry, write: str, deleted: bool = False) -> tuple[bytes, bytes]:
    """Key and value of a version; `deleted`: the one that says there is no such schedule any more."""
    is_bounded = entry.schedule.start is not None or entry.schedule.end is not None
    document = {
        "schema": SCHEMA if is_bounded and not deleted else SCHEMA_WITHOUT_BOUNDS,
        "version": entry.version,
        "author": entry.author,
        "write": write,
        "time": entry.time_ms,
        "since": entry.since_ms,
        "began": entry.began,
        "rewound": entry.rewound_ms,
        "source": entry.source,
        "schedule": None if deleted else schedule_document(entry.schedule),
    }
    return f"{name}/schedule".encode(), _json(document)


def progress_record(name: str, progress: Progress) -> tuple[bytes, bytes]:
    """Key and value of how far a schedule has come."""
    document: dict[str, object] = {
        "schema": SCHEMA_WITHOUT_BOUNDS,
        "last": progress.last_ms,
        "problem": progress.problem,
    }
    if progress.began is not None:
        document["began"] = progress.began
    if progress.waiting_ms:
        document["waiting"] = progress.waiting_ms
    if progress.ahead:
        document["ahead"] = progress.ahead
    if progress.runs:
        document["runs"] = progress.runs
    if progress.missed:
        document["missed"] = progress.missed
    return f"{name}/progress".encode(), _json(document)


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def runs_document(schedule: Schedule, progress: Progress) -> dict[str, Any]:
    """Last runs of a schedule as REST shows them, and what was missed; the newest first."""
    there = zone(schedule.time_zone)
    runs = [
        {
            "at": run.at_ms,
            "local": datetime.fromtimestamp(run.at_ms // 1_000, there).isoformat(),
            "written": run.written_ms,
            "id": occurrence_id(schedule.name, run.at_ms),
        }
        for run in reversed(progress.runs)
    ]
    missed = [
        {
            "after": one.after_ms,
            "through": one.through_ms,
            "count": one.number,
            "is_whole": one.number < COUNTED_MAX,
            "made_up": one.made_up,
            "noticed": one.noticed_ms,
        }
        for one in reversed(progress.missed)
    ]
    return {
        "items": [with_times(run, "at", "written") for run in runs],
        "missed": [with_times(one, "after", "through", "noticed") for one in missed],
    }
