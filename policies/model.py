"""What a policy is: one frozen model for the policies file, REST and the command line.

Durations are written as `90s` or `PT90S` and held as whole milliseconds. A change in what this model accepts
needs a new schema number in `policies/log.py`: all readers of the policy topic must accept the same records.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from policies.duration import DAY_MS, format_duration, parse_duration

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9.-]{0,62}$"
TOPIC_LENGTH_MAX: Final = 249
ATTEMPTS_MAX: Final = 10_000
BACKOFF_MAX_DEFAULT_MS: Final = DAY_MS
DELAY_MAX_DEFAULT_MS: Final = 400 * DAY_MS
GLOBS_MAX: Final = 1_000
CONTROL_PREFIX: Final = "tickover-"

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_GLOB: Final = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,249}")

Jitter = Literal["none", "full", "equal"]
ManagedBy = Literal["file", "api"]


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


Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "examples": ["250ms", "90s", "15m", "2h", "PT90S"],
                },
                {"type": "number", "minimum": 0, "description": "milliseconds"},
            ]
        }
    ),
]
Topic = Annotated[str, AfterValidator(_check_topic), Field(max_length=TOPIC_LENGTH_MAX)]
TopicGlob = Annotated[str, AfterValidator(_check_topic_glob), Field(max_length=TOPIC_LENGTH_MAX)]
Glob = Annotated[str, Field(min_length=1, max_length=1_024)]
HeaderName = Annotated[str, AfterValidator(_check_header), Field(min_length=1, max_length=1_024)]
Globs = Annotated[tuple[Glob, ...], Field(max_length=GLOBS_MAX)]

_SETTINGS: Final = ConfigDict(frozen=True, extra="forbid")


class Match(BaseModel):
    """Which records: the topic matches one of `topics`, and every header named has a value that matches."""

    model_config = _SETTINGS
    topics: Annotated[tuple[TopicGlob, ...], Field(min_length=1, max_length=GLOBS_MAX)]
    headers: Annotated[dict[HeaderName, Glob], Field(max_length=100)] = Field(default_factory=dict)


class FixedBackoff(BaseModel):
    """The same wait before every attempt."""

    model_config = _SETTINGS
    kind: Literal["fixed"]
    delay: Duration
    jitter: Jitter = "none"


class ExponentialBackoff(BaseModel):
    """A wait that grows by `factor` with every attempt, up to `max`."""

    model_config = _SETTINGS
    kind: Literal["exponential"]
    initial: Duration
    factor: Annotated[float, Field(strict=True, ge=1, le=1_000, allow_inf_nan=False)] = 2.0
    max: Duration = BACKOFF_MAX_DEFAULT_MS
    jitter: Jitter = "none"

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max < self.initial:
            raise ValueError("max cannot be shorter than initial")
        return self


class ListBackoff(BaseModel):
    """One wait per attempt; the last repeats."""

    model_config = _SETTINGS
    kind: Literal["list"]
    delays: Annotated[tuple[Duration, ...], Field(min_length=1, max_length=ATTEMPTS_MAX)]
    jitter: Jitter = "none"


Backoff = FixedBackoff | ExponentialBackoff | ListBackoff


class Retry(BaseModel):
    """What happens to failed records: `attempts` deliveries after the first failure, then dead-lettered."""

    model_config = _SETTINGS
    attempts: Annotated[int, Field(strict=True, ge=0, le=ATTEMPTS_MAX)]
    backoff: Annotated[Backoff, Field(discriminator="kind")]
    timeout: Duration | None = None
    retry_on: Annotated[Globs, Field(min_length=1)] = ("*",)
    give_up_on: Globs = ()


class Delay(BaseModel):
    """How long records are held: `default` when no header says otherwise, `max` at most."""

    model_config = _SETTINGS
    default: Duration | None = None
    max: Duration = DELAY_MAX_DEFAULT_MS

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.default is not None and self.default > self.max:
            raise ValueError("default cannot be longer than max")
        return self


class Target(BaseModel):
    """Where records go: `topic` when no header says otherwise; a header may name what `allow` matches."""

    model_config = _SETTINGS
    topic: Topic | None = None
    allow: Annotated[tuple[TopicGlob, ...], Field(max_length=GLOBS_MAX)] = ()


class DeadLetter(BaseModel):
    """Where records go that are given up."""

    model_config = _SETTINGS
    topic: Topic


class Policy(BaseModel):
    """One rule: which records, how long they wait, where they go; with exactly one of `retry` and `delay`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        title="tickover policy",
        json_schema_extra={
            "oneOf": [
                {
                    "required": ["retry"],
                    "properties": {"retry": {"type": "object"}, "delay": {"type": "null"}},
                },
                {
                    "required": ["delay"],
                    "properties": {"delay": {"type": "object"}, "retry": {"type": "null"}},
                },
            ]
        },
    )
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    match: Match
    retry: Retry | None = None
    delay: Delay | None = None
    target: Target = Target()
    dead_letter: DeadLetter | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.retry is None) == (self.delay is None):
            raise ValueError("a policy has exactly one of retry and delay")
        if self.delay is not None and self.target.topic is None and not self.target.allow:
            raise ValueError("a delay policy needs target.topic or target.allow: it has nowhere to emit to")
        return self


@dataclass(frozen=True, slots=True)
class Versioned:
    """A policy as the policy topic has it. Versions of a name count from 1 and are never used twice."""

    policy: Policy
    version: int
    author: str
    time_ms: int
    managed_by: ManagedBy

    @property
    def name(self) -> str:
        return self.policy.name


@dataclass(frozen=True, slots=True)
class Removed:
    """A version of a name that says: no such policy from here on."""

    name: str
    version: int
    author: str
    time_ms: int
    managed_by: ManagedBy


def policy_document(policy: Policy) -> dict[str, Any]:
    """The policy as plain data that reads back equal: what REST, the command line and the topic show."""
    return policy.model_dump(mode="json", exclude_none=True)


def policy_schema() -> dict[str, Any]:
    """The published JSON Schema (2020-12) of a policy as users write it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Policy.model_json_schema()}
