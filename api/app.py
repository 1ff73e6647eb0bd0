"""The REST API: `create_app(ports)`.

A request passes, from outside in: path of the proxy -> name of the request -> HEAD as GET -> safe headers -> ETags
known already -> unforeseen failures -> audit -> body limit -> route -> caller, rate and role -> strict JSON -> model ->
the port that does the work. Whatever goes wrong is a problem document.
"""

from typing import Final

from fastapi import Depends, FastAPI
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import problems
from api.answer_headers import RequestId, SafeHeaders
from api.audit import Audit, AuditLog
from api.body import BodyLimit
from api.console import app as console
from api.console.page import ConsoleOptions
from api.dependencies import declared_access, refuse_undeclared
from api.events.feed import Feed
from api.message import NewMessage, NewMessages
from api.openapi import document, problem_pages
from api.ports import Ports
from api.preconditions import NotModified
from api.routes import (
    actions,
    changes,
    dead_letters,
    explain,
    health,
    held,
    lateness,
    messages,
    pauses,
    policies,
    redrives,
    schedules,
)
from api.routes.about import audit, quarantine
from api.routes.about import process as about
from api.routes.group import capacity, events, overview
from api.routes.group.looks import Overviews
from policies.model import Policy
from sidecar.model.version import VERSION
from sidecar.operations.schedules.schedule import Schedule

_BODIES = (
    Policy,
    NewMessage,
    NewMessages,
    policies.RollbackRequest,
    schedules.Rewind,
    explain.ExplainRequest,
    dead_letters.GroupWords,
    redrives.NewRedrive,
    redrives.CanaryRequest,
    actions.Reschedule,
    changes.NewChange,
    changes.RunRequest,
    quarantine.Correction,
    Schedule,
    pauses.NewPause,
)


PARTS: Final = (
    explain,
    policies,
    messages,
    actions,
    held,
    lateness,
    dead_letters,
    redrives,
    changes,
    schedules,
    quarantine,
    about,
    audit,
    overview,
    events,
    capacity,
    pauses,
    health,
    document,
    problem_pages,
)


def create_app(ports: Ports, console_options: ConsoleOptions | None = None) -> FastAPI:
    """An ASGI application over `ports`, with a console where there are options for it. It starts and stops nothing.
    Raises UndeclaredRoute.
    """
    app = FastAPI(
        title="tickover",
        version=VERSION,
        description="Delayed delivery and retries for Kafka.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
        dependencies=[Depends(refuse_undeclared)],
    )
    app.state.ports = ports
    app.state.audit = AuditLog(ports.audit_sender, ports.audit_topic, ports.monotonic_s)
    app.state.overviews = Overviews(ports.group, ports.lookup, ports.monotonic_s)
    app.state.events = Feed(events.Looks(ports, app.state.overviews), ports.now_ms)
    app.state.explainer = explain.Explainer()
    app.state.routes = tuple(route for part in PARTS for route in part.router.routes)
    problems.install(app)
    for part in PARTS:
        app.include_router(part.router)
    for route in app.state.routes:
        declared_access(route)
        get_flat_params(route.dependant)  # else FastAPI builds what reads a model of parameters with the first request
    document.install(app, _BODIES, ports.path)
    app.state.start = "/docs" if console_options is None else "/ui/"
    if console_options is not None:
        console.install(app, console_options)
    app.add_middleware(BodyLimit, limit_bytes=ports.limits.body_bytes)
    app.add_middleware(Audit, audit=app.state.audit, now_ms=ports.now_ms)
    app.add_middleware(problems.Failures)
    app.add_middleware(NotModified)
    app.add_middleware(SafeHeaders)
    app.add_middleware(Head)
    app.add_middleware(RequestId)
    if ports.path:
        app.add_middleware(BehindPath, path=ports.path)
    return app


def operation_id(route: APIRoute) -> str:
    """Name of a call in generated clients: that of its function, unless the route has one of its own."""
    return route.name


class BehindPath:
    """Application that a proxy shows under a path. Requests come as they were sent, or without the path: some proxies
    remove it.

    Only the setting says so: a header (X-Forwarded-Prefix) is whatever a client has written.
    """

    def __init__(self, app: ASGIApp, path: str) -> None:
        self.app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_path(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [self._placed(*header) for header in message["headers"]]}
            await send(message)

        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{self._path}/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._path) or "/"}
        await self.app(scope, receive, send_with_path)

    def _placed(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        is_ours = name.lower() == b"location" and value.startswith(b"/")  # a provider's begins with its scheme
        return name, self._path.encode() + value if is_ours else value


class Head:
    """HEAD is GET without the body, for every path that has a GET."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_sent = False

        async def send_without_body(message: Message) -> None:
            nonlocal is_sent
            if message["type"] != "http.response.body":
                await send(message)
            elif not is_sent:  # with its first part the answer is over, as a stream by itself never is
                is_sent = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self.app({**scope, "method": "GET"}, receive, send_without_body)
        else:
            await self.app(scope, receive, send)
