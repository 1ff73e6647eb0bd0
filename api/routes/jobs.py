"""Common parts of all jobs over REST, be they redrives or changes: listing and aborting them, answers, refusals."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.access.auth import ANONYMOUS, Caller
from api.audit import Trail
from api.dependencies import GivenPorts, GivenTrail, Reader, Writer, json_response, let_see
from api.openapi.description import described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, page
from api.ports import Ports
from api.problems import Problem
from api.routes.dead_letters import answered
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.operations.dead_letters.masking import Masking
from sidecar.operations.jobs.job import Job
from sidecar.operations.jobs.runner import JobRefused

STATUSES: Final = {
    "redrive-not-found": 404,
    "redrive-too-large": 422,
    "redrive-active": 409,
    "redrive-ended": 409,
    "nothing-to-redrive": 409,
    "target-gone": 409,
    "letters-gone": 409,
    "letters-busy": 409,
    "already-sent": 409,
    "request-in-progress": 409,
    "too-many-redrives": 409,
    "redrives-busy": 503,
    "transactions-unsupported": 503,
    "kafka-unavailable": 503,
    "change-not-found": 404,
    "change-too-large": 422,
    "change-active": 409,
    "change-ended": 409,
    "nothing-to-change": 409,
    "stale-token": 409,
    "plan-expired": 409,
    "too-many-changes": 409,
    "changes-busy": 503,
    "approval-needed": 409,
    "own-plan": 403,
}

KeyPrefix = Annotated[bool, Query(description="Show the filter's key_prefix and header, masked; needs the role write")]
Answer = TypeVar("Answer")


AnyJob = TypeVar("AnyJob", bound="Job[Any, Any]")
AnyJob_co = TypeVar("AnyJob_co", bound="Job[Any, Any]", covariant=True)


class Jobs(Protocol[AnyJob_co]):
    """Jobs of one kind. All calls block, and raise `JobRefused` or `LogUnavailable`."""

    def all(self) -> Sequence[AnyJob_co]: ...

    def approve(self, plan_id: str, author: str) -> AnyJob_co: ...

    def abort(self, plan_id: str, author: str) -> AnyJob_co: ...


@dataclass(frozen=True, slots=True)
class JobKind(Generic[AnyJob]):
    """One kind of them: in words, where they are, and what the audit record of an abort says of one."""

    noun: str
    nouns: str  # also of the path
    deed: str  # what a job does to a record, as participle
    jobs: Callable[[Ports], Jobs[AnyJob]]
    facts: Callable[[AnyJob], Mapping[str, object]]

    @property
    def path(self) -> str:
        """Where all of them are."""
        return f"/v1/{self.nouns}"

    def accepted(self, job: AnyJob) -> Response:
        """202: it has begun, or was asked for."""
        return json_response(job.document(), 202, {"Location": f"{self.path}/{job.plan.id}"})


class OfPayload(Protocol):
    """Conditions about what is in records."""

    @property
    def key_prefix(self) -> str | None: ...

    @property
    def header(self) -> str | None: ...


def _spelt(selection: OfPayload, masking: Masking) -> dict[str, Any]:
    """Conditions about keys and headers, which answers hide, as they may be shown."""
    told = dict[str, Any]()
    if selection.key_prefix is not None:
        told["key_prefix"] = masking.part("key", selection.key_prefix.encode(errors="surrogatepass"))
    if selection.header is not None:
        name, _, value = selection.header.partition("=")
        told["header"] = f"{name}={masking.part(name, value.encode(errors='surrogatepass'))}"
    return told


async def shown(
    get: Callable[[], Job[Any, Any]], caller: Caller, ports: Ports, trail: Trail, payload: bool
) -> Response:
    """One job: its plan and how far it has come; with `payload` also by which key and header it chooses. Raises
    `Problem`.
    """
    if payload:
        let_see(caller, trail, payload=True)
    job = await told(get)
    document = job.document()
    if payload:
        document["filter"] |= _spelt(job.plan.selection, ports.letters.rules.masking)
    return json_response(document)


def age(job: Job[Any, Any]) -> str:
    """In the order of lists: the newest first."""
    return f"{(1 << 53) - job.plan.created_ms:016}{job.plan.id}"


def add_common(router: APIRouter, kind: JobKind[AnyJob]) -> None:
    """The routes that are alike for every kind."""

    @router.get(
        kind.path,
        name=f"list_{kind.nouns}",
        description=f"All {kind.nouns} of the last 30 days, the newest first.",
        **described(f"List {kind.nouns}", None, "kafka-unavailable"),
    )
    async def list_jobs(
        caller: Reader, ports: GivenPorts, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None
    ) -> Response:
        jobs, following = page(kind.jobs(ports).all(), age, limit, cursor)
        return json_response({"items": [job.document() for job in jobs], "next": following})

    @router.post(
        f"{kind.path}/{{id}}/approve",
        name=f"approve_{kind.noun}",
        description=f"Let a {kind.noun} run that somebody else has planned, once it is counted: with "
        f"`changes.approval: other` none runs without. It counts for the whole plan. "
        f"A {kind.noun} that is approved stays as it is.",
        **described(
            f"Approve a {kind.noun}", None, f"{kind.noun}-not-found", f"{kind.noun}-active", f"{kind.noun}-ended",
            "own-plan", "approver-unknown", "kafka-unavailable",
        ),
    )  # fmt: skip
    async def approve_job(caller: Writer, ports: GivenPorts, trail: GivenTrail, id: str) -> Response:
        if caller.name == ANONYMOUS:
            detail = "Who has no name can't be told from who planned it: approve with a token of your own."
            raise Problem(403, "approver-unknown", detail)
        job = await told(lambda: kind.jobs(ports).approve(id, caller.name))
        trail.note(planned_by=job.plan.author, **kind.facts(job))
        return json_response(job.document())

    @router.post(
        f"{kind.path}/{{id}}/abort",
        status_code=202,
        name=f"abort_{kind.noun}",
        description=f"Ask for its end: no more is {kind.deed} once its state is `aborted`; "
        f"what was {kind.deed} stays {kind.deed}.",
        **described(
            f"Abort a {kind.noun}",
            None,
            f"{kind.noun}-not-found",
            f"{kind.noun}-ended",
            "kafka-unavailable",
            headers={202: ["Location"]},
        ),
    )
    async def abort_job(caller: Writer, ports: GivenPorts, trail: GivenTrail, id: str) -> Response:
        job = await told(lambda: kind.jobs(ports).abort(id, caller.name))
        trail.note(**kind.facts(job))
        return kind.accepted(job)


async def told(ask: Callable[[], Answer]) -> Answer:
    """Run a blocking call in a thread, and return its answer. Raises `Problem`."""
    try:
        return await answered(asyncio.to_thread(ask))
    except JobRefused as error:
        status = STATUSES.get(error.type, 422)
        headers = {"Retry-After": "5"} if status == 503 else {}
        raise Problem(status, error.type, str(error), headers) from None
    except LogUnavailable as error:
        detail = f"The topic of jobs can't be read or written at the moment: {error}."
        raise Problem(503, "kafka-unavailable", detail, {"Retry-After": "1"}) from None
