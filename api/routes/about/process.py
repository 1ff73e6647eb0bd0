"""Callers and what they may do, the settings in force, and the doctor's findings, all of the process that answers."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.access.auth import ANONYMOUS, Role
from api.dependencies import Admin, GivenPorts, Reader, declared_access, json_response
from api.openapi.description import described
from sidecar.doctor.facts import Severity
from sidecar.model.times import with_times
from sidecar.model.version import VERSION
from sidecar.settings.listing import listed

router = APIRouter(tags=["process"])


@router.get("/v1/whoami", **described("Ask who you are here and what you may do"))
async def get_caller(request: Request, caller: Reader, ports: GivenPorts) -> Response:
    """The caller's name and role, the calls that the role allows, and which process answers.

    Without tokens everybody is `anonymous`, with the role admin where the request has the header `Tickover-Client`.
    """
    assert caller.role is not None  # a reader has one
    return json_response(
        {
            "name": caller.name,
            "is_anonymous": caller.name == ANONYMOUS,
            "role": caller.role.name.lower(),
            "may": _calls(request, caller.role),
            "group": ports.about.settings.group,
            "guarantee": ports.about.settings.guarantee,
            "replica": ports.stats().replica,
            "tickover": VERSION,
        }
    )


def _calls(request: Request, role: Role) -> list[str]:
    """Calls that need a role and are open to this one, by method and path; sorted by path."""
    found = [
        (route.path_format, method)
        for route in request.app.state.routes
        if (needed := declared_access(route).role) is not None and needed <= role
        for method in route.methods
    ]
    return [f"{method} {path}" for path, method in sorted(found)]


@router.get("/v1/settings", **described("Show the settings in force"))
async def get_settings(caller: Admin, ports: GivenPorts) -> Response:
    """Every setting of this process with its value, secrets masked, and where it came from.

    They name hosts, files and users of what is around, so they need the role admin.
    """
    return json_response({"items": listed(ports.about.settings)})


@router.get("/v1/doctor", **described("Look for what is wrong around this process"))
async def get_findings(caller: Reader, ports: GivenPorts) -> Response:
    """Findings on brokers, topics, Redis and clocks, as `tickover doctor` has them, each with what mends it. They are
    those of half a minute ago at most: `at` is when was looked.
    """
    findings, at_ms = await ports.about.examine()
    told: dict[str, Any] = {
        "at": at_ms,
        "errors": sum(finding.severity is Severity.ERROR for finding in findings),
        "warnings": sum(finding.severity is Severity.WARNING for finding in findings),
        "items": [{**finding._asdict(), "severity": finding.severity.value} for finding in findings],
    }
    return json_response(with_times(told, "at"))
