"""What routes ask for by type: the ports, the caller with a role, the body, the trail that audit records."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import Response

from api.audit import AuditUnavailable, Trail, unavailable
from api.auth import Caller, Role, identify, require
from api.body import Body, json_body
from api.ports import Ports


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


def _caller(request: Request, ports: Ports, trail: Trail, needed: Role) -> Caller:
    trail.needed = needed
    trail.caller = identify(request, ports.tokens)
    require(trail.caller, needed)
    return trail.caller


async def _reader(request: Request, ports: GivenPorts, trail: GivenTrail) -> Caller:
    return _caller(request, ports, trail, Role.READ)


async def _acting(request: Request, ports: Ports, trail: Trail, needed: Role) -> Caller:
    """Who wants to change something: it is done only when it can be recorded."""
    caller = _caller(request, ports, trail, needed)
    try:
        await request.app.state.audit.ready()
    except AuditUnavailable:
        raise unavailable() from None
    return caller


async def _writer(request: Request, ports: GivenPorts, trail: GivenTrail) -> Caller:
    return await _acting(request, ports, trail, Role.WRITE)


async def _admin(request: Request, ports: GivenPorts, trail: GivenTrail) -> Caller:
    return await _acting(request, ports, trail, Role.ADMIN)


# Parameters are resolved in order and the first failure answers: name the caller before the body,
# so that nobody without a token makes us read one.
Reader = Annotated[Caller, Depends(_reader)]
Writer = Annotated[Caller, Depends(_writer)]
Admin = Annotated[Caller, Depends(_admin)]
JsonBody = Annotated[Body, Depends(json_body)]


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """ASCII JSON."""
    return Response(json.dumps(value, allow_nan=False), status, headers, "application/json")
