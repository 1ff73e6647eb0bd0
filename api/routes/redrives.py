"""Governed redrive over REST: plan, canary, run, abort. The work is done beside; 202 says that it has begun."""

from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt
from starlette.responses import Response

from api.body import validated
from api.dependencies import GivenPorts, GivenTrail, JsonBody, Reader, Writer, json_response
from api.message import Topic
from api.openapi.description import described
from api.routes.jobs import JobKind, add_list_and_abort, told
from policies.duration import parse_duration
from sidecar.operations.dead_letters.dead_letter import Selection
from sidecar.operations.dead_letters.redrive_plan import Governor, Redrive
from sidecar.operations.dead_letters.redrives import Wanted

CANARY_MAX: Final = 1_000
# Of what sends letters.
REFUSALS: Final = (
    "redrive-not-found", "redrive-active", "redrive-ended", "redrives-busy", "nothing-to-redrive", "target-gone",
    "letters-gone", "letters-busy", "transactions-unsupported", "kafka-unavailable",
)  # fmt: skip
router = APIRouter(tags=["redrives"])
REDRIVE: Final[JobKind[Redrive]] = JobKind(
    "redrive",
    "redrives",
    "sent",
    lambda ports: ports.redrives,
    lambda redrive: {"sent": redrive.progress.tally.sent},
)

Milliseconds = Annotated[
    int, BeforeValidator(parse_duration, json_schema_input_type=str | int), Field(ge=0, le=86_400_000)
]


class NewRedrive(BaseModel):
    """Redrive of dead letters: which ones to send again, and how. What is left out is as the settings say."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={"examples": [{"topic": "orders-dlq", "filter": {"reason": "attempts_exhausted"}}]},
    )
    topic: Topic = Field(description="The dead-letter topic")
    filter: Selection = Selection()
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
    again: StrictBool = Field(default=False, description="Also letters that some plan has sent")

    def governor(self, settings: Governor) -> Governor:
        """The settings with what is given here."""
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
        "kafka-unavailable",
    ),
)  # fmt: skip
async def plan_redrive(caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail) -> Response:
    """Plan a redrive: pins the letters that are there now, and counts them by target. Nothing is sent."""
    asked = validated(NewRedrive, body)
    trail.note(topic=asked.topic, target=asked.target, filter=asked.filter.model_dump(exclude_none=True))
    governor = asked.governor(ports.governor)
    wanted = Wanted(asked.topic, asked.filter, asked.target, governor, asked.confirm_all, caller.name, asked.again)
    redrive = await told(lambda: ports.redrives.plan(wanted))
    trail.note(plan=redrive.plan.id)
    return REDRIVE.accepted(redrive)


@router.get("/v1/redrives/{id}", **described("Show a redrive", None, "redrive-not-found", "kafka-unavailable"))
async def get_redrive(caller: Reader, ports: GivenPorts, id: str) -> Response:
    """One redrive: its plan and how far it has come."""
    return json_response((await told(lambda: ports.redrives.get(id))).document())


@router.post(
    "/v1/redrives/{id}/canary",
    status_code=202,
    **described("Send a few letters of a redrive first", CanaryRequest, *REFUSALS),
)
async def canary_redrive(caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail, id: str) -> Response:
    """Send a few letters of the plan and watch what becomes of them."""
    count = validated(CanaryRequest, body).count
    trail.note(count=count)
    return REDRIVE.accepted(await told(lambda: ports.redrives.canary(id, count)))


@router.post("/v1/redrives/{id}/run", status_code=202, **described("Run a redrive", None, *REFUSALS))
async def run_redrive(caller: Writer, ports: GivenPorts, trail: GivenTrail, id: str) -> Response:
    """Send the rest, at the plan's rate, until it is done or too much of it fails again."""
    redrive = await told(lambda: ports.redrives.run(id))
    trail.note(planned=redrive.progress.planned.sent)
    return REDRIVE.accepted(redrive)


add_list_and_abort(router, REDRIVE)
