"""A schedule as users write it, and what is known of one: its version, and how far it has come."""

import base64
import binascii
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, model_validator

from policies.fields import NAME_PATTERN, TOPIC_LENGTH_MAX, is_topic
from policies.headers import CONTROL_PREFIX, OCCURRENCE_IDS
from sidecar.model.times import AskedTime
from sidecar.operations.schedules.cron import BadCron, check_cron, latest, occurrences, zone_names

NAME_LENGTH_MAX: Final = 1_024  # of a header
HEADERS_MAX: Final = 1_000
ZONE_LENGTH_MAX: Final = 256  # no name is half as long
SHOWN_MAX: Final = 3  # time zones suggested for an unknown one
RUNS_KEPT: Final = 10
MISSED_KEPT: Final = 5
COUNTED_MAX: Final = 1_000  # occurrences that were missed at once: more aren't counted
TIME_MAX_MS: Final = 32_503_680_000_000  # the year 3000: what is later is no time that anybody meant
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")

Missed = Literal["skip", "once", "all"]


class ScheduleConflict(Exception):
    """Somebody else was first: look at the schedule again and decide anew. `version` 0: there is none."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"schedule {name} is at version {version}")
        self.version = version


class ScheduleRefused(Exception):
    """There is no room for it. `type` is the last step of a problem's URI."""

    def __init__(self, type: str, detail: str) -> None:
        super().__init__(detail)
        self.type = type


class SchedulesUnavailable(Exception):
    """The topic can't be read or written now."""


def _topic(text: str) -> str:
    if not is_topic(text):
        raise ValueError("not a topic name (letters, digits, and . _ -, at most 249)")
    return text


def _cron(text: str) -> str:
    """Fields apart by one space."""
    cron = " ".join(text.split())
    try:
        check_cron(cron)
    except BadCron as error:
        raise ValueError(str(error)) from None
    return cron


def _zone(text: str) -> str:
    names = zone_names()
    if text in names:
        return text
    wanted = text.replace(" ", "_").casefold()
    near = sorted(name for name in names if name.casefold() == wanted or name.casefold().endswith(f"/{wanted}"))
    hint = f"; did you mean {' or '.join(near[:SHOWN_MAX])}?" if near else ""
    raise ValueError(f"not an IANA time zone like Europe/Berlin{hint}")


def _header(text: str) -> str:
    if text.startswith(CONTROL_PREFIX):
        raise ValueError(f"header names must not begin with {CONTROL_PREFIX}")
    if _CONTROL_CHARACTER.search(text):
        raise ValueError("control characters are not allowed here")
    return text


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64 (RFC 4648, padded)") from None
    return text


class Base64(BaseModel):
    """Bytes, for what isn't text."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    base64: Annotated[str, AfterValidator(_base64)]


Topic = Annotated[str, AfterValidator(_topic), Field(max_length=TOPIC_LENGTH_MAX)]
HeaderName = Annotated[str, AfterValidator(_header), Field(min_length=1, max_length=NAME_LENGTH_MAX)]
Content = str | Base64 | None
Time = Annotated[AskedTime, Field(le=TIME_MAX_MS)]


class Schedule(BaseModel):
    """A message that is sent again and again, whenever its cron expression says so."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        title="tickover schedule",
        json_schema_extra={
            "examples": [
                {"name": "daily-report", "cron": "0 9 * * MON-FRI", "time_zone": "Europe/Berlin", "target": "reports"}
            ],
        },
    )
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    cron: Annotated[str, AfterValidator(_cron)] = Field(
        description="Minute, hour, day, month, weekday; with six fields the first is seconds"
    )
    time_zone: Annotated[str, Field(max_length=ZONE_LENGTH_MAX), AfterValidator(_zone)] = Field(
        default="UTC", description="IANA name"
    )
    source: Topic | None = Field(
        default=None, description="The delay topic; may be left out where one delay policy allows the target"
    )
    target: Topic
    key: Content = None
    value: Content = None
    headers: Annotated[list[tuple[HeaderName, Content]] | dict[HeaderName, Content], Field(max_length=HEADERS_MAX)] = (
        Field(default_factory=list)
    )
    missed: Missed = Field(
        default="skip", description="What happens to occurrences that nobody was there to write in time"
    )
    paused: StrictBool = False
    start: Time | None = Field(
        default=None, description="No occurrence before this time: RFC 3339, or epoch milliseconds. Left out: at once"
    )
    end: Time | None = Field(
        default=None,
        description="No occurrence at or after this time: RFC 3339, or epoch milliseconds. Left out: never",
    )

    @model_validator(mode="after")
    def _in_order(self) -> "Schedule":
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ValueError("end must be later than start")
        return self

    def times(self) -> tuple[object, ...]:
        """Fields that say when a schedule fires; whoever changes any of them begins anew."""
        return self.cron, self.time_zone, self.paused, self.start, self.end

    def occurrences(self, after_ms: int) -> Iterator[int]:
        """Epoch milliseconds of its occurrences after a time, strictly rising, be it paused or not."""
        found = occurrences(self.cron, self.time_zone, max(after_ms, self._before_start_ms))
        return found if self.end is None else takewhile(lambda at_ms: at_ms <= self._last_ms, found)

    def latest(self, after_ms: int, until_ms: int, count: int) -> list[int]:
        """The last `count` occurrences after one time and not after another, rising."""
        after_ms, until_ms = max(after_ms, self._before_start_ms), min(until_ms, self._last_ms)
        return latest(self.cron, self.time_zone, after_ms, until_ms, count) if after_ms < until_ms else []

    @property
    def _before_start_ms(self) -> int:
        return -1 if self.start is None else self.start - 1

    @property
    def _last_ms(self) -> int:
        return TIME_MAX_MS if self.end is None else self.end - 1


def schedule_document(schedule: Schedule) -> dict[str, Any]:
    """The schedule as plain data that reads back equal: what REST, the command line and the topic show."""
    return schedule.model_dump(mode="json", exclude_none=True)


def bytes_of(content: Content) -> bytes | None:
    """A key, value or header as Kafka has it."""
    if isinstance(content, Base64):
        return base64.b64decode(content.base64)
    return None if content is None else content.encode()


def headers_of(schedule: Schedule) -> list[tuple[str, bytes | None]]:
    """The user's headers as Kafka has them."""
    pairs = schedule.headers.items() if isinstance(schedule.headers, dict) else schedule.headers
    return [(name, bytes_of(content)) for name, content in pairs]


def occurrence_id(name: str, at_ms: int) -> str:
    """The id of the message that an occurrence becomes: never the same for two of them."""
    return f"{OCCURRENCE_IDS}{name}:{at_ms}"


class Entry(NamedTuple):
    """A schedule as the topic has it. Versions of a name count from 1 and are never used twice."""

    schedule: Schedule
    source: str  # the delay topic, chosen when it was written
    version: int
    author: str
    time_ms: int
    since_ms: int  # occurrences up to here are none of this version's
    began: int = 0  # the version with which its count began; 0: written by a program that knew of no counts
    rewound_ms: int = 0  # when its count began by going back; 0: it began at `since_ms`


class Run(NamedTuple):
    """An occurrence that was written: its time, and when that was done (ahead of it, or late)."""

    at_ms: int
    written_ms: int


class MissedRuns(NamedTuple):
    """Occurrences after one time, up to and with another, that nobody was there to write; at `COUNTED_MAX` there may be
    more. `made_up`: how many of them were written all the same, at `noticed_ms`.
    """

    after_ms: int
    through_ms: int
    number: int
    made_up: int
    noticed_ms: int


class Progress(NamedTuple):
    """How far a schedule has come."""

    last_ms: int = 0  # all occurrences up to here are written, or passed over for good
    problem: str = ""  # why nothing is written; empty: nothing is wrong
    began: int | None = (
        None  # the count it is about (`Entry.began`); None: said by a program that didn't know of counts
    )
    waiting_ms: int = 0  # since when occurrences wait for Kafka or their source: none is missed that came later
    ahead: tuple[int, ...] = ()  # written ones that are to come, or came a moment ago; of earlier counts, too
    runs: tuple[Run, ...] = ()  # the last ones, rising; of earlier counts, too
    missed: tuple[MissedRuns, ...] = ()  # the last ones, rising; of earlier counts, too


def is_about(progress: Progress, entry: Entry) -> bool:
    """Whether it is about the count that this version goes on with.

    A schedule that was deleted and made again, or has new times, or was set back, begins a new count. Programs that
    knew of no counts took the later time, and so it is where one of them had a hand in it.
    """
    if progress.began is None:
        return not entry.rewound_ms  # else it is what was gone back behind
    return entry.began in (0, progress.began)


def standing(entry: Entry, progress: Progress) -> Progress:
    """How far this version has come: what was said of another count of its name is none of its."""
    if is_about(progress, entry):
        return progress._replace(last_ms=max(progress.last_ms, entry.since_ms), began=entry.began)
    ahead = tuple(at_ms for at_ms in progress.ahead if at_ms > entry.rewound_ms)
    return progress._replace(last_ms=entry.since_ms, began=entry.began, waiting_ms=0, ahead=ahead)
