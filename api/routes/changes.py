"""Changing many held messages over REST: plan, run, abort. The work is done beside; 202 says that it has begun."""

import re
from typing import Annotated, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, model_validator
from starlette.responses import Response

from api.body import validated
from api.dependencies import GivenPorts, GivenTrail, JsonBody, Reader, Writer, json_response
from api.message import Past, refuse_past
from api.openapi.description import LOOK_UP, described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, decode, encode, unknown_cursor
from api.problems import Problem
from api.routes.held import missing_document, unavailable
from api.routes.jobs import JobKind, KeyPrefix, add_common, shown, told
from policies.decision import RESCHEDULE
from policies.duration import DURATION_MAX_MS, parse_duration
from sidecar.lookup.query import LookUpUnavailable
from sidecar.model.record import with_places
from sidecar.model.times import AskedTime, check_units, with_times
from sidecar.operations.bulk.changes import NotAllAnswer, Wanted
from sidecar.operations.bulk.plan import Change, Selection, When
from sidecar.operations.bulk.receipt_log import Place

SHIFT: Final = re.compile(r"([+-]?)(.+)")
PLACE: Final = re.compile(r"(\d{1,18})/(\d{1,9})", re.ASCII)

router = APIRouter(tags=["changes"])
CHANGE: Final[JobKind[Change]] = JobKind(
    "change",
    "changes",
    "changed",
    lambda ports: ports.changes,
    lambda change: {"action": change.plan.action, "outcomes": change.progress.outcomes},
)


def _shift(given: object) -> object:
    """Milliseconds of a duration with a sign: `+10m`, `-90s`, `10m`."""
    if isinstance(given, str) and (match := SHIFT.fullmatch(given)):
        sign, duration = match.groups()
        return parse_duration(duration) * (-1 if sign == "-" else 1)
    return given


Duration = Annotated[
    int, BeforeValidator(parse_duration, json_schema_input_type=str | int), Field(ge=0, le=DURATION_MAX_MS)
]
Shift = Annotated[
    int,
    BeforeValidator(_shift, json_schema_input_type=str | int),
    Field(strict=True, ge=-DURATION_MAX_MS, le=DURATION_MAX_MS),
]


class NewChange(BaseModel):
    """Change of held messages: which ones, and how."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={"examples": [{"action": "cancel", "filter": {"policy": "reminders", "target": "mail-out"}}]},
    )
    action: Literal["cancel", "reschedule", "fire"]
    filter: Selection = Selection()
    delay: Duration | None = Field(default=None, description="To reschedule: from now")
    deliver_at: AskedTime | None = Field(default=None, description="To reschedule: RFC 3339, or epoch milliseconds")
    by: Shift | None = Field(default=None, description="To reschedule: so much later than each was due; -10m: earlier")
    rate: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="Messages a second at most; 0: no limit. Left out: as the settings say"
    )
    confirm_all: StrictBool = Field(default=False, description="An empty filter is meant")

    @model_validator(mode="after")
    def _one_time(self) -> "NewChange":
        given = sum(time is not None for time in (self.delay, self.deliver_at, self.by))
        if given != (self.action == RESCHEDULE):
            raise ValueError("to reschedule give delay, deliver_at or by, one of them; else none")
        check_units(self.filter.due_from, self.filter.due_to)
        return self

    @property
    def when(self) -> When:
        return When(delay_ms=self.delay, deliver_at_ms=self.deliver_at, by_ms=self.by)


class RunRequest(BaseModel):
    """The `token` that the plan shows with its count."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"examples": [{"token": "8b3831be54101073"}]}
    )
    token: Annotated[str, Field(min_length=1, max_length=64)]


@router.post(
    "/v1/changes",
    status_code=202,
    **described(
        "Plan a change of held messages", NewChange, "change-too-large", "confirmation-needed", "kafka-unavailable",
        "changes-busy", "too-many-changes", "in-the-past", *LOOK_UP, headers={202: ["Location"]},
    ),
)  # fmt: skip
async def plan_change(
    caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail, past: Past = False
) -> Response:
    """Plan a change: pins the messages that are held now, and counts them, and how many would be refused, by reason.
    Nothing is changed.
    """
    asked = validated(NewChange, body)
    refuse_past(asked.deliver_at, ports.now_ms(), past)
    trail.note(action=asked.action, filter=asked.filter.shown())
    rate = ports.change_rate if asked.rate is None else asked.rate
    wanted = Wanted(asked.action, asked.filter, asked.when, rate, asked.confirm_all, caller.name, past)
    try:
        change = await told(lambda: ports.changes.plan(wanted))
    except LookUpUnavailable as error:
        raise unavailable(error) from None
    except NotAllAnswer as error:
        detail = "Not every partition could be asked what it holds. Ask again."
        raise Problem(
            503, "look-up-incomplete", detail, {"Retry-After": "1"}, **missing_document(error.missing)
        ) from None
    trail.note(plan=change.plan.id)
    return CHANGE.accepted(change)


@router.get("/v1/changes/{id}", **described("Show a change", None, "change-not-found", "kafka-unavailable"))
async def get_change(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, id: str, payload: KeyPrefix = False
) -> Response:
    """One change: its plan and how far it has come."""
    return await shown(lambda: ports.changes.get(id), caller, ports, trail, payload)


@router.post(
    "/v1/changes/{id}/run",
    status_code=202,
    **described(
        "Run a change", RunRequest, "change-not-found", "change-active", "change-ended", "changes-busy",
        "nothing-to-change", "stale-token", "plan-expired", "approval-needed", "kafka-unavailable",
        headers={202: ["Location"]},
    ),
)  # fmt: skip
async def run_change(caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail, id: str) -> Response:
    """Change what the plan means, as far as it is still held as it was then."""
    token = validated(RunRequest, body).token
    change = await told(lambda: ports.changes.run(id, token))
    trail.note(action=change.plan.action, planned=change.progress.planned.messages)
    return CHANGE.accepted(change)


add_common(router, CHANGE)


@router.get(
    "/v1/changes/{id}/receipts",
    **described("List what became of each message of a change", None, "change-not-found", "kafka-unavailable"),
)
async def list_change_receipts(
    caller: Reader, ports: GivenPorts, id: str, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None
) -> Response:
    """Outcome of each message, in the order in which the messages were changed. `next: null`: there are no more yet."""
    receipts, following = await told(lambda: ports.changes.receipts(id, _place(cursor), limit))
    items = [with_places(with_times(receipt, "due"), "position", "control") for receipt in receipts]
    return json_response({"items": items, "next": None if following is None else encode("{}/{}".format(*following))})


def _place(cursor: str | None) -> Place:
    if cursor is None:
        return Place(0, 0)
    match = PLACE.fullmatch(decode(cursor))
    if match is None:
        raise unknown_cursor()
    return Place(*map(int, match.groups()))
