"""Headers of every answer: what browsers and caches may do with it, and the name of its request.

    X-Request-Id of the request, if it is sane    ->  that one: whoever is in front can find it again here
    else                                          ->  a random one

The name stands in the log lines and the audit record that the request causes, too, and in its problem.
"""

import re
import secrets
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars, get_contextvars

# For whatever answers with a page or plain data: no framing, no guessing of types, nothing loaded, nothing kept.
SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
DEFAULT_HEADERS: Final = {
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
REQUEST_ID_HEADER: Final = "X-Request-Id"
REQUEST_ID_FIELD: Final = "request_id"  # of log lines, audit records, problems, and in a scope's state
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}", re.ASCII)
REQUEST_ID_BYTES: Final = 8  # of a random one


class SafeHeaders:
    """Add the headers for browsers and caches to every response of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SAFE_HEADERS)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_safely)


def new_request_id() -> str:
    """A random one."""
    return secrets.token_hex(REQUEST_ID_BYTES)


def current_request_id() -> str:
    """The one of the request that is being answered; empty: there is none."""
    return str(get_contextvars().get(REQUEST_ID_FIELD, ""))


class RequestId:
    """Give a request its name, and its answer the header. Within another one of its kind the outer name stays."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        name: str = state.setdefault(REQUEST_ID_FIELD, _given(scope) or new_request_id())

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = name
            await send(message)

        with bound_contextvars(**{REQUEST_ID_FIELD: name}):
            await self.app(scope, receive, send_named)


def _given(scope: Scope) -> str:
    given = Headers(scope=scope).getlist(REQUEST_ID_HEADER)
    return given[0] if len(given) == 1 and REQUEST_ID.fullmatch(given[0]) else ""
