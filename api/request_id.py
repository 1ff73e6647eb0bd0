"""Name of each request: in its answer, in the log lines and the audit record that it causes, and in its problem.

X-Request-Id of the request, if it is sane    ->  that one: whoever is in front can find it again here
else                                          ->  a random one
"""

import re
import secrets
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars, get_contextvars

HEADER: Final = "X-Request-Id"
FIELD: Final = "request_id"  # of log lines, audit records, problems, and in a scope's state
SANE: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}", re.ASCII)
BYTES: Final = 8  # of a random one


def new_request_id() -> str:
    """A random one."""
    return secrets.token_hex(BYTES)


def current_request_id() -> str:
    """The one of the request that is being answered; empty: there is none."""
    return str(get_contextvars().get(FIELD, ""))


class RequestId:
    """Give a request its name, and its answer the header. Within another one of its kind the outer name stays."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        name: str = state.setdefault(FIELD, _given(scope) or new_request_id())

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        with bound_contextvars(**{FIELD: name}):
            await self.app(scope, receive, send_named)


def _given(scope: Scope) -> str:
    given = Headers(scope=scope).getlist(HEADER)
    return given[0] if len(given) == 1 and SANE.fullmatch(given[0]) else ""
