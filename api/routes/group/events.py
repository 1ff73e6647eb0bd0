"""Server-sent events of what has changed: policies, schedules, pauses, jobs, replicas, problems, figures.

An event has names of things, and nothing of a record. It is found by comparing what this process knows anyway; the
group is looked at as for `GET /v1/overview`, and both share one look.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.responses import Response, StreamingResponse

from api.dependencies import Reader
from api.events.feed import LISTENERS_MAX, Feed, Listener, NotSeen, TooManyListeners
from api.events.ring import Event, EventName, Snapshot
from api.openapi.description import described
from api.ports import Ports
from api.problems import Problem
from api.routes.group.looks import Overviews
from api.routes.group.overview import overview_document, state_of
from api.routes.held import unavailable
from sidecar.lookup.query import LookUpUnavailable
from sidecar.operations.jobs.job import Job
from sidecar.overview.problems import problems_of
from sidecar.overview.seen import Seen

RETRY_MS: Final = 2_000  # until a client that has lost its stream asks again
NOT_FIGURES: Final = ("as_of", "as_of_utc", "problems")  # of the overview: they change by themselves, or have an event
OF_GROUP: Final = frozenset({EventName.OVERVIEW, EventName.PROBLEMS, EventName.REPLICAS})
EXAMPLE: Final = """retry: 2000

event: reset
data: {"at": 1800000000000, "at_utc": "2027-01-15T08:00:00.000Z", "added": [], "changed": [], "removed": [], "more": 0}
id: 5f0c2a7b9d1e4c38-0

event: policies
data: {"at": 1800000004000, "at_utc": "2027-01-15T08:00:04.000Z", "added": ["reminders"], "changed": [], "removed": [], "more": 0}
id: 5f0c2a7b9d1e4c38-1

: nothing has changed

"""  # noqa: E501 - as it is sent

router = APIRouter(tags=["group"])


class Stream(EventSourceResponse):
    """Events as they are sent. Proxies must not keep them back."""

    def __init__(self, events: AsyncIterator[Event | None]) -> None:
        super().__init__(_written(events), headers={"X-Accel-Buffering": "no"})


async def _listening(
    request: Request, _: Reader, event: Annotated[list[EventName] | None, Query()] = None
) -> AsyncIterator[Listener]:
    """A listener that leaves when the answer has ended, however it ends. Raises `Problem` (503)."""
    feed = feed_of(request)
    try:
        listener = feed.enter(event or tuple(EventName))
    except TooManyListeners:
        detail = f"{LISTENERS_MAX} streams of events are open already; ask for what you need every few seconds instead."
        raise Problem(503, "too-many-streams", detail, {"Retry-After": "10"}) from None
    try:
        yield listener
    finally:
        feed.leave(listener)


@router.get(
    "/v1/events",
    response_class=StreamingResponse,
    responses={200: {"content": {EventSourceResponse.media_type: {"schema": {"type": "string"}, "example": EXAMPLE}}}},
    **described("Follow what changes", None, "too-many-streams", "look-up-unavailable"),
)
async def follow_events(
    request: Request,
    caller: Reader,
    listener: Annotated[Listener, Depends(_listening)],
    last_event_id: Annotated[str | None, Header()] = None,
    follow: bool = True,
) -> Response:
    """Server-sent events: what has changed since `Last-Event-ID`, and then what changes, within two seconds.

    `reset`: read all again; it is the first event of who comes without an id, and comes when the id is of another
    process or so old that events are gone. Connect first, then read. The stream ends every 5 minutes: go on with the
    last id, as browsers do.
    """
    feed = feed_of(request)
    try:
        await feed.begin(listener)
    except NotSeen:
        raise unavailable(LookUpUnavailable("what is to be listened to can't be looked at now")) from None
    return Stream(feed.listen(listener, last_event_id, follow))


def feed_of(request: Request) -> Feed:
    """The events of this process."""
    feed = request.app.state.events
    assert isinstance(feed, Feed)
    return feed


async def _written(events: AsyncIterator[Event | None]) -> AsyncIterator[bytes]:
    yield format_sse_event(retry=RETRY_MS)  # at once: who waits knows that the stream comes through
    async for event in events:
        if event is None:
            yield format_sse_event(comment="nothing has changed")
        else:
            yield format_sse_event(data_str=json.dumps(event.document), event=event.name, id=event.id)


# --- looks --------------------------------------------------------------------------------------------------------


class Looks:
    """Snapshots of what this process knows, and of the group."""

    def __init__(self, ports: Ports, overviews: Overviews) -> None:
        self._overviews = overviews
        self._known: Mapping[EventName, Callable[[], Snapshot]] = {
            EventName.POLICIES: lambda: _versions(ports.policies.table.policies),
            EventName.SCHEDULES: lambda: _versions({**ports.schedules.unread(), **ports.schedules.alive()}),
            EventName.PAUSES: lambda: {f"{one.kind}/{one.name}": pause for one, pause in ports.pauses.alive().items()},
            EventName.REDRIVES: lambda: _progress(ports.redrives.all()),
            EventName.CHANGES: lambda: _progress(ports.changes.all()),
        }

    async def take(self, wanted: Collection[EventName]) -> Mapping[EventName, Snapshot]:
        """A snapshot for each name that is wanted; none of the group while it can't be looked at."""
        taken = await asyncio.to_thread(self._take_known, [name for name in wanted if name not in OF_GROUP])
        if OF_GROUP.isdisjoint(wanted):
            return taken
        try:
            seen = await self._overviews.seen()
        except LookUpUnavailable:
            return taken
        of_group = {EventName.OVERVIEW: _figures, EventName.PROBLEMS: _problems, EventName.REPLICAS: _replicas}
        return {**taken, **{name: snapshot(seen) for name, snapshot in of_group.items() if name in wanted}}

    def _take_known(self, names: Collection[EventName]) -> Mapping[EventName, Snapshot]:
        """Snapshots that need no other process. Waits for locks."""
        return {name: self._known[name]() for name in names}


def _versions(known: Mapping[str, Any]) -> Snapshot:
    return {name: one.version for name, one in known.items()}


def _progress(jobs: Collection[Job[Any, Any]]) -> Snapshot:
    return {job.plan.id: (job.state, job.progress.updated_ms, job.approved_by) for job in jobs}


def _figures(seen: Seen) -> Snapshot:
    return {name: value for name, value in overview_document(seen).items() if name not in NOT_FIGURES}


def _problems(seen: Seen) -> Snapshot:
    """Problems by what they are and whom they are about, and how many of them there are: warnings have no subject."""
    counts: dict[str, int] = {}
    for one in problems_of(seen):
        name = f"{one.kind}/{one.subject}" if one.subject else one.kind
        counts[name] = counts.get(name, 0) + 1
    return counts


def _replicas(seen: Seen) -> Snapshot:
    """Processes by name, with the partitions and the state of each run."""
    found: dict[str, set[tuple[object, ...]]] = {}
    for report in seen.reports:
        found.setdefault(report.replica, set()).add((report.run, state_of(report), report.partitions))
    for sign in seen.silent:
        found.setdefault(sign.replica, set()).add((sign.run, "silent"))
    return found
