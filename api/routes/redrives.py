"""Governed redrive over REST: plan, canary, run, abort. The work is done beside; 202 says that it has begun."""

from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator
from starlette.responses import Response

from api.body import validated
from api.dependencies import GivenPorts, GivenTrail, JsonBody, Reader, Writer
from api.message import Content, HeaderName, Topic, bytes_of, data_of
from api.openapi.description import described
from api.ports import Limits
from api.problems import unprocessable
from api.routes.jobs import JobKind, KeyPrefix, add_common, shown, told
from policies.duration import parse_duration
from sidecar.model.record import Place
from sidecar.model.times import check_units
from sidecar.operations.dead_letters.edit import Edit, NewContent
from sidecar.operations.dead_letters.masking import MASK
from sidecar.operations.dead_letters.redrive_plan import AT_ONCE, Action, Governor, Redrive, SearchedSelection
from sidecar.operations.dead_letters.redrives import Wanted

CANARY_MAX: Final = 1_000
LETTERS_MAX: Final = 500  # that a plan may name
# Of what sends letters.
REFUSALS: Final = (
    "redrive-not-found", "redrive-active", "redrive-ended", "redrives-busy", "nothing-to-redrive", "target-gone",
    "letters-gone", "letters-busy", "approval-needed", "transactions-unsupported", "kafka-unavailable",
)  # fmt: skip
router = APIRouter(tags=["redrives"])
REDRIVE: Final[JobKind[Redrive]] = JobKind(
    "redrive",
    "redrives",
    "sent",
    lambda ports: ports.redrives,
    lambda redrive: {"sent": redrive.progress.tally.sent, "discarded": redrive.progress.tally.discarded},
)

Milliseconds = Annotated[
    int, BeforeValidator(parse_duration, json_schema_input_type=str | int), Field(ge=0, le=86_400_000)
]


class NewEdit(BaseModel):
    """Changes in the letters that are sent; the letters themselves stay as they are."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={"examples": [{"merge": {"amount": 3}}]})
    merge: dict[str, Any] | None = Field(default=None, description="JSON Merge Patch (RFC 7396) of the value")
    value: Content = Field(default=None, description="Another value, null: none; left out: the value stays")
    key: Content = Field(default=None, description="Another key, null: none; left out: the key stays")
    headers: dict[HeaderName, Content] = Field(default_factory=dict, description="By name; null removes")

    def edit(self, limits: Limits) -> Edit:
        """As a plan has it. Raises `Problem`."""
        headers = dict(bytes_of(self.headers, limits))
        given = {
            name: NewContent(data=data_of(getattr(self, name)))
            for name in ("value", "key")
            if name in self.model_fields_set
        }
        edit = Edit(merge=self.merge, headers=headers, **given)
        if problem := edit.problem():
            raise unprocessable("invalid-edit", f"The edit {problem}.")
        if edit.has_mask:
            detail = (
                f"{MASK} stands for what is masked, and would be written in its place: leave that out, and it stays."
            )
            raise unprocessable("masked-content", detail)
        return edit


class NewRedrive(BaseModel):
    """Redrive of dead letters: which ones to send again, and how. What is left out is as the settings say."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={"examples": [{"topic": "orders-dlq", "filter": {"reason": "attempts_exhausted"}}]},
    )
    topic: Topic = Field(description="The dead-letter topic")
    action: Action = Field(default=Action.SEND, description="discard: settled by a person, nothing is sent")
    letters: list[str] = Field(
        default_factory=list, max_length=LETTERS_MAX, description="No others are meant: topic/partition/offset of each"
    )
    edit: NewEdit | None = None
    filter: SearchedSelection = SearchedSelection()
    target: Topic | None = Field(default=None, description="For all letters; left out: each goes where it belongs")
    rate: Annotated[StrictInt, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="Letters a second at most; 0: no limit"
    )
    ramp: Milliseconds | None = Field(default=None, description="A duration: from a tenth of the rate to all of it")
    stop_share: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)] | None = Field(
        default=None, description="More than this share of what was sent failed again: stop"
    )
    watch: Milliseconds | None = Field(
        default=None, description="A duration: so long after the last letter, what fails again is waited for"
    )
    confirm_all: StrictBool = Field(default=False, description="An empty filter is meant")
    again: StrictBool = Field(default=False, description="Also letters that some plan has sent or discarded")

    @model_validator(mode="after")
    def _nothing_is_sent(self) -> "NewRedrive":
        if self.action is Action.DISCARD and (self.target is not None or self.edit is not None):
            raise ValueError("what is discarded is not sent: no target, no edit")
        return self

    @model_validator(mode="after")
    def _times(self) -> "NewRedrive":
        check_units(self.filter.since, self.filter.until)
        return self

    def offsets(self) -> dict[int, tuple[int, ...]]:
        """Offsets of the letters that are named, by partition. Raises `Problem`."""
        found: dict[int, set[int]] = {}
        for number, text in enumerate(self.letters):
            place = Place.of_text(text)
            if place is None or place.topic != self.topic:
                raise unprocessable("invalid-body", f"letters/{number} must be {self.topic}/partition/offset.")
            found.setdefault(place.partition, set()).add(place.offset)
        return {partition: tuple(sorted(offsets)) for partition, offsets in sorted(found.items())}

    def governor(self, settings: Governor) -> Governor:
        """The settings with what is given here; what is discarded is by itself under no limit."""
        settings = settings if self.action is Action.SEND else AT_ONCE
        given = {"rate": self.rate, "ramp_ms": self.ramp, "stop_share": self.stop_share, "watch_ms": self.watch}
        return settings.model_copy(update={name: value for name, value in given.items() if value is not None})


class CanaryRequest(BaseModel):
    """How many letters to try it with."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={"examples": [{"count": 10}]})
    count: Annotated[StrictInt, Field(ge=1, le=CANARY_MAX)]


@router.post(
    "/v1/redrives",
    status_code=202,
    **described(
        "Plan a redrive of dead letters", NewRedrive, "topic-not-found", "unknown-target", "redrive-loop",
        "redrive-too-large", "confirmation-needed", "redrives-busy", "too-many-redrives", "scans-busy",
        "kafka-unavailable", "letters-gone", "invalid-edit", "masked-content", "invalid-base64", "too-many-headers",
        headers={202: ["Location"]},
    ),
)  # fmt: skip
async def plan_redrive(caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail) -> Response:
    """Plan a redrive: pins the letters that are there now, and counts them by target. Nothing is sent.

    With `action` `discard` its run marks the letters as settled by a person: they are open no more, nothing is sent.
    """
    asked = validated(NewRedrive, body)
    trail.note(topic=asked.topic, target=asked.target, filter=asked.filter.recorded())
    named, edit = asked.offsets(), None if asked.edit is None else asked.edit.edit(ports.limits)
    trail.note(action=asked.action, letters=named, edit=None if edit is None else edit.document())
    wanted = Wanted(
        asked.topic, asked.filter, asked.target, asked.governor(ports.governor), asked.confirm_all, caller.name,
        asked.again, asked.action, named, edit, ports.letters.rules.masking.rules,
    )  # fmt: skip
    redrive = await told(lambda: ports.redrives.plan(wanted))
    trail.note(plan=redrive.plan.id)
    return REDRIVE.accepted(redrive)


@router.get("/v1/redrives/{id}", **described("Show a redrive", None, "redrive-not-found", "kafka-unavailable"))
async def get_redrive(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, id: str, payload: KeyPrefix = False
) -> Response:
    """One redrive: its plan and how far it has come."""
    return await shown(lambda: ports.redrives.get(id), caller, ports, trail, payload)


@router.post(
    "/v1/redrives/{id}/canary",
    status_code=202,
    **described("Send a few letters of a redrive first", CanaryRequest, *REFUSALS, headers={202: ["Location"]}),
)
async def canary_redrive(caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail, id: str) -> Response:
    """Send a few letters of the plan and watch what becomes of them; or discard a few."""
    count = validated(CanaryRequest, body).count
    trail.note(count=count)
    return REDRIVE.accepted(await told(lambda: ports.redrives.canary(id, count)))


@router.post(
    "/v1/redrives/{id}/run", status_code=202, **described("Run a redrive", None, *REFUSALS, headers={202: ["Location"]})
)
async def run_redrive(caller: Writer, ports: GivenPorts, trail: GivenTrail, id: str) -> Response:
    """Send or discard the rest, at the plan's rate, until it is done or too much of it fails again."""
    redrive = await told(lambda: ports.redrives.run(id))
    trail.note(planned=redrive.progress.planned.settled)
    return REDRIVE.accepted(redrive)


add_common(router, REDRIVE)
