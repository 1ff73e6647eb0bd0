"""Types of fields in which people give a time, for all models: epoch milliseconds, or a text in RFC 3339 with its zone.

A text of digits is such a number. They raise FormatError, which a model takes for a fault of the field.
"""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field

from policies.duration import TIME_MAX_MS, parse_time


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
