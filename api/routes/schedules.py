"""Schedules over REST: recurring messages, with the same compare-and-set as policies."""

import hashlib
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from api.body import validated
from api.dependencies import Admin, GivenPorts, GivenTrail, JsonBody, Reader, Writer, json_response, let_see
from api.message import NewMessage, draft, repeatable_id, source_of
from api.openapi.description import described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, page
from api.ports import Acknowledged, IdempotencyUnavailable, Ports, SenderUnavailable
from api.problems import Problem, unprocessable
from api.routes import messages
from api.routes.named_resources import (
    IfMatch,
    IfNoneMatch,
    NamedResource,
    refuse_other_name,
    versioned_response,
    with_name,
)
from api.sources import refuse_unless_source
from policies.headers import OCCURRENCE_IDS
from sidecar.model.condition import Pausable, PauseKind
from sidecar.model.times import AskedTime, with_times
from sidecar.operations.dead_letters.masking import Masking
from sidecar.operations.schedules.cron import BadCron, check_meant, zone
from sidecar.operations.schedules.schedule import (
    Base64,
    Content,
    Entry,
    Schedule,
    ScheduleConflict,
    ScheduleRefused,
    SchedulesUnavailable,
    bytes_of,
    is_about,
    occurrence_id,
    schedule_document,
)
from sidecar.operations.schedules.schedule_book import Known, Unread, runs_document, unread_refused

SCHEDULED: Final = PauseKind.SCHEDULE
NEXT_DEFAULT: Final = 5
NEXT_MAX: Final = 100
PAYLOAD: Final = ("key", "value", "headers")
UNWRITTEN: Final = (
    "the replica that writes what schedules owe can't read it, and none that can has taken over: upgrade that one"
)

UNKNOWN: Final = ("schedule-not-found", "schedule-unreadable", "schedule-of-newer-version")
# Of every write; of what makes a version.
WRITES: Final = (
    "precondition-failed", "precondition-required", "invalid-precondition", "schedule-of-newer-version",
    "schedule-unreadable", "schedules-unavailable",
)  # fmt: skip
CHECKS: Final = (
    "name-differs", "cron-step-too-large", "schedule-too-large", "too-many-schedules", "ambiguous-source", "no-source",
    "unknown-source", "not-a-source", "unknown-target", "no-policy", "target-not-allowed", "loop", "too-far",
    "bad-header", "reserved-header", "too-many-headers", "too-large", "invalid-base64", "kafka-unavailable",
)  # fmt: skip
# Of what sends its message now.
RUN_REFUSALS: Final = (
    "unknown-source", "not-a-source", "no-policy", "target-not-allowed", "loop", "expired", "too-many-headers",
    "too-large", "bad-header", "unknown-topic", "invalid-parameter", "invalid-idempotency-key", "request-in-progress",
    "idempotency-unavailable", "kafka-unavailable",
)  # fmt: skip
router = APIRouter(tags=["schedules"])

WithPayload = Annotated[bool, Query(description="Show key, value and headers, masked; needs the role write")]
Count = Annotated[int, Query(ge=1, le=NEXT_MAX, description="How many")]


def _version(ports: Ports, name: str) -> int:
    known = ports.schedules.get(name)
    return 0 if known.entry is None and known.unread is None else known.version


def _problem_of(error: ScheduleConflict | ScheduleRefused | SchedulesUnavailable) -> Problem:
    match error:
        case ScheduleConflict():
            return SCHEDULE.changed_meanwhile(error.version)
        case ScheduleRefused():
            status = 422 if error.type in ("schedule-too-large", "rewind-not-back") else 409
            return Problem(status, error.type, str(error))
        case SchedulesUnavailable():
            detail = f"The topic of schedules can't be written at the moment: {error}."
            return Problem(503, "schedules-unavailable", detail, {"Retry-After": "1"})


SCHEDULE: Final = NamedResource(
    "schedule", "/v1/schedules", _version, (ScheduleConflict, ScheduleRefused, SchedulesUnavailable), _problem_of
)


class Rewind(BaseModel):
    """How far back a schedule goes."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={"examples": [{"to": 1800000000000}]})
    to: AskedTime = Field(description="Occurrences after this time are owed again: RFC 3339, or epoch milliseconds")


@router.get("/v1/schedules", **described("List schedules"))
async def list_schedules(
    caller: Reader,
    ports: GivenPorts,
    trail: GivenTrail,
    limit: Limit = PAGE_DEFAULT,
    cursor: Cursor = None,
    payload: WithPayload = False,
) -> Response:
    """All schedules by name; each with its version, how far it has come, its next occurrence, and what is wrong."""
    if payload:
        let_see(caller, trail, payload=True)
    known, unwritten = {**ports.schedules.alive(), **ports.schedules.unread()}, ports.schedules.unwritten()
    names, following = page(sorted(known), str, limit, cursor)
    now_ms, paused = ports.now_ms(), ports.pauses.alive()
    masking = ports.letters.rules.masking if payload else None
    items = [
        _unread(name, one, one.unread)
        if (one := known[name]).unread is not None
        else _told(one, now_ms, masking, UNWRITTEN if name in unwritten else "", Pausable(SCHEDULED, name) in paused)
        for name in names
    ]
    trail.note(count=len(items))
    return json_response({"items": items, "next": following})


@router.get("/v1/schedules/{name}", **described("Show a schedule", None, *UNKNOWN, headers={200: ["ETag"]}))
async def get_schedule(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, name: str, payload: WithPayload = False
) -> Response:
    """One schedule; the ETag header is its version. One that can't be read here is shown as the list does.

    With `payload` it is as PUT takes it, unless something is masked (`masked`) or no text: PUT refuses such a document.
    """
    if payload:
        let_see(caller, trail, payload=True)
    known = ports.schedules.get(name)
    if known.unread is not None:
        return versioned_response(_unread(name, known, known.unread), known.version)
    return _shown(_current(ports, name), masking=ports.letters.rules.masking if payload else None)


@router.get("/v1/schedules/{name}/next", **described("List the coming occurrences of a schedule", None, *UNKNOWN))
async def list_occurrences(caller: Reader, ports: GivenPorts, name: str, n: Count = NEXT_DEFAULT) -> Response:
    """The coming occurrences, without side effect: each with the id of its message. None while it is paused."""
    schedule = _current(ports, name).schedule
    is_paused = schedule.paused or Pausable(SCHEDULED, name) in ports.pauses.alive()
    items = [
        {
            "at": at_ms,
            "local": datetime.fromtimestamp(at_ms // 1_000, zone(schedule.time_zone)).isoformat(),
            "id": occurrence_id(name, at_ms),
        }
        for at_ms in islice(_coming(schedule, ports.now_ms(), is_paused), n)
    ]
    return json_response({"items": [with_times(item, "at") for item in items]})


@router.get("/v1/schedules/{name}/runs", **described("List the last runs of a schedule", None, *UNKNOWN))
async def list_schedule_runs(caller: Reader, ports: GivenPorts, name: str) -> Response:
    """The last occurrences that were written, the newest first: each with the id of its message, by which what became
    of it is looked up. `missed`: what nobody was there to write, of `count` occurrences, and how many were `made_up`.
    """
    entry, known = _current(ports, name), ports.schedules.get(name)
    return json_response(runs_document(entry.schedule, known.progress))


@router.post(
    "/v1/schedules/{name}/run",
    status_code=202,
    responses={202: {"model": messages.AcceptedOut}},
    **described("Run a schedule now", None, *UNKNOWN, *RUN_REFUSALS, headers={202: ["Idempotency-Replayed"]}),
)
async def run_schedule(
    caller: Writer, ports: GivenPorts, trail: GivenTrail, name: str, idempotency_key: Annotated[str, Header()]
) -> Response:
    """Send the schedule's message now, once for an `Idempotency-Key` and 24 hours, be the schedule paused or not. Its
    occurrences stay as they are. The answer is that of `POST /v1/messages`.
    """
    entry = _current(ports, name)
    content = entry.schedule.model_dump(include={"target", "key", "value", "headers"})
    message = NewMessage.model_validate({**content, "source": entry.source, "delay": 0})
    fingerprint = hashlib.sha256(name.encode()).digest()
    key = messages.scoped(idempotency_key, f"{caller.name}\nschedule {name}")
    id = f"{OCCURRENCE_IDS}{name}:{repeatable_id(key, fingerprint)}"
    try:
        accepted, is_replayed = await messages.send_once(ports, message, False, key, fingerprint, id)
    except IdempotencyUnavailable:
        raise messages.unavailable() from None
    trail.note(source=entry.source, target=entry.schedule.target, **accepted)
    return messages.told(accepted, is_replayed)


@SCHEDULE.put(
    router,
    described(
        "Create or replace a schedule", Schedule, *WRITES, *CHECKS, headers={200: ["ETag"], 201: ["ETag", "Location"]}
    ),
)
async def put_schedule(
    caller: Admin,
    body: JsonBody,
    ports: GivenPorts,
    trail: GivenTrail,
    name: str,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Create a schedule (`If-None-Match: *`) or replace one (`If-Match`). A changed time counts from now on."""
    schedule = validated(Schedule, with_name(body, name))
    trail.note(cron=schedule.cron, time_zone=schedule.time_zone, target=schedule.target, paused=schedule.paused)
    refuse_other_name(schedule.name, name)
    try:
        check_meant(schedule.cron)
    except BadCron as error:
        raise unprocessable("cron-step-too-large", f"cron: {error}.") from None
    expected = SCHEDULE.expected(ports, name, if_match, if_none_match)
    source = await _source(ports, schedule)
    entry = await SCHEDULE.written(lambda: ports.schedules.put(schedule, source, expected, caller.name))
    trail.note(source=source, version=entry.version)
    return _shown(entry, created=not expected)


@router.post(
    "/v1/schedules/{name}/rewind",
    **described("Set a schedule back", Rewind, *WRITES, *UNKNOWN, "rewind-not-back", headers={200: ["ETag"]}),
)
async def rewind_schedule(
    caller: Admin, body: JsonBody, ports: GivenPorts, trail: GivenTrail, name: str, if_match: IfMatch = None
) -> Response:
    """Set back how far a schedule has come (`If-Match`): occurrences after that time are owed again.

    They are written again, and may arrive a second time, but for those that are still to come and written already. What
    is longer ago than `schedules.grace` counts as missed. The answer is the schedule, with its new version.
    """
    to_ms = validated(Rewind, body).to
    trail.note(to=to_ms)
    _current(ports, name)
    expected = SCHEDULE.expected(ports, name, if_match)
    entry = await SCHEDULE.written(lambda: ports.schedules.rewind(name, to_ms, expected, caller.name))
    trail.note(version=entry.version)
    return _shown(entry)


@router.delete("/v1/schedules/{name}", status_code=204, **described("Delete a schedule", None, *WRITES, *UNKNOWN))
async def delete_schedule(caller: Admin, ports: GivenPorts, name: str, if_match: IfMatch = None) -> Response:
    """Delete a schedule. Occurrences that are written ahead of their time still fire; cancel them by their ids."""
    _current(ports, name)
    expected = SCHEDULE.expected(ports, name, if_match)
    await SCHEDULE.written(lambda: ports.schedules.delete(name, expected, caller.name))
    return Response(status_code=204)


def _current(ports: Ports, name: str) -> Entry:
    known = ports.schedules.get(name)
    if known.unread is not None:
        refused = unread_refused(known.unread)
        raise Problem(409, refused.type, str(refused))
    if known.entry is None:
        raise Problem(404, "schedule-not-found", "There is no schedule of this name.")
    return known.entry


def _coming(schedule: Schedule, now_ms: int, is_paused: bool) -> Any:
    return iter(()) if is_paused else schedule.occurrences(now_ms)


def _document(schedule: Schedule, masking: Masking | None) -> dict[str, Any]:
    """The schedule as it may be shown; without `masking` with sizes in place of its payload."""
    document = schedule_document(schedule)
    if masking is None:
        sizes = {
            f"{part}_bytes": None if (data := bytes_of(getattr(schedule, part))) is None else len(data)
            for part in ("key", "value")
        }
        told = {name: value for name, value in document.items() if name not in PAYLOAD}
        return {**with_times(told, "start", "end"), **sizes, "header_count": len(schedule.headers)}
    masked: set[str] = set()

    def shown(name: str, content: Any) -> Any:
        given: Content = Base64(**content) if isinstance(content, dict) else content
        data = bytes_of(given)
        if masking.shows(name, data):
            return content
        masked.add(name)
        return masking.part(name, data)

    for part in document.keys() & {"key", "value"}:
        document[part] = shown(part, document[part])
    headers = document["headers"]
    if isinstance(headers, dict):
        document["headers"] = {name: shown(name, content) for name, content in headers.items()}
    else:
        document["headers"] = [[name, shown(name, content)] for name, content in headers]
    return {**document, "masked": sorted(masked)} if masked else document


def _unread(name: str, known: Known, unread: Unread) -> dict[str, Any]:
    """One that can't be read here, as far as can be told."""
    told = {
        "name": name,
        **unread.shown,
        "source": unread.source or None,
        "version": known.version,
        "state": "failing",
        "problem": unread.problem,
        "written_up_to": known.progress.last_ms or None,
        "next": None,
    }
    return with_times(told, "written_up_to", "next")


def _told(known: Known, now_ms: int, masking: Masking | None, unwritten: str, paused_by_hand: bool) -> dict[str, Any]:
    """An item of the list. `unwritten`: why nobody writes it, whatever is known of it; `paused_by_hand`: see pauses."""
    entry = known.entry
    assert entry is not None  # it is alive
    is_paused = entry.schedule.paused or paused_by_hand
    problem = "" if is_paused else unwritten or known.progress.problem
    told = {
        **_document(entry.schedule, masking),
        "source": entry.source,
        "version": entry.version,
        "state": _state(entry.schedule, problem, now_ms, is_paused),
        "problem": problem or None,
        "written_up_to": (known.progress.last_ms if is_about(known.progress, entry) else 0) or None,
        "next": next(_coming(entry.schedule, now_ms, is_paused), None),
    }
    return with_times(told, "written_up_to", "next")


def _state(schedule: Schedule, problem: str, now_ms: int, is_paused: bool) -> str:
    if is_paused:
        return "paused"
    if problem:
        return "failing"
    return "ended" if schedule.end is not None and schedule.end <= now_ms else "active"


def _shown(entry: Entry, created: bool = False, masking: Masking | None = None) -> Response:
    location = f"{SCHEDULE.path}/{entry.schedule.name}" if created else ""
    return versioned_response(_document(entry.schedule, masking), entry.version, created_at=location)


async def _source(ports: Ports, schedule: Schedule) -> str:
    """The delay topic its messages go through, once it is sure that they would be held. Raises `Problem`."""
    table, now_ms = ports.policies.table, ports.now_ms()
    source = schedule.source or source_of(schedule.target, table)
    message = NewMessage.model_validate(
        {
            **schedule.model_dump(include={"target", "key", "value", "headers"}),
            "source": source,
            "deliver_at": now_ms + ports.schedule_limits.ahead_ms,
        }
    )
    drafted = draft(message, occurrence_id(schedule.name, now_ms), ports.limits)
    try:
        partitions = await ports.sender.partition_count(source)
        if partitions is None:
            raise unprocessable("unknown-source", f"The source topic {source} does not exist: create it first.")
        await refuse_unless_source(ports, source)
        record = drafted.record(source, partitions, now_ms)
        drafted.due_ms(Acknowledged(source, record.partition, 0, now_ms), table, ports.sources.reserved)
        if await ports.sender.partition_count(schedule.target) is None:
            detail = f"The target topic {schedule.target} does not exist: create it first."
            raise unprocessable("unknown-target", detail)
    except SenderUnavailable as error:
        detail = f"Kafka does not say whether the topics exist: {error}."
        raise Problem(503, "kafka-unavailable", detail, {"Retry-After": "1"}) from None
    return source
