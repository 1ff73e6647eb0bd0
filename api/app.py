"""The REST API: `create_app(ports)`.

A request passes, from outside in: unforeseen failures -> audit -> body limit -> safe headers -> route -> caller and
role -> strict JSON -> model -> the port that does the work. Whatever goes wrong is a problem document.
"""

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import actions, dead_letters, explain, health, held, messages, openapi, policies, problems, redrives
from api.audit import Audit, AuditLog
from api.body import BodyLimit
from api.message import NewMessage
from api.ports import Ports
from policies.model import Policy
from sidecar.metrics import VERSION

_BODIES = (
    Policy,
    NewMessage,
    policies.RollbackRequest,
    explain.ExplainRequest,
    redrives.NewRedrive,
    redrives.CanaryRequest,
    actions.Reschedule,
)


def create_app(ports: Ports) -> FastAPI:
    """An ASGI application over `ports`. It starts and stops nothing."""
    app = FastAPI(
        title="tickover",
        version=VERSION,
        description="Delayed delivery and retries for Kafka.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.ports = ports
    app.state.audit = AuditLog(ports.audit_sender, ports.audit_topic, ports.monotonic_s)
    problems.install(app)
    for part in (explain, policies, messages, actions, held, dead_letters, redrives, health):
        app.include_router(part.router)
    openapi.install(app, _BODIES)
    app.add_middleware(SafeHeaders)
    app.add_middleware(BodyLimit, limit_bytes=ports.limits.body_bytes)
    app.add_middleware(Audit, audit=app.state.audit, now_ms=ports.now_ms)
    app.add_middleware(problems.Failures)
    return app


class SafeHeaders:
    """What every response says to browsers and caches."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, send_safely)
