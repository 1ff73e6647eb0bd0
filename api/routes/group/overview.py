"""The whole group: what it holds and emits, what is wrong with it, and each of its replicas."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from api.dependencies import Reader, json_response
from api.openapi.description import described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, page
from api.routes.group.looks import Overviews
from api.routes.held import missing_document, unavailable
from sidecar.conditions.attribution import Sign
from sidecar.lookup.query import LookUpUnavailable
from sidecar.lookup.report import MINUTE_MS, MINUTES, Flow, Rebuild, Replica, Report
from sidecar.model.condition import Kind
from sidecar.model.times import with_times
from sidecar.overview.problems import SILENT_TURN_MS, Fault, problems_of
from sidecar.overview.seen import Seen, last_hour, last_minute, percentiles

BROKEN: Final = ("open", "half_open")

router = APIRouter(tags=["group"])

Document = dict[str, Any]


class OverviewOut(BaseModel):
    """Figures of the whole group. `problems`: the worst first, none where all is well."""

    group: str
    guarantee: str
    as_of: int
    replicas: dict[str, Any]
    partitions: dict[str, int]
    held: dict[str, int]
    due: dict[str, Any]
    next_due: int | None
    oldest_overdue_ms: int
    last_minute: dict[str, Any]
    hour: dict[str, Any]
    breakers: list[dict[str, Any]]
    suspended: list[dict[str, Any]]
    rebuilds: list[dict[str, Any]]
    problems: list[dict[str, Any]]
    partial: bool
    missing: list[dict[str, Any]]


class ReplicasPage(BaseModel):
    """Processes of the group by name; those that gave a sign of life and did not answer are `silent`."""

    items: list[dict[str, Any]]
    next: str | None
    partial: bool
    missing: list[dict[str, Any]]


@router.get(
    "/v1/overview",
    responses={200: {"model": OverviewOut}},
    **described("Show the whole group at a glance", None, "look-up-unavailable"),
)
async def get_overview(request: Request, caller: Reader) -> Response:
    """Messages that all replicas hold, what is due within the hour, what they did in the last one, and what is wrong.

    Asked of all replicas at most once a second; what is due by minute, at most every ten.
    """
    return json_response(overview_document(await look(request)))


@router.get(
    "/v1/replicas",
    responses={200: {"model": ReplicasPage}},
    **described("List the processes of the group", None, "look-up-unavailable"),
)
async def list_replicas(
    request: Request, caller: Reader, limit: Limit = PAGE_DEFAULT, cursor: Cursor = None
) -> Response:
    """Each process of the group: its partitions and its lag, what it holds, its memory, recoveries and rebuilds."""
    seen = await look(request)
    known = [replica_document(one, seen) for one in seen.overview.replicas]
    known += [_silent_document(sign) for sign in seen.silent]
    known.sort(key=_place)
    items, following = page(known, _place, limit, cursor)
    return json_response({"items": list(items), "next": following, **missing_document(seen.overview.missing)})


async def look(request: Request) -> Seen:
    """The group as of now. Raises `Problem` (503)."""
    overviews = request.app.state.overviews
    assert isinstance(overviews, Overviews)
    try:
        return await overviews.seen()
    except LookUpUnavailable as error:
        raise unavailable(error) from None


# --- documents ----------------------------------------------------------------------------------------------------


def overview_document(seen: Seen) -> Document:
    """The group as plain data."""
    reports, missing = seen.reports, seen.overview.missing
    next_due = min((report.next_due_ms for report in reports if report.next_due_ms >= 0), default=None)
    told = {
        "group": seen.group,
        "guarantee": seen.guarantee,
        "as_of": seen.at_ms,
        "replicas": {"answered": len(reports), "silent": [_sign_document(sign) for sign in seen.silent]},
        "partitions": {
            "assigned": sum(report.partitions for report in reports),
            "recovering": sum(report.recovering for report in reports),
            "paused": sum(report.paused for report in reports),
        },
        "held": {
            "wheel": sum(report.wheel for report in reports),
            "overflow": sum(report.overflow for report in reports),
            "parked": sum(report.parked for report in reports),
        },
        "due": _due_document(seen.overview.minutes, reports, seen.at_ms),
        "next_due": next_due,
        "oldest_overdue_ms": max((report.oldest_overdue_ms for report in reports), default=0),
        "last_minute": _flow_document(last_minute(reports), reports),
        "hour": _hour_document(reports, seen.at_ms),
        "breakers": _breakers(reports),
        "suspended": _suspended(reports),
        "rebuilds": [{"replica": one.replica, **_rebuild(part)} for one in reports for part in one.rebuilding],
        "problems": [_problem_document(problem) for problem in problems_of(seen)],
        **missing_document(missing),
    }
    return with_times(told, "as_of", "next_due")


def _due_document(minutes: Mapping[int, int], reports: Iterable[Report], now_ms: int) -> Document:
    """Held messages by when they are due, and how many of them are in memory; those of this minute may be overdue."""
    this = now_ms // MINUTE_MS
    within = range(this, this + MINUTES)
    near = Counter[int]()
    for report in reports:
        near.update({one.minute: one.held for one in report.near})
    return {
        "overdue": sum(count for minute, count in minutes.items() if 0 <= minute < this),
        "hour": sum(minutes.get(minute, 0) for minute in within),
        "later": minutes.get(-1, 0) + sum(count for minute, count in minutes.items() if minute >= within.stop),
        "minutes": [
            with_times(
                {
                    "minute": minute * MINUTE_MS,
                    "held": (held := minutes.get(minute, 0)),
                    "near": min(near[minute], held),  # a report may be of a moment before
                },
                "minute",
            )
            for minute in within
        ],
    }


def _hour_document(reports: list[Report], now_ms: int) -> Document:
    minutes = last_hour(reports, now_ms)
    totals = {
        name: sum(getattr(flow, name) for _, flow in minutes) for name in ("emitted", "retried", "dead", "quarantined")
    }
    told = [with_times({"minute": begin, **_flow_document(flow, reports)}, "minute") for begin, flow in minutes]
    return {**totals, "minutes": told}


def _flow_document(flow: Flow, reports: Iterable[Report]) -> Document:
    counts = {"emitted": flow.emitted, "retried": flow.retried, "dead": flow.dead, "quarantined": flow.quarantined}
    return {**counts, "lateness_ms": percentiles(flow, reports)._asdict()}


def _breakers(reports: Iterable[Report]) -> list[Document]:
    """Targets whose breaker is open somewhere."""
    found: dict[str, Document] = {}
    for report in reports:
        for target in report.targets:
            if target.breaker in BROKEN:
                one = found.setdefault(target.topic, {"target": target.topic, "state": "half_open", "waiting": 0})
                one["waiting"] += target.waiting
                one["state"] = "open" if "open" in (one["state"], target.breaker) else "half_open"
                one["since"] = _earlier(one.get("since"), _since(report, Kind.BREAKER, target.topic))
    return [with_times(one, "since") for _, one in sorted(found.items())]


def _suspended(reports: Iterable[Report]) -> list[Document]:
    """Targets that don't acknowledge to some replica."""
    found: dict[str, int | None] = {}
    for report in reports:
        for target in report.suspended:
            found[target] = _earlier(found.get(target), _since(report, Kind.SUSPENDED, target))
    return [with_times({"target": target, "since": since_ms}, "since") for target, since_ms in sorted(found.items())]


def _rebuild(part: Rebuild) -> Document:
    return {
        "topic": part.topic,
        "partition": part.partition,
        "done": part.done,
        "held": part.held,
        "ledger_read_share": None if part.read_share < 0 else round(part.read_share, 3),
        "problem": part.problem or None,
    }


def _problem_document(problem: Fault) -> Document:
    told = {
        "level": problem.level.value,
        "kind": problem.kind,
        "subject": problem.subject or None,
        "replicas": list(problem.replicas),
        "since": None if problem.since_ms < 0 else problem.since_ms,
        "text": problem.text,
        "fix": problem.fix or None,
    }
    return with_times(told, "since")


def replica_document(replica: Replica, seen: Seen) -> Document:
    """One process that has answered. `lag`: records of its partitions that it has not read; null where it isn't known
    of some.
    """
    report, lags = replica.report, [seen.lags.get(lane) for lane in replica.read]
    told = {
        "replica": report.replica,
        "run": report.run,
        "state": state_of(report),
        "version": report.version,
        "started": _time(report.started_ms),
        "as_of": _time(report.at_ms),
        "partitions": {"assigned": report.partitions, "recovering": report.recovering, "paused": report.paused},
        "lag": None if None in lags else sum(lag for lag in lags if lag is not None),
        "held": {"wheel": report.wheel, "overflow": report.overflow, "parked": report.parked},
        "memory_bytes": report.memory_bytes,
        "oldest_overdue_ms": report.oldest_overdue_ms,
        "last_minute": _flow_document(report.last_minute, (report,)),
        "recovery": with_times(
            {
                "partitions": report.recovering,
                "since": min((w.since_ms for w in report.waits if w.kind == Kind.RECOVERING), default=None),
                "last_ms": report.recovery_ms,
            },
            "since",
        ),
        "rebuilds": [_rebuild(part) for part in report.rebuilding],
        "clock_skew_ms": report.clock_skew_ms,
    }
    return with_times(told, "started", "as_of")


def _silent_document(sign: Sign) -> Document:
    return {**_sign_document(sign), "state": "silent"}


def _sign_document(sign: Sign) -> Document:
    return with_times({"replica": sign.replica, "run": sign.run, "last_sign": sign.at_ms}, "last_sign")


def state_of(report: Report) -> str:
    """State of a process: the first that is true of it; `running` is what all is well with."""
    states = {
        "waiting": report.group_problem,
        "stalled": report.turn_age_ms >= SILENT_TURN_MS,
        "recovering": report.recovering,
        "rebuilding": report.rebuilding,
        "impaired": report.kafka_problem or report.overflow_problem,
    }
    return next((state for state, is_true in states.items() if is_true), "running")


def _place(document: Document) -> str:
    """Place in the list: runs of one name stand side by side."""
    return f"{document['replica']} {document['run']}"


def _time(time_ms: int) -> int | None:
    return None if time_ms < 0 else time_ms


def _since(report: Report, kind: Kind, topic: str) -> int | None:
    return min(
        (w.since_ms for w in report.waits if w.kind == kind and w.topic == topic and w.since_ms >= 0), default=None
    )


def _earlier(first: int | None, second: int | None) -> int | None:
    return min((one for one in (first, second) if one is not None), default=None)
