"""Every route of the application in every role: who is let in, which secrets the answer has, what is recorded."""

import io
import logging
from itertools import pairwise

import pytest

from api.access.auth import Role
from api.app import PARTS
from api.dependencies import declared_access
from sidecar.service.logs import configure_logs
from sidecar.settings.settings import LogSettings
from tests.unit.api.access.role_world import CALLS, MARKS, Call, ask, routes, seen_in

pytestmark = [pytest.mark.usefixtures("logging_as_before"), pytest.mark.slow]

EACH = [(name, call) for name, calls in sorted(CALLS.items()) for call in calls]
IDS = [f"{name} {dict(call.query) or ''}".strip() for name, call in EACH]
LISTED = {"error text"}  # what lists show to the role read, without what differs from one occurrence to the next
PAYLOADS = {"key", "value", "header name", "header value"}
WHOLE_LETTER = PAYLOADS | {"error text", "address in an error"}  # its headers have the error as it came


# Their parameters show nothing more.
OF_READERS = ("GET /v1/events", "GET /v1/lateness")
SHOWS_NO_MORE = {"error"}  # parameters of whoever may see the list


def needed(name: str) -> Role | None:
    """The role that a route declares."""
    [access] = {
        declared_access(route)
        for part in PARTS
        for route in part.router.routes
        if name in {f"{method} {getattr(route, 'path', '').replace(':path', '')}" for method in route.methods}
    }
    return access.role


def test_no_route_is_left_out() -> None:
    assert routes() == sorted(CALLS), "say in role_world how a new route is called"


@pytest.mark.parametrize(("name", "call"), EACH, ids=IDS)
def test_who_may_call_it_and_what_they_see(name: str, call: Call) -> None:
    stream = io.StringIO()
    configure_logs(LogSettings(level="debug"), stream)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the client here, which logs what it asks for
    asks_for_more = bool(call.query.keys() - SHOWS_NO_MORE)
    role = Role.WRITE if asks_for_more and name not in OF_READERS else needed(name)
    told = {caller: ask(name, call, caller) for caller in (None, *Role)}
    for caller, answer in told.items():
        if role is not None and (caller is None or caller < role):
            assert answer.status == (401 if caller is None else 403)
            assert not answer.seen
        else:
            assert answer.status < 400, answer.answer
        assert not seen_in(answer.audited)
    assert told[Role.READ].seen <= LISTED
    assert told[Role.ADMIN].seen <= LISTED | (WHOLE_LETTER | {"key prefix"} if asks_for_more else set())
    for lower, higher in pairwise(Role):
        assert told[lower].seen <= told[higher].seen
    assert bool(told[Role.ADMIN].audited) == (role is not None and role > Role.READ)
    assert not seen_in(stream.getvalue())


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("GET /v1/dead-letters", WHOLE_LETTER),
        ("GET /v1/dead-letters/{topic}/{partition}/{offset}", WHOLE_LETTER),
        ("GET /v1/schedules", PAYLOADS),
        ("GET /v1/schedules/{name}", PAYLOADS),
        ("GET /v1/changes/{id}", {"key prefix"}),
        ("GET /v1/redrives/{id}", {"key prefix", "header name", "header value", "error text"}),
    ],
)
def test_the_marks_are_found_where_they_are_shown(name: str, seen: set[str]) -> None:
    assert ask(name, CALLS[name][1], Role.WRITE).seen == seen


def test_a_mark_is_found_in_every_form() -> None:
    for kind, mark in MARKS.items():
        assert kind in seen_in(f"x{mark}x") & seen_in(mark.encode().hex())
