"""Durations and times as users write them, turned into whole milliseconds. Always rounded up: never early."""

import math
import re
from collections.abc import Callable
from datetime import date
from typing import Final

from policies.errors import FormatError

DAY_MS: Final = 86_400_000
DURATION_MAX_MS: Final = 3_650 * DAY_MS
TIME_MAX_MS: Final = 253_402_300_799_999  # the last millisecond of the year 9999
TEXT_LENGTH_MAX: Final = 64
PAST_MS: Final = 60_000  # what is asked for a time longer ago than this is most likely a mistake
SECONDS_BELOW: Final = 100_000_000_000  # as milliseconds a time in early 1973; as seconds one in the year 5138

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS}
_PLAIN: Final = re.compile(r"(\d+)(?:\.(\d+))?(ms|s|m|h|d|w)?", re.ASCII)
_SUM: Final = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", re.ASCII)
_SUM_UNITS_MS: Final = (7 * DAY_MS, DAY_MS, 3_600_000, 60_000, 1_000, 1)
_FRACTION: Final = re.compile(r"\d*\.\d*", re.ASCII)
_CLOCK: Final = re.compile(r"\d+:\d\d(?::\d\d)?(?:\.\d+)?", re.ASCII)
_ISO: Final = re.compile(
    r"P(?=[\dT])(?:(\d+(?:\.\d+)?)W)?(?:(\d+(?:\.\d+)?)D)?"
    r"(?:T(?=\d)(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_ISO_UNITS_MS: Final = (7 * DAY_MS, DAY_MS, 3_600_000, 60_000, 1_000)
_ISO_CALENDAR: Final = re.compile(r"P[\d.,]+[YM]", re.ASCII)
_DIGITS: Final = re.compile(r"\d+", re.ASCII)
_RFC_3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?"
    r"(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)?",
    re.ASCII,
)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


def parse_duration(given: object, max_ms: int = DURATION_MAX_MS) -> int:
    """Milliseconds of `250ms`, `90s`, `15m`, `2h`, `3d`, `1w`, a sum from the largest unit down (`1h30m`, only seconds
    with a fraction), ISO 8601 (`PT90S`), or a bare number of milliseconds.

    A fraction of a millisecond counts as a whole one. Raises FormatError, also beyond `max_ms`.
    """
    if isinstance(given, float):
        if not math.isfinite(given):
            raise FormatError("a duration must be finite", given)
        duration_ms = math.ceil(given)
        if given < 0:
            raise FormatError("a duration cannot be negative", given)
    elif isinstance(given, int) and not isinstance(given, bool):
        duration_ms = given
    elif isinstance(given, str):
        duration_ms = _duration_of_text(given)
    else:
        raise FormatError("a duration is a text like 90s or a number of milliseconds", given)
    if duration_ms < 0:
        raise FormatError("a duration cannot be negative", given)
    if duration_ms > max_ms:
        raise FormatError(f"a duration cannot be longer than {max_ms // DAY_MS}d", given)
    return duration_ms


def parse_written_duration(given: object) -> int:
    """`parse_duration` of what people write into policies and settings: a bare number must be whole.

    In a record or a request 1.5 comes from a program that counts in milliseconds; in a file nobody knows of what.
    Raises FormatError.
    """
    is_fraction = isinstance(given, float) and not given.is_integer()
    if is_fraction or (isinstance(given, str) and _FRACTION.fullmatch(given)):
        raise FormatError("a fraction needs its unit: write 1.5s, or 2ms", given)
    return parse_duration(given)


def parse_typed_duration(text: str) -> int:
    """`parse_duration` of what people type on a command line: a number needs its unit, but for 0.

    Programs that send a bare number count in milliseconds; of people who type one, most mean seconds. Raises
    FormatError.
    """
    duration_ms = parse_duration(text)
    if duration_ms and (plain := _PLAIN.fullmatch(text)) and plain.group(3) is None:
        raise FormatError(f"a duration needs its unit: {text}s? {text}ms?", text)
    return duration_ms


def _duration_of_text(text: str) -> int:
    if len(text) > TEXT_LENGTH_MAX:
        raise FormatError(f"a duration has at most {TEXT_LENGTH_MAX} characters", text)
    if plain := _PLAIN.fullmatch(text):
        whole, fraction, unit = plain.groups()
        return _ceiling(whole, fraction or "", _UNITS[unit or "ms"])
    if text and (sum_ := _SUM.fullmatch(text)):
        return _sum_of(sum_.groups(), _SUM_UNITS_MS)
    # ISO 8601 has both marks, and the comma first.
    if (iso := _ISO.fullmatch(text.replace(",", "."))) and any(iso.groups()):
        return _duration_of_iso(text, iso.groups())
    if _CLOCK.fullmatch(text):
        raise FormatError("a duration isn't written as on a clock: write 1h30m, or 90s", text)
    if text.startswith("-"):
        raise FormatError("a duration cannot be negative", text)
    if _ISO_CALENDAR.match(text):
        raise FormatError("years and months have no fixed length: use days", text)
    if text.lower().lstrip("+") in ("nan", "inf", "infinity"):
        raise FormatError("a duration must be finite", text)
    raise FormatError("not a duration (write 250ms, 90s, 15m, 2h, 3d, 1h30m or PT90S)", text)


def _duration_of_iso(text: str, parts: tuple[str | None, ...]) -> int:
    given = [part for part in parts if part is not None]
    if any("." in part for part in given[:-1]):
        raise FormatError("only the smallest unit of an ISO 8601 duration may have a fraction", text)
    return _sum_of(parts, _ISO_UNITS_MS)


def _sum_of(parts: tuple[str | None, ...], units_ms: tuple[int, ...]) -> int:
    total_ms = 0
    for part, unit_ms in zip(parts, units_ms, strict=True):
        if part is not None:
            whole, _, fraction = part.partition(".")
            total_ms += _ceiling(whole, fraction, unit_ms)
    return total_ms


def _ceiling(whole: str, fraction: str, unit_ms: int) -> int:
    """`whole.fraction` units as milliseconds, rounded up; in integers, because floats round on their own."""
    scale: int = 10 ** len(fraction)
    return -(-int(whole + fraction) * unit_ms // scale)


def format_duration(duration_ms: int) -> str:
    """The shortest single-unit text that parses back to the same number of milliseconds."""
    if duration_ms:
        for unit in ("d", "h", "m", "s"):
            if duration_ms % _UNITS[unit] == 0:
                return f"{duration_ms // _UNITS[unit]}{unit}"
    return f"{duration_ms}ms"


def parse_time(text: str) -> int:
    """Epoch milliseconds of a whole number of them, or of an RFC 3339 time with its zone; seconds may be left out, and
    the zone be `Z`, `+01:00`, `+0100` or `+01`.

    A fraction of a millisecond counts as a whole one. Raises FormatError, also for numbers that look like another unit.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise FormatError(f"a time has at most {TEXT_LENGTH_MAX} characters", text)
    if _DIGITS.fullmatch(text):
        time_ms = _milliseconds_of(text)
    elif rfc_3339 := _RFC_3339.fullmatch(text):
        time_ms = _time_of_parts(text, rfc_3339.group)
    elif text.startswith("-"):
        raise FormatError("a time cannot be negative", text)
    else:
        raise FormatError("not a time (write whole epoch milliseconds, or RFC 3339 with a zone)", text)
    if time_ms < 0:
        raise FormatError("a time cannot be before 1970", text)
    if time_ms > TIME_MAX_MS:
        raise FormatError("a time cannot be after the year 9999", text)
    return time_ms


def is_past(time_ms: int, now_ms: int) -> bool:
    """Whether a time is so long ago that nobody may have meant it; clocks that differ a little don't make it so."""
    return time_ms < now_ms - PAST_MS


def _milliseconds_of(digits: str) -> int:
    number = int(digits)
    if 0 < number < SECONDS_BELOW:
        raise FormatError("looks like epoch seconds: a time as a number is in milliseconds", digits)
    if number > TIME_MAX_MS:
        raise FormatError("looks like epoch microseconds or nanoseconds: a time as a number is in milliseconds", digits)
    return number


def _time_of_parts(text: str, part: Callable[[int], str | None]) -> int:
    year, month, day, hour, minute, second = (int(part(index) or "0") for index in range(1, 7))
    if part(8) is None and part(9) is None:
        raise FormatError("a time needs its zone (Z or +01:00)", text)
    zone_hour, zone_minute = int(part(10) or "0"), int(part(11) or "0")
    if hour > 23 or minute > 59 or second > 60 or zone_hour > 23 or zone_minute > 59:
        raise FormatError("not a time of day", text)
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        raise FormatError("not a day of the calendar", text) from None
    zone_ms = (zone_hour * 60 + zone_minute) * 60_000 * (-1 if part(9) == "-" else 1)
    whole_ms = days * DAY_MS + (hour * 60 + minute) * 60_000 + second * 1_000 - zone_ms
    if second == 60 and whole_ms % DAY_MS:
        raise FormatError("a leap second comes only before midnight UTC", text)
    return whole_ms + _ceiling("0", part(7) or "", 1_000)
