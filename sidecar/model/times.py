"""Times as documents tell them: epoch milliseconds for programs, and beside each the time in RFC 3339 for people. And
types of fields in which people give one: as either. A text of digits is such a number.

    {"due": 1800000000000}    ->    {"due": 1800000000000, "due_utc": "2027-01-15T08:00:00.000Z"}

Which fields are times is said by whoever makes a document: a count by topic may have the name of any of them. Pure.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from policies.duration import TIME_MAX_MS, parse_time

SUFFIX: Final = "_utc"
DURATION_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
DURATION_PARTS_MAX: Final = 2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rfc_3339(time_ms: object) -> str | None:
    """Text of a time in epoch milliseconds, in UTC; None for what is no time from 1970 to 9999."""
    if not isinstance(time_ms, int) or not 0 <= time_ms <= TIME_MAX_MS:
        return None
    time = _EPOCH + timedelta(milliseconds=time_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_times(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Document with `<name>_utc` behind each of these fields that it has; one that it has already is made anew."""
    words = {name + SUFFIX for name in names}
    told: dict[str, Any] = {}
    for name, value in document.items():
        if name not in words:
            told[name] = value
        if name in names:
            told[name + SUFFIX] = rfc_3339(value)
    return told


def for_people(data: Any) -> Any:
    """Plain data as `with_times` made it, at any depth, with each time once: in RFC 3339, where it is one."""
    if isinstance(data, Mapping):
        twins = {name for name in data if name + SUFFIX in data and data[name + SUFFIX] == rfc_3339(data[name])}
        words = {name + SUFFIX for name in twins}
        return {
            name: rfc_3339(value) or value if name in twins else for_people(value)
            for name, value in data.items()
            if name not in words
        }
    return [for_people(item) for item in data] if isinstance(data, list | tuple) else data


def duration(ms: float | None) -> str:
    """7800000 is 2 h 10 min, in words of people: two units at most, below a second milliseconds; a dash for None."""
    if ms is None or not math.isfinite(ms):
        return "–"
    left = abs(int(ms))
    if left < 1_000:
        return f"{left} ms"
    parts: list[str] = []
    for size, unit in DURATION_UNITS:
        if left >= size and len(parts) < DURATION_PARTS_MAX:
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts)


def asked_time(given: object) -> object:
    """Epoch milliseconds of a text, a number, or a time as YAML has it. Raises FormatError."""
    if isinstance(given, datetime):
        return parse_time(given.isoformat())
    is_number = isinstance(given, int) and not isinstance(given, bool)
    return parse_time(str(given)) if is_number or isinstance(given, str) else given


def check_units(*times_ms: int | None) -> None:
    """Raise FormatError where a number looks like seconds, or like microseconds."""
    for time_ms in times_ms:
        asked_time(time_ms)


def stored_time(given: object) -> object:
    """Epoch milliseconds of a text; a number as it is."""
    return parse_time(given) if isinstance(given, str) else given


AskedTime = Annotated[
    int, BeforeValidator(asked_time, json_schema_input_type=int | str), Field(strict=True, ge=0, le=TIME_MAX_MS)
]
# Of plans, which may be stored already with any number. Where people ask by one, `check_units` is for what they ask.
StoredTime = Annotated[
    int, BeforeValidator(stored_time, json_schema_input_type=int | str), Field(strict=True, ge=0, le=TIME_MAX_MS)
]
