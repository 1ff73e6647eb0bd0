"""What routes ask for by type: the ports, the caller with a role, the body."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import Response

from api.auth import Caller, Role, identify
from api.body import Body, json_body
from api.ports import Ports


async def _ports(request: Request) -> Ports:
    ports = request.app.state.ports
    assert isinstance(ports, Ports)
    return ports


GivenPorts = Annotated[Ports, Depends(_ports)]


async def _reader(request: Request, ports: GivenPorts) -> Caller:
    return identify(request, ports.tokens, Role.READ)


async def _writer(request: Request, ports: GivenPorts) -> Caller:
    return identify(request, ports.tokens, Role.WRITE)


async def _admin(request: Request, ports: GivenPorts) -> Caller:
    return identify(request, ports.tokens, Role.ADMIN)


# Parameters are resolved in order and the first failure answers: name the caller before the body,
# so that nobody without a token makes us read one.
Reader = Annotated[Caller, Depends(_reader)]
Writer = Annotated[Caller, Depends(_writer)]
Admin = Annotated[Caller, Depends(_admin)]
JsonBody = Annotated[Body, Depends(json_body)]


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """ASCII JSON."""
    return Response(json.dumps(value, allow_nan=False), status, headers, "application/json")
