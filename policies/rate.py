"""Rates as users write them: `500/s`, `30/m`, `10/h`, or a bare number of records a second. Held as records an hour,
which makes all of them whole numbers.
"""

import re
from typing import Final

HOUR_S: Final = 3_600
RATE_MAX: Final = 1_000_000_000 * HOUR_S  # an hour

_HOURLY: Final = {"s": HOUR_S, "m": 60, "h": 1}
_RATE: Final = re.compile(r"([0-9]{1,13})/([smh])")


def parse_rate(value: object) -> int:
    """Records an hour. Raises ValueError."""
    per_hour = 0
    if isinstance(value, int) and not isinstance(value, bool):
        per_hour = value * HOUR_S
    elif isinstance(value, str) and (found := _RATE.fullmatch(value)):
        per_hour = int(found[1]) * _HOURLY[found[2]]
    else:
        raise ValueError("not a rate: 500/s, 30/m, 10/h, or a whole number of records a second")
    if not 1 <= per_hour <= RATE_MAX:
        raise ValueError(f"a rate is at least 1/h and at most {RATE_MAX // HOUR_S}/s")
    return per_hour


def format_rate(per_hour: int) -> str:
    """The shortest text that reads back the same."""
    unit = next(unit for unit, hourly in _HOURLY.items() if per_hour % hourly == 0)
    return f"{per_hour // _HOURLY[unit]}/{unit}"
