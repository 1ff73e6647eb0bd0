"""Figures and times as people read them: filters and macros of all templates."""

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from sidecar.model.times import duration

SHORT: Final = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))  # from, divided by, unit
_MOMENT: Final = re.compile(
    r"(?P<whole>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d))|(?P<clock>\d\d:\d\d:\d\d) UTC"
)


def count(number: float | None) -> str:
    """1204331 is 1,204,331; None is a dash."""
    return "–" if number is None else f"{number:,.0f}"


def short(number: float | None) -> str:
    """1204331 is 1.2 M; below ten thousand all digits."""
    if number is None:
        return "–"
    for least, divisor, unit in SHORT:
        if number >= least:
            return f"{number / divisor:.1f} {unit}"
    return f"{number:,.0f}"


def relative(ms: int | None, now_ms: int) -> str:
    """In 12 s, 16 min ago."""
    if ms is None:
        return ""
    distance = ms - now_ms
    if abs(distance) < 1_000:
        return "now"
    return f"in {duration(distance)}" if distance > 0 else f"{duration(distance)} ago"


def absolute(ms: int | None, zone: ZoneInfo, now_ms: int) -> str:
    """14:31:02.400 on the same day, 2026-11-27 14:31:02 on another."""
    if ms is None:
        return "–"
    try:
        moment = datetime.fromtimestamp(ms / 1_000, zone)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    if moment.date() == datetime.fromtimestamp(now_ms / 1_000, zone).date():
        return moment.strftime("%H:%M:%S.") + f"{ms % 1_000:03d}"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def rfc3339(ms: int) -> str:
    """For machines: the attribute `datetime`."""
    try:
        moment = datetime.fromtimestamp(ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1_000:03d}Z"


def moments(text: str, since_ms: int | None = None) -> Iterator[tuple[str, int | None]]:
    """Pieces of a sentence: words, and times with their epoch ms, which a page shows in the viewer's zone.

    Times are those in RFC 3339, and a clock's (07:44:00 UTC) where it is that of `since_ms`, as only then the day is
    known. Pieces of markup are markup.
    """
    kind, begin = type(text), 0
    for found in _MOMENT.finditer(text):
        ms = since_ms if found["clock"] else _epoch_ms(found["whole"])
        if ms is not None and (not found["clock"] or rfc3339(ms)[11:19] == found["clock"]):
            yield kind(text[begin : found.start()]), None
            yield kind(found[0]), ms
            begin = found.end()
    yield kind(text[begin:]), None


def _epoch_ms(text: str) -> int | None:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except (ValueError, OverflowError):  # no such day
        return None


def size(number: float | None) -> str:
    """1204 is 1.2 kB."""
    if number is None:
        return "–"
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return f"{number:.0f} bytes"


def pretty(document: object) -> str:
    """JSON for people."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def now_ms() -> int:
    """Epoch milliseconds, for pages alone."""
    return time.time_ns() // 1_000_000
