"""The instants a cron expression means in a time zone. Pure: time is an argument.

Expressions are cronsim's, with five fields, or six of which the first is seconds. As in Debian's cron there are two
kinds, told apart by their text:

    by the clock on the wall    neither hour nor minute begins with *. A time that a change of the clock leaves out is
                                moved, minute by minute, to the first that exists; one that comes twice fires once, the
                                first time.
    by time that passes         hour or minute begins with *. Times that are left out are left out, and what comes twice
                                fires twice: every quarter of an hour stays every quarter of an hour.

cronsim walks both kinds as local times without a zone; what they mean is decided here. So expressions with seconds are
treated as those without (cronsim itself fires them twice, or not at all), and clocks may change by any length (cronsim
walks in whole hours: where a clock changes by half an hour, all that came later was half an hour off). Zones come from
the package tzdata and not from the machine, so that all replicas of one version count alike.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

import tzdata
from cronsim import CronSim, CronSimError

CRON_LENGTH_MAX: Final = 256
CHECKED_FROM_MS: Final = 1_704_067_200_000  # 2024: always the same, so that what was valid once stays valid
WINDOW_MS: Final = 60_000  # first length of a search backwards; doubled until enough is found
_GAP_MAX: Final = timedelta(hours=25)  # no change of the clock leaves out more: Samoa left out a day
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_YEARS_KEPT_MAX: Final = 4_096  # of all zones: whose changes of the clock are remembered
_TEXT: Final = re.compile(r"[0-9A-Za-z*/,#\- ]+")
_FIELDS: Final = (
    ("second", 0, 59), ("minute", 0, 59), ("hour", 0, 23), ("day-of-month", 1, 31), ("month", 1, 12), ("weekday", 0, 7),
)  # fmt: skip
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class BadCron(ValueError):
    """The expression means nothing, or nothing that ever happens."""


@cache
def zone_names() -> frozenset[str]:
    """The IANA names that are known, links included."""
    return frozenset(files(tzdata).joinpath("zones").read_text("utf-8").split())


@cache
def zone(name: str) -> ZoneInfo:
    """The zone of a name from `zone_names`."""
    assert name in zone_names()
    with files(tzdata).joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def check_cron(cron: str) -> None:
    """Raises BadCron with what is wrong, also of what is right and never happens."""
    if len(cron) > CRON_LENGTH_MAX or not _TEXT.fullmatch(cron):
        what = f"a cron expression has at most {CRON_LENGTH_MAX} letters, digits, spaces and * / , - #"
        raise BadCron(what + _hint(cron[:CRON_LENGTH_MAX]))
    count = len(cron.split())
    if count not in (5, 6):
        raise BadCron(f"has {count} fields: give 5 (minute hour day month weekday), or 6 with seconds first")
    try:
        found = next(occurrences(cron, "UTC", CHECKED_FROM_MS), None)
    except CronSimError as error:
        raise BadCron(f"the {_field(error)}{_hint(cron) or '; see crontab(5)'}") from None
    if found is None:
        raise BadCron("never happens: no day of 50 years fits")


def check_meant(cron: str) -> None:
    """Raises BadCron for what can be read, and can't be meant: `*/90` in minutes is hourly. Call `check_cron` first.

    Schedules are checked so when they are written, and no more when they are read: what was valid once stays valid.
    """
    texts = cron.split()
    for (name, first, last), text in zip(_FIELDS[-len(texts) :], texts, strict=True):
        for part in text.split(","):
            span, _, step = part.partition("/")
            if not step.isdecimal():
                continue
            low, _, high = span.partition("-")
            begin = first if low == "*" else int(low) if low.isdecimal() else first
            end = int(high) if high.isdecimal() else last
            if int(step) > end - begin:
                raise BadCron(
                    f"the {name} {part} is {begin} alone, as the next one after a step of {step} is beyond {end}: "
                    f"write {begin}, or a smaller step; what is rarer goes into the next field"
                )


def _hint(cron: str) -> str:
    """Advice on what to write instead of what other crons take; empty: none."""
    text = cron.strip().lower()
    if text in _NICKNAMES:
        return f": write {_NICKNAMES[text]} for {text}"
    if text.startswith("@"):
        return ": nicknames such as @reboot mean nothing here"
    if "?" in text:
        return ": write * instead of ?"
    if "w" in text.replace("wed", ""):
        return ": W (the nearest weekday) isn't known; write the days, or MON-FRI as the weekday"
    return ""


def _field(error: CronSimError) -> str:
    name = str(error).removeprefix("Bad ")
    if name == "day-of-week":
        return "day-of-week cannot be read: 0 to 7, or SUN to SAT; a range ends later than it begins, so FRI-SUN is 5-7"
    if name == "day-of-month":  # the one field that may be well formed and still impossible
        return "day-of-month cannot be read, or is in none of the months: such a day never comes"
    return f"{name} cannot be read"


def occurrences(cron: str, zone_name: str, after_ms: int) -> Iterator[int]:
    """Epoch milliseconds after `after_ms`, strictly rising; ends where the next 50 years have none."""
    last_ms = after_ms
    for instant in _instants(cron, zone(zone_name), datetime.fromtimestamp(after_ms // 1_000, UTC)):
        at_ms = round(instant.timestamp()) * 1_000
        # What is moved out of a gap may coincide with what is behind it, and the walk may have begun before the gap.
        if at_ms > last_ms:
            last_ms = at_ms
            yield at_ms


def latest(cron: str, zone_name: str, after_ms: int, until_ms: int, count: int) -> list[int]:
    """The last `count` of those after `after_ms` and not after `until_ms`, rising.

    Costs what a few times as many occurrences cost, however far apart the two times are.
    """
    length_ms = WINDOW_MS
    while True:
        start_ms = max(until_ms - length_ms, after_ms)
        found: list[int] = []
        for at_ms in occurrences(cron, zone_name, start_ms):
            if at_ms > until_ms:
                break
            found.append(at_ms)
        if len(found) >= count or start_ms <= after_ms:
            return found[-count:]
        length_ms *= 2


def _instants(cron: str, place: ZoneInfo, after: datetime) -> Iterator[datetime]:
    fields = cron.split()[-5:]
    if fields[0].startswith("*") or fields[1].startswith("*"):
        return _by_passing_time(cron, place, after + _SECOND)
    return _by_the_wall(cron, place, after)


def _by_the_wall(cron: str, place: ZoneInfo, after: datetime) -> Iterator[datetime]:
    local = after.astimezone(place)
    if (after - _GAP_MAX).astimezone(place).utcoffset() != local.utcoffset():
        local -= _GAP_MAX  # what a gap has moved behind `after` stands before it
    for wall in CronSim(cron, local.replace(tzinfo=None, fold=0)):
        instant = wall.replace(tzinfo=place)
        while instant != instant.astimezone(UTC).astimezone(place):
            instant += _MINUTE
        yield instant


def _by_passing_time(cron: str, place: ZoneInfo, first: datetime) -> Iterator[datetime]:
    """From `first` on. Between two changes of the clock local time passes evenly; at each the walk begins anew."""
    begin: datetime | None = first
    while begin is not None:
        first, begin = begin, None
        offset = first.astimezone(place).utcoffset() or timedelta()
        for wall in CronSim(cron, (first + offset - _SECOND).replace(tzinfo=None)):
            instant = wall.replace(tzinfo=UTC) - offset
            if (begin := _change(place.key, first, instant)) is not None:
                break
            first = instant
            yield instant


def _change(zone_name: str, after: datetime, until: datetime) -> datetime | None:
    """The first change of the zone's clock after one instant and not after another."""
    for year in range(after.year, until.year + 1):
        for change in _changes(zone_name, year):
            if after < change <= until:
                return change
    return None


@lru_cache(maxsize=_YEARS_KEPT_MAX)
def _changes(zone_name: str, year: int) -> tuple[datetime, ...]:
    """The first seconds of new distances from UTC, after the beginning of the year in UTC, the next one's included."""
    place = zone(zone_name)
    found = []
    day = datetime(year, 1, 1, tzinfo=UTC)
    while day.year == year:
        low, high = day, day + _DAY
        if _offset(place, low) != _offset(place, high):
            while high - low > _SECOND:
                middle = low + (high - low) // 2
                middle = middle.replace(microsecond=0)
                low, high = (middle, high) if _offset(place, middle) == _offset(place, low) else (low, middle)
            found.append(high)
        day += _DAY
    return tuple(found)


def _offset(place: ZoneInfo, instant: datetime) -> timedelta | None:
    return instant.astimezone(place).utcoffset()
