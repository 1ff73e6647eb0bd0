"""Pauses over REST: a policy, a source, a target or a schedule is stopped for a while, everywhere, and goes on again.

And the targets, with all that may keep a message from them; breakers are opened and closed by hand here.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from api.access.auth import Caller
from api.body import validated
from api.dependencies import Admin, GivenPorts, GivenTrail, JsonBody, Reader, json_response
from api.openapi.description import described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, page
from api.ports import Ports, SenderUnavailable
from api.problems import Problem, unprocessable
from api.routes.timeline import paused_document
from api.sources import refuse_unless_source
from policies.table import is_limiting, limits_of
from sidecar.model.condition import Pausable, Pause, PauseKind, Switch
from sidecar.model.stats import TargetFlow
from sidecar.model.times import AskedTime, with_times
from sidecar.operations.pauses.store import PAUSES_MAX, PausesUnavailable, TooManyPauses

REASON_LENGTH_MAX: Final = 500
UNAVAILABLE: Final = "pauses-unavailable"
CLOSED: Final = "closed"  # the word of statistics for a breaker that lets retries through

Result = TypeVar("Result")

router = APIRouter(tags=["pauses"])


class NewPause(BaseModel):
    """Why something is paused, and until when: without `until` for as long as nobody resumes it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={"examples": [{"reason": "mail gateway is being moved", "until": 1800000000000}]},
    )
    reason: Annotated[str, Field(min_length=1, max_length=REASON_LENGTH_MAX, description="For whoever finds it paused")]
    until: AskedTime | None = Field(default=None, description="RFC 3339, or epoch ms; left out: until resumed")


class TargetsPage(BaseModel):
    """One page of targets by name, as one replica sees them."""

    replica: str
    items: list[dict[str, Any]]
    next: str | None


class PausesPage(BaseModel):
    """One page of what is paused, by kind and name."""

    items: list[dict[str, Any]]
    next: str | None


@router.get("/v1/pauses", responses={200: {"model": PausesPage}}, **described("List what is paused"))
async def list_pauses(
    caller: Reader, ports: GivenPorts, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None
) -> Response:
    """All that is paused, by kind and name; why, by whom, since when, and until when.

    `waiting` counts the due messages that wait for a target or a policy at the replica that answers.
    """
    alive, waiting = ports.pauses.alive(), ports.stats().paused
    by_key = {f"{one.kind}/{one.name}": one for one in alive}
    keys, following = page(sorted(by_key), str, limit, cursor)
    items = [pause_document(one := by_key[key], alive[one], waiting) for key in keys]
    return json_response({"items": items, "next": following})


@router.put(
    "/v1/pauses/{kind}/{name}",
    **described(
        "Pause a policy, a source, a target or a schedule", NewPause, "in-the-past", "policy-not-found",
        "schedule-not-found", "not-a-source", "unknown-target", "too-many-pauses", "kafka-unavailable", UNAVAILABLE,
    ),
)  # fmt: skip
async def put_pause(
    caller: Admin, body: JsonBody, ports: GivenPorts, trail: GivenTrail, kind: PauseKind, name: str
) -> Response:
    """Pause something, or say otherwise why and until when. Every replica holds to it within 2 s, and after a restart.

    Of a policy and a target what is due waits, of a source nothing new is read, and a schedule writes nothing. What is
    held stays held, and is late by intent.
    """
    asked = validated(NewPause, body)
    trail.note(reason=asked.reason, until=asked.until)
    now_ms, paused = ports.now_ms(), Pausable(kind, name)
    if asked.until is not None and asked.until <= now_ms:
        raise unprocessable("in-the-past", "until: a pause ends later than now.")
    known = ports.pauses.alive().get(paused)
    if known is None:
        await _refuse_unknown_name(ports, paused)
    since_ms = now_ms if known is None else known.since_ms
    pause = Pause(asked.reason, caller.name, since_ms, -1 if asked.until is None else asked.until)
    await _written(lambda: ports.pauses.put(paused, pause))
    return json_response(pause_document(paused, pause, ports.stats().paused))


@router.delete(
    "/v1/pauses/{kind}/{name}",
    status_code=204,
    **described("Resume what is paused", None, "pause-not-found", UNAVAILABLE),
)
async def delete_pause(caller: Admin, ports: GivenPorts, kind: PauseKind, name: str) -> Response:
    """Resume something: what waits for it goes, in order of due."""
    if not await _written(lambda: ports.pauses.remove(Pausable(kind, name))):
        raise Problem(404, "pause-not-found", f"The {kind} of this name is not paused.")
    return Response(status_code=204)


def pause_document(paused: Pausable, pause: Pause, waiting: Mapping[Pausable, int]) -> dict[str, Any]:
    """A pause as it is shown. `waiting`: due messages that wait for it here; null where none can."""
    return {**paused_document(paused, pause), "waiting": waiting.get(paused)}


@router.get("/v1/targets", responses={200: {"model": TargetsPage}}, **described("List targets"))
async def list_targets(
    caller: Reader, ports: GivenPorts, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None
) -> Response:
    """Targets that policies name, and those that something holds up, as the replica that answers sees them.

    `waiting` counts due messages that wait for the rate, the breaker or the end of a pause; `rate` is this replica's
    share, in messages a second; `suspended_since`: no acknowledgement comes since then, and what is for it waits.
    """
    stats, alive = ports.stats(), ports.pauses.alive()
    paused = {one.name: one for one in alive if one.kind is PauseKind.TARGET}
    fixed = {versioned.policy.target.topic for versioned in ports.policies.table.policies.values()}
    known = {*stats.targets, *stats.suspended, *paused, *(topic for topic in fixed if topic is not None)}
    names, following = page(sorted(known), str, limit, cursor)
    items = []
    for name in names:
        flow, pause = stats.targets.get(name, TargetFlow()), paused.get(name)
        told = {
            "name": name,
            "waiting": flow.waiting + (stats.paused.get(pause, 0) if pause is not None else 0),
            "rate": flow.rate or None,
            "breaker": _breaker(ports, name, flow) or None,
            "suspended": name in stats.suspended,
            "suspended_since": stats.suspended_since_ms.get(name),
            "paused": None if pause is None else paused_document(pause, alive[pause]),
        }
        items.append(with_times(told, "suspended_since"))
    return json_response({"replica": stats.replica, "items": items, "next": following})


@router.post(
    "/v1/targets/{name}/close-breaker",
    **described("Close the breaker of a target", None, "breaker-not-found", UNAVAILABLE),
)
async def close_breaker(caller: Admin, ports: GivenPorts, name: str) -> Response:
    """Let the next retries to a target whose breaker is open go as probes, on every replica within 2 s.

    It closes if they stay away, and opens again, for longer, if they come back. One that isn't open stays as it is.
    """
    return await _switched(caller, ports, name, opens=False)


@router.post(
    "/v1/targets/{name}/open-breaker",
    **described("Open the breaker of a target", None, "breaker-not-found", UNAVAILABLE),
)
async def open_breaker(caller: Admin, ports: GivenPorts, name: str) -> Response:
    """Hold up the retries to a target as if too many had failed, on every replica within 2 s.

    After the breaker's `open` some go as probes, and it closes by itself if they stay away. One that is half-open or
    ramps up is open for longer, and one that is open begins its time anew. Delayed messages go on, and a process that
    starts begins with a closed one: pause what must stay stopped.
    """
    return await _switched(caller, ports, name, opens=True)


async def _switched(caller: Caller, ports: Ports, name: str, *, opens: bool) -> Response:
    """Answer of a breaker that was switched by hand. Raises `Problem`."""
    if not _breaker(ports, name, ports.stats().targets.get(name, TargetFlow())):
        detail = "No policy gives the target of this name a breaker. To hold up what goes to it, pause it."
        raise Problem(404, "breaker-not-found", detail)
    switch = Switch(opens, ports.now_ms())
    await _written(lambda: ports.pauses.switch_breaker(name, switch, caller.name))
    return json_response(with_times({"name": name, "by": caller.name, "at": switch.at_ms}, "at"))


def _breaker(ports: Ports, name: str, flow: TargetFlow) -> str:
    """State of a target's breaker; empty: no policy gives it one. Closed where nothing has gone to the target yet."""
    if flow.breaker:
        return flow.breaker
    table = ports.policies.table
    given = is_limiting(table) and limits_of(name, dict.fromkeys(ports.sources.topics, 1), table).breaker
    return CLOSED if given else ""


async def _refuse_unknown_name(ports: Ports, paused: Pausable) -> None:
    """A misspelt name would pause nothing. Raises `Problem`."""
    name = paused.name
    match paused.kind:
        case PauseKind.POLICY:
            if name not in ports.policies.table.policies:
                raise Problem(404, "policy-not-found", "There is no policy of this name.")
        case PauseKind.SCHEDULE:
            if name not in ports.schedules.alive() and name not in ports.schedules.unread():
                raise Problem(404, "schedule-not-found", "There is no schedule of this name.")
        case PauseKind.SOURCE:
            await refuse_unless_source(ports, name)
        case PauseKind.TARGET:
            await _refuse_unknown_target(ports, name)


async def _refuse_unknown_target(ports: Ports, name: str) -> None:
    try:
        if await ports.sender.partition_count(name) is None:
            raise unprocessable("unknown-target", f"The target topic {name} does not exist.")
    except SenderUnavailable as error:
        detail = f"Kafka does not say whether the topic exists: {error}."
        raise Problem(503, "kafka-unavailable", detail, {"Retry-After": "1"}) from None


async def _written(write: Callable[[], Result]) -> Result:
    """Result of a write of pauses, made in a thread. Raises `Problem`."""
    try:
        return await asyncio.to_thread(write)
    except TooManyPauses:
        detail = f"{PAUSES_MAX} things are paused, as many as can be; resume one first."
        raise Problem(409, "too-many-pauses", detail) from None
    except PausesUnavailable as error:
        detail = f"The topic of pauses can't be written at the moment: {error}; the change may still take effect."
        raise Problem(503, UNAVAILABLE, detail, {"Retry-After": "1"}) from None
