"""`POST /v1/policies/explain`: what would become of a record, without side effect."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, model_validator
from starlette.responses import Response

from api.body import validated
from api.dependencies import GivenPorts, JsonBody, Reader, json_response
from api.message import Content, HeaderName, Topic, bytes_of
from api.openapi.description import described
from api.ports import Limits, Ports
from api.problems import Problem
from api.routes.policies import refuse_long_globs
from api.sources import allowed
from policies.decision import Act, Decision, Facts, Hold, Quarantine
from policies.duration import TIME_MAX_MS
from policies.explain import Explanation, Step, explain
from policies.headers import OFFSET_MAX
from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.model.header_codec import split
from sidecar.model.record import Place
from sidecar.model.times import stored_time, with_times

NO_TIMESTAMP: Final = -1
PARTITION_MAX: Final = (1 << 31) - 1
PLACE_LENGTH_MAX: Final = 300  # of the longest topic, and more digits than there are
THREADS: Final = 1  # more would only take the interpreter from each other, and from the engine
WAITING_MAX: Final = 16

router = APIRouter(tags=["policies"])


# A number is taken as it is: records have any.
Timestamp = Annotated[
    int,
    BeforeValidator(stored_time, json_schema_input_type=int | str),
    Field(strict=True, ge=NO_TIMESTAMP, le=TIME_MAX_MS),
]


class RecordIn(BaseModel):
    """A record that may not exist. No decision depends on key and value: a record that is there may be given whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    topic: Topic | None = None
    partition: Annotated[StrictInt, Field(ge=0, le=PARTITION_MAX)] = 0
    offset: Annotated[StrictInt, Field(ge=0, le=OFFSET_MAX)] = 0
    place: Annotated[str, Field(max_length=PLACE_LENGTH_MAX)] | None = Field(
        default=None, description="topic/partition/offset, in place of these three"
    )
    timestamp: Timestamp | None = Field(
        default=None, description="RFC 3339, or epoch milliseconds, -1 for none; default: now"
    )
    key: Content = None
    value: Content = None
    headers: list[tuple[HeaderName, Content]] | dict[HeaderName, Content] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_place(self) -> "RecordIn":
        if (self.place is None) == (self.topic is None):
            raise ValueError("give topic or place, one of them")
        if self.place is not None and self.model_fields_set & {"partition", "offset"}:
            raise ValueError("place says partition and offset already")
        if self.place is not None and Place.of_text(self.place) is None:
            raise ValueError("place must be topic/partition/offset")
        return self

    @property
    def lies_at(self) -> Place:
        """Where it lies, or would lie."""
        named = Place.of_text(self.place or "")
        return named or Place(self.topic or "", self.partition, self.offset)


class ExplainRequest(BaseModel):
    """`policy`: a policy, or the name of one, to be the only one asked; left out: all that there are."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"record": {"topic": "reminders", "headers": {"tickover-target": "push", "tickover-delay": "90s"}}}
            ]
        },
    )
    policy: Policy | str | None = None
    record: RecordIn


class Explainer:
    """`policies.explain` off the event loop: the globs of a policy that nobody has checked yet take their time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "api-explain")
        self._under_way = 0

    async def explain(self, facts: Facts, table: PolicyTable) -> Explanation:
        """Raises `Problem` (503) when too many wait."""
        if self._under_way >= WAITING_MAX:
            detail = f"{WAITING_MAX} explanations are under way already."
            raise Problem(503, "explain-busy", detail, {"Retry-After": "1"})
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, explain, facts, table)
        finally:
            self._under_way -= 1


@router.post(
    "/v1/policies/explain",
    **described(
        "Explain what would become of a record", ExplainRequest, "policy-not-found", "globs-too-long",
        "too-many-headers", "invalid-base64", "explain-busy",
    ),
)  # fmt: skip
async def explain_record(request: Request, caller: Reader, body: JsonBody, ports: GivenPorts) -> Response:
    """The decision for a record and the whole schedule of its attempts. Nothing is sent or changed."""
    asked = validated(ExplainRequest, body)
    if isinstance(asked.policy, Policy):
        refuse_long_globs(asked.policy)
    record = asked.record
    headers = split(bytes_of(record.headers, Limits()))
    timestamp_ms = ports.now_ms() if record.timestamp is None else record.timestamp
    facts = Facts(*record.lies_at, timestamp_ms, headers.user, headers.controls)
    explanation = await request.app.state.explainer.explain(facts, _table(ports, asked.policy))
    decision = allowed(explanation.decision, ports.sources.reserved)
    if decision != explanation.decision:
        explanation = replace(explanation, decision=decision, schedule=(), end=None, truncated=False)
    return json_response(_document(explanation))


def _table(ports: Ports, policy: Policy | str | None) -> PolicyTable:
    table = ports.policies.table
    if policy is None:
        return table
    if isinstance(policy, str):
        found = table.policies.get(policy)
        if found is None:
            raise Problem(404, "policy-not-found", "There is no policy of this name.")
    else:
        known = table.policies.get(policy.name)
        found = Versioned(policy, known.version + 1 if known else 1, "", 0, "api")
    return PolicyTable(table.version, MappingProxyType({found.name: found}))


def _document(explanation: Explanation) -> dict[str, Any]:
    return {
        "decision": with_times(_decision(explanation.decision), "due", "first_failure", "expires"),
        "policy": explanation.policy,
        "candidates": list(explanation.candidates),
        "schedule": [_step(step) for step in explanation.schedule],
        "end": explanation.end,
        "truncated": explanation.truncated,
    }


def _decision(decision: Decision) -> dict[str, Any]:
    """Times are epoch milliseconds; what a decision marks as absent (-1, 0 attempts) is left out as null."""
    match decision:
        case Quarantine(reason, detail):
            return {"kind": "quarantine", "reason": reason, "detail": detail}
        case Hold():
            return {
                "kind": "hold",
                "due": decision.due_ms,
                "target": decision.target,
                "target_partition": _given(decision.target_partition),
                "policy": decision.policy,
                "attempt": decision.attempt or None,
                "first_failure": _given(decision.first_failure_ms),
                "expires": _given(decision.expires_ms),
                "dead_letter": decision.dead_letter,
                "id": decision.id,
            }
        case Act():
            return {
                "kind": "act",
                "action": decision.action,
                "id": decision.id,
                "due": _given(decision.due_ms),
                "policy": decision.policy,
                "if_offset": _given(decision.if_offset),
            }
        case _:
            return {
                "kind": "dead",
                "reason": decision.reason,
                "topic": decision.topic,
                "policy": decision.policy,
                "attempt": decision.attempt or None,
                "first_failure": _given(decision.first_failure_ms),
                "id": decision.id,
            }


def _given(number: int) -> int | None:
    return None if number < 0 else number


def _step(step: Step) -> dict[str, Any]:
    told = {
        "attempt": step.attempt or None,
        "delay_min": step.delay_min_ms,
        "delay_max": step.delay_max_ms,
        "due_min": step.due_min_ms,
        "due_max": step.due_max_ms,
    }
    return with_times(told, "due_min", "due_max")
