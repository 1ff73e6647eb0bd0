"""Parameters that routes ask for by type: the ports, the caller with a role, the body, the trail that audit records.

Every route declares whom it answers: by a parameter `caller: Reader` (`Writer`, `Admin`), or by
`dependencies=[Visitor]` (`Prober`, `Scraper`). A route that declares nothing, or two things, keeps the API from
starting (`declared_access`), and answers nobody (`refuse_undeclared`).
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from starlette.responses import Response

from api.access.auth import Caller, Role
from api.access.gate import require
from api.audit import AuditUnavailable, Trail, unavailable
from api.body import Body, json_body
from api.ports import Ports
from api.problems import Problem, unprocessable

IDEMPOTENCY_KEY: Final = "idempotency-key"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


async def _ports(request: Request) -> Ports:
    ports = request.app.state.ports
    assert isinstance(ports, Ports)
    return ports


GivenPorts = Annotated[Ports, Depends(_ports)]


async def _trail(request: Request) -> Trail:
    trail = request.state.trail
    assert isinstance(trail, Trail)
    return trail


GivenTrail = Annotated[Trail, Depends(_trail)]


async def _caller(request: Request, ports: Ports, trail: Trail, needed: Role) -> Caller:
    trail.needed = needed
    now_s = ports.monotonic_s()
    trail.caller = await ports.gate.identify(request, now_s)
    ports.gate.limit(trail.caller, request, now_s)
    require(trail.caller, needed)
    _refuse_unread_key(request)
    _refuse_unknown(request)
    return trail.caller


async def _reader(request: Request, ports: GivenPorts, trail: GivenTrail) -> Caller:
    return await _caller(request, ports, trail, Role.READ)


async def _acting(request: Request, ports: Ports, trail: Trail, needed: Role) -> Caller:
    """Identify the caller of a request that changes something: it is done only when it can be recorded."""
    caller = await _caller(request, ports, trail, needed)
    try:
        await request.app.state.audit.ready()
    except AuditUnavailable:
        raise unavailable() from None
    return caller


async def _writer(request: Request, ports: GivenPorts, trail: GivenTrail) -> Caller:
    return await _acting(request, ports, trail, Role.WRITE)


async def _admin(request: Request, ports: GivenPorts, trail: GivenTrail) -> Caller:
    return await _acting(request, ports, trail, Role.ADMIN)


async def _scraper(request: Request, ports: GivenPorts, trail: GivenTrail) -> None:
    if ports.gate.metrics_open:
        await _visitor(request, ports)
    else:
        await _caller(request, ports, trail, Role.READ)


async def _visitor(request: Request, ports: GivenPorts) -> None:
    ports.gate.visitor(request, ports.monotonic_s())
    _refuse_unknown(request)


async def _prober(request: Request) -> None:
    """Let in every probe of this process: probes are never too often."""
    _refuse_unknown(request)


# Parameters are resolved in order and the first failure answers: name the caller before the body,
# so that nobody without a token makes us read one.
Reader = Annotated[Caller, Depends(_reader)]
Writer = Annotated[Caller, Depends(_writer)]
Admin = Annotated[Caller, Depends(_admin)]
Scraper = Depends(_scraper)  # the role read, or, if a setting says so, everybody
Visitor = Depends(_visitor)  # everybody, but not too often
Prober = Depends(_prober)  # everybody, always
JsonBody = Annotated[Body, Depends(json_body)]


def let_see(caller: Caller, trail: Trail, **facts: object) -> None:
    """Keys and payloads are people's data: a role more, and a record of who saw them. Raises `Problem` (403)."""
    trail.show(**facts)
    trail.needed = Role.WRITE
    require(caller, Role.WRITE)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """ASCII JSON."""
    return Response(json.dumps(value, allow_nan=False), status, headers, "application/json")


def _refuse_unread_key(request: Request) -> None:
    """An Idempotency-Key that nobody reads would promise what isn't kept. Raises `Problem` (422)."""
    route = request.scope.get("route")
    read = isinstance(route, APIRoute) and any(one.alias == IDEMPOTENCY_KEY for one in route.dependant.header_params)
    if request.method not in SAFE_METHODS and IDEMPOTENCY_KEY in request.headers and not read:
        honours = "Only POST /v1/messages, /v1/messages:batch and runs of schedules honour an Idempotency-Key."
        detail = f"{honours} Nothing was done; send the request without it."
        raise unprocessable("idempotency-key-not-supported", detail)


def _refuse_unknown(request: Request) -> None:
    """A misspelt filter must not mean everything. Raises `Problem` (422).

    What the description leaves out, pages for people, may be opened with whatever stands behind a link.
    """
    if not request.query_params:
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not route.include_in_schema:
        return
    known = query_parameters(route)
    if unknown := sorted(set(request.query_params) - known):
        there_are = f"there are {', '.join(sorted(known))}" if known else "there are none"
        raise unprocessable("unknown-parameter", f"There is no parameter {unknown[0][:100]!r} here; {there_are}.")


def query_parameters(route: APIRoute) -> frozenset[str]:
    """Names of the query parameters that a route declares, itself or by what it depends on."""
    elsewhere = (params.Path, params.Header, params.Cookie)
    return frozenset(one.alias for one in get_flat_params(route.dependant) if not isinstance(one.field_info, elsewhere))


class UndeclaredRoute(Exception):
    """A route doesn't say whom it answers."""


class Access(NamedTuple):
    """Whom a route answers: a role, or None for everybody; what the declaration is called."""

    role: Role | None
    name: str


_DECLARATIONS: Final[Mapping[Any, Access]] = {
    _reader: Access(Role.READ, "read"),
    _writer: Access(Role.WRITE, "write"),
    _admin: Access(Role.ADMIN, "admin"),
    _scraper: Access(Role.READ, "scraper"),
    _visitor: Access(None, "visitor"),
    _prober: Access(None, "prober"),
}


def declared_access(route: object) -> Access:
    """Whom a route answers. Raises UndeclaredRoute."""
    asked = route.dependant.dependencies if isinstance(route, APIRoute) else ()
    declared = [_DECLARATIONS[dependency.call] for dependency in asked if dependency.call in _DECLARATIONS]
    if len(declared) != 1:
        raise UndeclaredRoute(
            f"{getattr(route, 'path', route)} must declare whom it answers, once; see api.dependencies"
        )
    return declared[0]


async def refuse_undeclared(request: Request) -> None:
    """Default deny, for routes that were added when the API had been made."""
    try:
        declared_access(request.scope.get("route"))
    except UndeclaredRoute:
        raise Problem(403, "forbidden", "This route declares nobody whom it answers.") from None
