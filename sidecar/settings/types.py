"""The forms in which settings are written: durations, sizes, topic names, lists, client settings."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
)

from policies.duration import format_duration, parse_written_duration
from policies.fields import SIZE_PATTERN, is_topic, parse_size

REPLICAS_MAX: Final = 100
LIST_MAX: Final = 100
# What the JSON Schema of the settings says of texts, so that the chart refuses others before they reach a cluster. It
# takes all that the validators below take, and a little more. Go's regular expressions read it: no lookaround.
DURATION_PATTERN: Final = r"^((\d+(\.\d+)?(ms|[smhdw])?)+|P[\dWDTHMS.,]+)$"
TOPIC_PATTERN: Final = "^[A-Za-z0-9._-]{1,249}$"
TOPIC_GLOB_PATTERN: Final = r"^[A-Za-z0-9._\-*?\[\]!]{1,249}$"
TOPIC_GLOBS_PATTERN: Final = r"^[A-Za-z0-9._\-*?\[\]!,\s]*$"
# Client settings whose values are never shown.
SECRET_CLIENT_KEY: Final = re.compile(
    r".*(password|secret|passphrase|private\.key|key\.pem|jaas|sasl\.oauthbearer\.config).*"
)


# Marks on fields (`json_schema_extra`): see `live.py`.
WHILE_RUNNING: Final[dict[str, JsonValue]] = {"while_running": "yes"}
CONTENT_WHILE_RUNNING: Final[dict[str, JsonValue]] = {"while_running": "content"}


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True)


def _comma_list(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _topic(name: str) -> str:
    if not is_topic(name):
        raise ValueError("must be a topic name: at most 249 of A-Z a-z 0-9 . _ -")
    return name


def _topic_or_default(name: str) -> str:
    return _topic(name) if name else name


def _topic_glob(pattern: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._\-*?\[\]!]{1,249}", pattern) is None:
        raise ValueError(f"{pattern!r} is neither a topic name nor a glob (* ? [...])")
    return pattern


def _client(value: object) -> object:
    """Client settings are text; YAML's numbers and booleans are taken too, and secret ones are wrapped."""
    if not isinstance(value, Mapping):
        return value
    properties: dict[str, str | SecretStr] = {}
    for key, item in value.items():
        if isinstance(item, SecretStr):
            properties[str(key)] = item
            continue
        if item is None or isinstance(item, list | dict):
            raise ValueError(f"{key} must be text, a number or a boolean, as librdkafka reads it")
        text = str(item).lower() if isinstance(item, bool) else str(item)
        properties[str(key)] = SecretStr(text) if SECRET_CLIENT_KEY.fullmatch(str(key)) else text
    return properties


def _replicas(count: int) -> int:
    if count != -1 and not 1 <= count <= REPLICAS_MAX:
        raise ValueError("must be 1 to 100, or -1 for the broker's default")
    return count


def data_dir() -> Path:
    """Where a user's programs keep their data."""
    try:
        return Path.home() / ".local" / "share" / "tickover"
    except RuntimeError:  # a container whose user has no home
        return Path(tempfile.gettempdir()) / "tickover"


AnyCase: Final = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)  # log levels: `INFO`
WrittenDuration = Annotated[str, Field(pattern=DURATION_PATTERN)] | Annotated[int, Field(ge=0)]
WrittenSize = Annotated[str, Field(pattern=SIZE_PATTERN)] | Annotated[int, Field(ge=0)]
WrittenGlobs = (
    list[Annotated[str, Field(pattern=TOPIC_GLOB_PATTERN)]] | Annotated[str, Field(pattern=TOPIC_GLOBS_PATTERN)]
)
ListItem = Annotated[str, Field(min_length=1, max_length=200)]
Milliseconds = Annotated[
    int,
    BeforeValidator(parse_written_duration, json_schema_input_type=WrittenDuration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
]
Bytes = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=WrittenSize)]
Replicas = Annotated[
    int,
    AfterValidator(_replicas),
    WithJsonSchema({"type": "integer", "minimum": -1, "maximum": REPLICAS_MAX, "not": {"const": 0}}),
]
Topic = Annotated[str, AfterValidator(_topic), WithJsonSchema({"type": "string", "pattern": TOPIC_PATTERN})]
TopicOrDefault = Annotated[
    str,
    AfterValidator(_topic_or_default),
    WithJsonSchema({"type": "string", "pattern": TOPIC_PATTERN.replace("{1,", "{0,")}),
]
TopicGlobs = Annotated[
    tuple[Annotated[str, AfterValidator(_topic_glob)], ...],
    BeforeValidator(_comma_list, json_schema_input_type=WrittenGlobs),
]
CommaList = Annotated[
    tuple[ListItem, ...],
    Field(max_length=LIST_MAX),
    BeforeValidator(_comma_list, json_schema_input_type=Annotated[list[ListItem], Field(max_length=LIST_MAX)] | str),
]
Client = Annotated[
    dict[str, str | SecretStr],
    BeforeValidator(_client, json_schema_input_type=dict[str, str | int | float | bool]),
]
