"""The bodies of `POST /v1/messages` and `POST /v1/messages:batch`, and the record that a message becomes."""

import base64
import binascii
import math
import re
import uuid
from collections.abc import Container
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    WithJsonSchema,
    model_validator,
)

from api.ports import Acknowledged, Limits, Outgoing
from api.problems import Problem, unprocessable
from api.sources import decision_of
from policies.decision import TARGET_NOT_ALLOWED, Act, Control, Facts, Hold, Quarantine
from policies.duration import is_past, parse_time
from policies.errors import FormatError
from policies.fields import is_topic
from policies.glob import compile_globs
from policies.headers import (
    CONTROL_PREFIX,
    DELAY,
    DELIVER_AT,
    EXPIRES_AT,
    ID,
    OCCURRENCE_IDS,
    SPREAD,
    TARGET,
    TARGET_PARTITION,
)
from policies.model import Policy
from policies.request import INT32_MAX
from policies.table import PolicyTable
from sidecar.model.partitioner import source_partition

NAME_LENGTH_MAX: Final = 1_024
ID_LENGTH_MAX: Final = 1_024
SOURCES_SHOWN_MAX: Final = 20
BATCH_MAX: Final = 500
# Derived ids of two groups, callers or keys never meet.
_NAMESPACE: Final = uuid.UUID("5b0c3f0e-6c0e-4d8e-9a57-1f2f6c8f4d11")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")


def _topic(text: str) -> str:
    if not is_topic(text):
        raise ValueError("not a topic name (letters, digits, and . _ -, at most 249)")
    return text


def _whole(given: object) -> object:
    """A number with a fraction, rounded up: never early. JSON has one kind of numbers: 90000.0 is 90000."""
    if isinstance(given, float):
        return math.ceil(given) if given > 0 else math.floor(given)  # a negative one stays one, and is refused
    return given


def _printable(text: str) -> str:
    if _CONTROL_CHARACTER.search(text):
        raise ValueError("control characters are not allowed here")
    return text


def _free(id: str) -> str:
    if id.startswith(OCCURRENCE_IDS):
        raise ValueError(f"ids that begin with {OCCURRENCE_IDS} are those of schedules' occurrences")
    return id


class Binary(BaseModel):
    """Bytes, for what isn't text."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    base64: str

    def data(self) -> bytes:
        """Raises `Problem`."""
        try:
            return base64.b64decode(self.base64, validate=True)
        except (binascii.Error, ValueError):
            raise unprocessable("invalid-base64", "A base64 text is not base64 (RFC 4648, padded).") from None


Topic = Annotated[str, AfterValidator(_topic), Field(max_length=249)]
HeaderName = Annotated[str, AfterValidator(_printable), Field(min_length=1, max_length=NAME_LENGTH_MAX)]
Content = str | Binary | None
Milliseconds = Annotated[StrictInt, BeforeValidator(_whole), WithJsonSchema({"type": "number"})]


Past = Annotated[bool, Query(description="A time more than a minute in the past is meant: it is due at once")]


class NewMessage(BaseModel):
    """A record to be emitted to `target` when it is due."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [{"target": "mail-out", "key": "42", "value": "hello", "delay": "15m"}],
        },
    )
    source: Topic | None = Field(
        default=None, description="The delay topic; may be left out where one delay policy allows the target"
    )
    target: Topic
    key: Content = None
    value: Content = None
    headers: list[tuple[HeaderName, Content]] | dict[HeaderName, Content] = Field(default_factory=list)
    delay: Milliseconds | str | None = Field(
        default=None, description="A duration: 250ms, 90s, 15m, 2h, 3d, PT90S, or milliseconds"
    )
    deliver_at: Milliseconds | str | None = Field(
        default=None, description="Epoch milliseconds, or RFC 3339 with a zone"
    )
    spread: Milliseconds | str | None = Field(
        default=None, description="How much later it may be, as a duration; limited by the policy's spread_max"
    )
    expires_at: Milliseconds | str | None = Field(
        default=None, description="Not emitted after this time: epoch milliseconds, or RFC 3339 with a zone"
    )
    target_partition: Annotated[StrictInt, Field(ge=0, le=INT32_MAX)] | None = Field(
        default=None, description="Partition of the target; left out: by the key"
    )
    id: (
        Annotated[str, AfterValidator(_printable), AfterValidator(_free), Field(min_length=1, max_length=ID_LENGTH_MAX)]
        | None
    ) = None

    @model_validator(mode="after")
    def _one_time(self) -> "NewMessage":
        if self.delay is not None and self.deliver_at is not None:
            raise ValueError("give delay or deliver_at, not both")
        return self


class Batch(BaseModel):
    """Messages whose faults are told one by one."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    messages: Annotated[list[Any], Field(min_length=1, max_length=BATCH_MAX)]


class NewMessages(Batch):
    """Messages that are accepted or refused each by itself."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "messages": [
                        {"target": "mail-out", "key": "42", "value": "hello", "delay": "15m"},
                        {"target": "mail-out", "key": "43", "value": "hello", "delay": "401d"},
                    ]
                }
            ]
        }
    )
    messages: Annotated[list[NewMessage], Field(min_length=1, max_length=BATCH_MAX)]


class Draft(NamedTuple):
    """A message with its id, as bytes: all that doesn't depend on the cluster."""

    id: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]  # the user's
    controls: dict[str, bytes]

    def record(self, source: str, partitions: int, timestamp_ms: int) -> Outgoing:
        """The record for `source`. Without a key the id decides the partition: a replacement must meet it."""
        partition = source_partition(self.key, self.id.encode(), partitions)
        headers = [*self.headers, *self.controls.items()]
        return Outgoing(source, partition, self.key, self.value, headers, timestamp_ms)

    def due_ms(self, at: Acknowledged, table: PolicyTable, reserved: Container[str]) -> int:
        """When it will be emitted. Raises `Problem` when it would not be."""
        controls: dict[str, Control] = {**self.controls}
        facts = Facts(at.topic, at.partition, at.offset, at.timestamp_ms, self.headers, controls)
        decision = decision_of(facts, table, reserved)
        if isinstance(decision, Hold):
            return decision.due_ms
        assert not isinstance(decision, Act)  # a message asks for none
        fate = "quarantined" if isinstance(decision, Quarantine) else "dead-lettered"
        detail = decision.detail if isinstance(decision, Quarantine) else f"policy {decision.policy}"
        raise unprocessable(
            decision.reason.replace("_", "-"),
            f"The record would be {fate}: {detail}.",
            reason=decision.reason,
            source=at.topic,
        )


def draft(message: NewMessage, message_id: str, limits: Limits) -> Draft:
    """Raises `Problem`."""
    headers = bytes_of(message.headers, limits)
    if any(name.startswith(CONTROL_PREFIX) for name, _ in headers):
        raise unprocessable("reserved-header", f"Header names must not begin with {CONTROL_PREFIX}.")
    controls = _controls(message, message_id)
    if len(headers) + len(controls) > limits.headers:
        raise too_many_headers(f"more than {limits.headers} headers")
    return Draft(message_id, data_of(message.key), data_of(message.value), headers, controls)


def bytes_of(given: list[tuple[str, Content]] | dict[str, Content], limits: Limits) -> list[tuple[str, bytes | None]]:
    """Headers as Kafka has them. Raises `Problem`."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    headers = [(name, data_of(content)) for name, content in pairs]
    if sum(len(name.encode()) + len(value or b"") for name, value in headers) > limits.header_bytes:
        raise too_many_headers(f"more than {limits.header_bytes} bytes of headers")
    return headers


def _controls(message: NewMessage, message_id: str) -> dict[str, bytes]:
    given = {
        DELIVER_AT: message.deliver_at,
        DELAY: message.delay,
        SPREAD: message.spread,
        EXPIRES_AT: message.expires_at,
        TARGET: message.target,
        TARGET_PARTITION: message.target_partition,
        ID: message_id,
    }
    return {name: str(value).encode() for name, value in given.items() if value is not None}


def data_of(content: Content) -> bytes | None:
    """Content as Kafka has it. Raises `Problem`."""
    if isinstance(content, Binary):
        return content.data()
    return None if content is None else content.encode()


def too_many_headers(what: str) -> Problem:
    """422: the engine would set it aside for it."""
    detail = f"The record would be quarantined: {what}."
    return unprocessable("too-many-headers", detail, reason="too_many_headers")


def new_id() -> str:
    """A random id."""
    return str(uuid.uuid4())


def repeatable_id(idempotency_key: str, fingerprint: bytes) -> str:
    """The id of a keyed message: the same for every retry, also after a crash or with an emptied Redis.

    The body is part of it: a key used again after its day must not replace another message that still waits.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{idempotency_key}\n{fingerprint.hex()}"))


def refuse_past(deliver_at: int | str | None, now_ms: int, is_meant: bool) -> None:
    """Raises `Problem` (422) for a time more than a minute ago. What is no time is refused by those who read it."""
    if deliver_at is None or is_meant:
        return
    try:
        time_ms = parse_time(str(deliver_at))
    except FormatError:
        return
    if is_past(time_ms, now_ms):
        detail = "deliver_at is more than a minute in the past; fire is for now, ?past=true for a past that is meant."
        raise unprocessable("in-the-past", detail)


def source_of(target: str, table: PolicyTable) -> str:
    """The one delay topic that leads to `target`. Raises `Problem` when there is none, or a choice."""
    sources = {
        topic: versioned.name
        for versioned in table.policies.values()
        if versioned.policy.delay is not None and _allows(versioned.policy, target)
        for topic in versioned.policy.match.topics
    }
    topics = sorted(topic for topic in sources if is_topic(topic))
    if len(topics) == 1:
        return topics[0]
    if topics:
        detail = f"Several delay topics lead to {target}: name one as source."
        raise unprocessable("ambiguous-source", detail, sources=topics[:SOURCES_SHOWN_MAX])
    if sources:
        detail = f"The policies that allow {target} match topics by globs only: name one as source."
        raise unprocessable("ambiguous-source", detail, policies=sorted(set(sources.values())))
    raise unprocessable("no-source", f"No delay policy allows the target {target}.", reason=TARGET_NOT_ALLOWED)


def _allows(policy: Policy, target: str) -> bool:
    matcher = compile_globs(policy.target.allow)
    return policy.target.topic == target or (matcher is not None and matcher.matches(target))
