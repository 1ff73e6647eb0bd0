"""Model of a policy: one frozen model for the policies file, REST and the command line.

Durations are written as `90s` or `PT90S` and held as whole milliseconds. A change in what this model accepts
needs a new schema number in `policies/topic/log.py`: all readers of the policy topic must accept the same records.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from policies.duration import DAY_MS
from policies.fields import (
    GLOBS_MAX,
    NAME_PATTERN,
    Duration,
    Glob,
    Globs,
    HeaderName,
    Percent,
    Rate,
    Size,
    Topic,
    TopicGlob,
)

ATTEMPTS_MAX: Final = 10_000
BACKOFF_MAX_DEFAULT_MS: Final = DAY_MS
DELAY_MAX_DEFAULT_MS: Final = 400 * DAY_MS
PARKED_MAX: Final = 100_000_000
PARKED_MAX_DEFAULT: Final = 100_000
GLOB_TEXT_MAX: Final = 65_536  # characters of all globs of a policy that comes over REST
QUOTA_MAX: Final = (1 << 53) - 1  # what every JSON reader keeps exact


Jitter = Literal["none", "full", "equal"]
ManagedBy = Literal["file", "api"]

_SETTINGS: Final = ConfigDict(frozen=True, extra="forbid")


class Match(BaseModel):
    """Records of a policy: the topic matches one of `topics`, and every header named has a value that matches."""

    model_config = _SETTINGS
    topics: Annotated[tuple[TopicGlob, ...], Field(min_length=1, max_length=GLOBS_MAX)]
    headers: Annotated[dict[HeaderName, Glob], Field(max_length=100)] = Field(default_factory=dict)


class FixedBackoff(BaseModel):
    """A fixed wait before every attempt."""

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


class Breaker(BaseModel):
    """When retries to a target pause: of at least `minimum` within `window` so many came back as failures. After `open`
    some `probes` go; if too many of those come back within `open`, it is open again, for longer.
    """

    model_config = _SETTINGS
    failures: Percent = Field(default="50%", validate_default=True)
    window: Annotated[Duration, Field(ge=1_000)] = 60_000
    minimum: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 20
    open: Annotated[Duration, Field(ge=1_000)] = 30_000
    probes: Annotated[int, Field(strict=True, ge=1, le=1_000)] = 5


def _check_spread(spread: int | None, spread_max: int | None) -> None:
    if spread is not None and spread_max is not None and spread > spread_max:
        raise ValueError("spread cannot be longer than spread_max")


class Retry(BaseModel):
    """Retries of failed records. `attempts` counts the deliveries after the first failure, so a record is delivered
    `attempts` + 1 times at most; then it is dead-lettered.
    """

    model_config = _SETTINGS
    attempts: Annotated[int, Field(strict=True, ge=0, le=ATTEMPTS_MAX)]
    backoff: Annotated[Backoff, Field(discriminator="kind")]
    timeout: Duration | None = None
    retry_on: Annotated[Globs, Field(min_length=1)] = ("*",)
    give_up_on: Globs = ()
    breaker: Breaker | None = None
    spread: Duration | None = None
    spread_max: Duration | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        _check_spread(self.spread, self.spread_max)
        return self


class Delay(BaseModel):
    """How long records are held: `default` when no header says otherwise, `max` at most.

    Here as in `retry`: `spread` is how much later than due a record may be, so that herds move apart, and `spread_max`
    the most that a record may allow by header (left out: no more than `spread`).
    """

    model_config = _SETTINGS
    default: Duration | None = None
    max: Duration = DELAY_MAX_DEFAULT_MS
    spread: Duration | None = None
    spread_max: Duration | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        _check_spread(self.spread, self.spread_max)
        if self.default is not None and self.default > self.max:
            raise ValueError("default cannot be longer than max")
        return self


class Order(BaseModel):
    """Order by key: while a record of a key waits, later ones of that key and policy are parked behind it, at most
    `parked_max` in a partition of the source. `when_full`: its intake waits, or they are dead-lettered.
    """

    model_config = _SETTINGS
    by: Literal["key"]
    parked_max: Annotated[int, Field(strict=True, ge=1, le=PARKED_MAX)] = PARKED_MAX_DEFAULT
    when_full: Literal["pause", "dead_letter"] = "pause"


class Quota(BaseModel):
    """Limits on what is held under the policy, in each partition of its sources: so many records, so many bytes of
    keys, values and headers. A record that comes when a limit is reached is quarantined as `quota_exceeded`.
    """

    model_config = _SETTINGS
    records: Annotated[int, Field(strict=True, ge=1, le=QUOTA_MAX)] | None = None
    bytes: Annotated[Size, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.records is None and self.bytes is None:
            raise ValueError("quota needs records or bytes")
        return self


def _order_of(value: Any) -> Any:
    return {"by": value} if isinstance(value, str) else value


class Target(BaseModel):
    """Where records go: `topic` when no header says otherwise; a header may name what `allow` matches.

    `rate` limits what all replicas together emit to each of these targets, `burst` (left out: what one second brings)
    what they emit at once after a pause. Of several policies that limit one target the lowest rate counts.
    """

    model_config = _SETTINGS
    topic: Topic | None = None
    allow: Annotated[tuple[TopicGlob, ...], Field(max_length=GLOBS_MAX)] = ()
    rate: Rate | None = None
    burst: Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)] | None = None

    @model_validator(mode="after")
    def _check_burst(self) -> Self:
        if self.burst is not None and self.rate is None:
            raise ValueError("burst needs rate")
        return self


class DeadLetter(BaseModel):
    """Where records go that are given up."""

    model_config = _SETTINGS
    topic: Topic


_ORDER_SCHEMA: Final = {"anyOf": [{"const": "key"}, Order.model_json_schema(), {"type": "null"}]}


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
            ],
            "examples": [
                {
                    "name": "reminders",
                    "match": {"topics": ["reminders"]},
                    "delay": {"default": "15m", "max": "400d"},
                    "target": {"allow": ["mail-*", "push"]},
                    "dead_letter": {"topic": "reminders-dlq"},
                }
            ],
        },
    )
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    match: Match
    retry: Retry | None = None
    delay: Delay | None = None
    order: Annotated[Order | None, BeforeValidator(_order_of), WithJsonSchema(_ORDER_SCHEMA)] = None
    quota: Quota | None = None
    target: Target = Target()
    dead_letter: DeadLetter | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.retry is None) == (self.delay is None):
            raise ValueError("a policy has exactly one of retry and delay")
        if self.order is not None and self.retry is None:
            raise ValueError("order is for retry policies: delayed records are due when they say")
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


def glob_text_length(policy: Policy) -> int:
    """Characters of all its globs together: what they cost to match grows with it.

    Not a matter of the model, so that whatever the topic or a file holds is read as before: `GLOB_TEXT_MAX` is for who
    takes a policy from callers.
    """
    match, retry = policy.match, policy.retry
    failures = () if retry is None else (*retry.retry_on, *retry.give_up_on)
    return sum(map(len, (*match.topics, *match.headers.values(), *policy.target.allow, *failures)))


def policy_schema() -> dict[str, Any]:
    """The published JSON Schema (2020-12) of a policy as users write it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Policy.model_json_schema()}
