"""The kinds of values in a policy: durations, rates, sizes, topics, globs; what is refused, and how they are shown."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from policies.duration import format_duration, parse_written_duration
from policies.errors import FormatError

HOUR_S: Final = 3_600
RATE_MAX: Final = 1_000_000_000 * HOUR_S  # an hour
TOPIC_LENGTH_MAX: Final = 249
NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9.-]{0,62}$"
NAME_WORDS: Final = "must be 1 to 63 of a-z 0-9 . - and begin with a letter or digit"
GLOBS_MAX: Final = 1_000
CONTROL_PREFIX: Final = "tickover-"

SIZE_MAX: Final = (1 << 53) - 1  # bytes: what every JSON reader keeps exact
# For schemas: takes all that `parse_size` takes, and a little more. Go's regular expressions read it: no lookaround.
SIZE_PATTERN: Final = r"^\s*[0-9]{1,16}(\.[0-9]{1,9})?\s*([bB]|[kmgtKMGT][iI]?[bB])?\s*$"

_SIZE: Final = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,9}))?\s*(?:([kmgt]?)(i?)(b?))", re.IGNORECASE | re.ASCII)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_HOURLY: Final = {"s": HOUR_S, "m": 60, "h": 1}
_RATE: Final = re.compile(r"([0-9]{1,13})/([smh])")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PERCENT: Final = re.compile(r"([0-9]{1,3})%")
_TOPIC_GLOB: Final = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,249}")


def parse_rate(value: object) -> int:
    """Records an hour, which makes all rates whole numbers, from `500/s`, `30/m`, `10/h`, or a bare number of records a
    second. Raises ValueError.
    """
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


def parse_size(value: object, min_bytes: int = 0, max_bytes: int = SIZE_MAX) -> int:
    """Bytes of `2kB`, `1.5MB`, `1GB`, `1TB` (powers of 1,000), of `2KiB`, `1MiB`, `1GiB`, `1TiB` (of 1,024), of `200B`,
    or of a bare number of them, from `min_bytes` to `max_bytes`. Big and small letters are the same.

    Raises FormatError, also for what is no whole number of bytes.
    """
    size, rest = -1, 0
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= SIZE_MAX:
        size, rest = int(value), int(value != int(value))
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value.strip(" \t\n\r\f"))):
        whole, fraction, power, binary, b = found.groups()
        if (power or binary) and not (power and b):
            raise FormatError("a size needs its unit in full: 2kB is 2,000 bytes, 2KiB is 2,048", value)
        factor = (1_024 if binary else 1_000) ** _POWERS[power.lower()]
        size, rest = divmod(int(whole + (fraction or "")) * factor, 10 ** len(fraction or ""))
    if size < 0:
        raise FormatError("not a size (write 2kB for 2,000 bytes, 2KiB for 2,048, or a number of bytes)", value)
    if rest:
        raise FormatError("a size is a whole number of bytes", value)
    if not min_bytes <= size <= max_bytes:
        raise FormatError(f"a size here is {min_bytes} to {max_bytes} bytes", value)
    return size


def is_topic(text: str) -> bool:
    """Whether Kafka accepts it as the name of a topic."""
    return _TOPIC.fullmatch(text) is not None and text not in (".", "..")


def _check_topic(text: str) -> str:
    if not is_topic(text):
        raise ValueError("not a topic name (letters, digits, and . _ -, at most 249)")
    return text


def _check_topic_glob(text: str) -> str:
    if not _TOPIC_GLOB.fullmatch(text):
        raise ValueError("not a topic name or glob (letters, digits, and . _ - * ? [...], at most 249)")
    return text


def _check_header(text: str) -> str:
    if text.startswith(CONTROL_PREFIX):
        raise ValueError("a policy cannot be matched on tickover's own headers")
    return text


def _percent_of(value: object) -> int:
    if isinstance(value, str) and (found := _PERCENT.fullmatch(value)):
        return int(found[1])
    raise ValueError("not a percentage such as 50%")


Duration = Annotated[
    int,
    BeforeValidator(parse_written_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "examples": ["250ms", "90s", "15m", "2h", "1h30m", "PT90S"],
                },
                {"type": "number", "minimum": 0, "description": "milliseconds"},
            ]
        }
    ),
]
Rate = Annotated[
    int,
    BeforeValidator(parse_rate),
    PlainSerializer(format_rate, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": "^[0-9]{1,13}/[smh]$", "examples": ["500/s", "30/m", "10/h"]},
                {"type": "integer", "minimum": 1, "description": "records a second"},
            ]
        }
    ),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": SIZE_PATTERN, "examples": ["500MB", "1GiB"]},
                {"type": "integer", "minimum": 1, "maximum": SIZE_MAX, "description": "bytes"},
            ]
        }
    ),
]
Percent = Annotated[
    int,
    BeforeValidator(_percent_of),
    Field(ge=1, le=100),
    PlainSerializer(lambda percent: f"{percent}%", return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,3}%$", "examples": ["50%"]}),
]
Topic = Annotated[str, AfterValidator(_check_topic), Field(max_length=TOPIC_LENGTH_MAX)]
TopicGlob = Annotated[str, AfterValidator(_check_topic_glob), Field(max_length=TOPIC_LENGTH_MAX)]
Glob = Annotated[str, Field(min_length=1, max_length=1_024)]
HeaderName = Annotated[str, AfterValidator(_check_header), Field(min_length=1, max_length=1_024)]
Globs = Annotated[tuple[Glob, ...], Field(max_length=GLOBS_MAX)]
