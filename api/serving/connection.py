"""One client's connection: HTTP/1.1 by uvicorn, with a deadline for whatever the client has to do next.

    idle      nothing of a request has come     closed without a word
    head      a part of its head has come       408
    body      its head has come                 408
    rest      it is answered, its body comes    closed without a word
    sending   the client doesn't read           cut off
    closing   the client doesn't let go         cut off
    working   it is our turn                    no deadline here

In every phase but working the client is waited for, and the connection may be closed for a new one.

A deadline is for the whole phase: bytes that come one by one don't move it. Those of sending and closing are for each
step of the way: a client that has taken some of its answer since the last look has the time again, so that a large
answer gets through a slow line. What the server library answers by itself is a problem document with safe headers, as
every other answer is.
"""

import asyncio
import logging
import sys
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import h11
import uvicorn
from structlog.contextvars import bound_contextvars
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.answer_headers import (
    DEFAULT_HEADERS,
    REQUEST_ID_FIELD,
    REQUEST_ID_HEADER,
    SAFE_HEADERS,
    current_request_id,
    new_request_id,
)
from api.problems import TOLD, Problem, problem_response
from api.serving.connection_limit import Accepted, ConnectionLimit, plain_address

WARNING_EVERY_S: Final = 10.0
SAFE: Final = [(name.lower().encode(), value.encode()) for name, value in {**SAFE_HEADERS, **DEFAULT_HEADERS}.items()]
BAD_REQUESTS: Final = {
    431: ("headers-too-large", "The head of a request may have 16 KiB."),
    501: ("not-implemented", "Of transfer encodings only chunked is known."),
}

Phase = Literal["idle", "head", "body", "rest", "working", "sending", "closing"]

log = logging.getLogger("tickover.api.connection")


class RateLimitedLog(logging.Filter):
    """Of each text one line in 10 s, with a count of the others: what strangers send must not fill the log."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[str, float] = {}
        self._more: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        if record.created - self._last_s.get(record.msg, -WARNING_EVERY_S) < WARNING_EVERY_S:
            self._more[record.msg] = self._more.get(record.msg, 0) + 1
            return False
        self._last_s[record.msg] = record.created
        record.more = self._more.pop(record.msg, 0)
        return True


log.addFilter(RateLimitedLog())


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How many seconds a client has for each thing it has to do."""

    handshake_s: float = 10.0
    first_byte_s: float = 10.0
    idle_s: float = 30.0  # between requests
    head_s: float = 10.0
    body_s: float = 30.0
    sending_s: float = 30.0  # without taking anything of an answer
    closing_s: float = 5.0  # after it has taken all of it


class Connection(H11Protocol):
    """One client's requests, one after the other, its phase, and the timer of this phase: at most one runs."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        limit: ConnectionLimit,
        accepted: Accepted,
        deadlines: Deadlines,
    ) -> None:
        super().__init__(config, server_state, {})
        self.logger = log
        self._limit = limit
        self._accepted = accepted
        self._deadlines = deadlines
        self._phase: tuple[Phase, object] = ("working", None)
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0  # at the last look

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            self.client = plain_address(self.client[0]), self.client[1]
        self._accepted.close = transport.abort
        self._follow()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._follow()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # our own timer does it
        self._follow()

    def shutdown(self) -> None:
        """Called when the server stops."""
        super().shutdown()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._limit.leave(self._accepted)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Called for what is no HTTP, while h11's error is handled."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        type, detail = BAD_REQUESTS.get(status, ("bad-request", "This is no HTTP/1.1 request."))
        self._refuse(Problem(status, type, detail))

    def _unsupported_upgrade_warning(self) -> None:
        self.logger.warning("a client asked for another protocol than HTTP/1.1, and was answered by HTTP/1.1")

    def _phase_now(self) -> Phase:
        if self.transport.is_closing():
            return "closing"
        if self.flow.write_paused:
            return "sending"
        theirs = self.conn.their_state
        if theirs is h11.SEND_BODY:
            return "rest" if self.cycle.response_complete else "body"
        if theirs is not h11.IDLE:
            return "working"
        return "head" if self.conn.trailing_data[0] else "idle"

    def _follow(self) -> None:
        phase = (self._phase_now(), self.cycle)
        if phase == self._phase:
            return
        self._phase = phase
        self._stop_timer()
        self._limit.work(self._accepted)
        if phase[0] != "working":
            self._limit.wait(self._accepted)  # from now on: who is in the middle of something is not the oldest
        self._start_timer()

    def _start_timer(self) -> None:
        deadlines, (phase, cycle) = self._deadlines, self._phase
        self._unsent_bytes = _unsent_bytes(self.transport)
        if phase == "working":
            return
        seconds = {
            "idle": deadlines.first_byte_s if cycle is None else deadlines.idle_s,
            "head": deadlines.head_s,
            "body": deadlines.body_s,
            "rest": deadlines.body_s,
            "sending": deadlines.sending_s,
            "closing": deadlines.sending_s if self._unsent_bytes else deadlines.closing_s,
        }[phase]
        self._timer = self.loop.call_later(seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        match self._phase[0]:
            case "idle":
                self.timeout_keep_alive_handler()
            case "rest":
                self.transport.close()
            case "head":
                self._refuse(Problem(408, "request-timeout", "The head of the request did not come in time."))
            case "body" if self.flow.read_paused:  # we haven't taken what has come: not the client's fault
                self._start_timer()
            case "body":
                self._refuse(Problem(408, "request-timeout", "The body of the request did not come in time."))
            case _ if _unsent_bytes(self.transport) < self._unsent_bytes:  # the client takes it, if slowly
                self._start_timer()
            case _:
                self.transport.abort()
        self._follow()

    def _refuse(self, problem: Problem) -> None:
        """Answer in place of the application, unless it has begun to, and close."""
        path, request_id, cycle = "/", "", cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            path, state = cycle.scope["path"], cycle.scope["state"]
            state[TOLD] = problem.status
            request_id = state.get(REQUEST_ID_FIELD, "")
            cycle.disconnected = True  # what the application says from now on goes nowhere
            cycle.message_event.set()
        with bound_contextvars(**{REQUEST_ID_FIELD: request_id or new_request_id()}):
            response = problem_response(problem, path)
            name = REQUEST_ID_HEADER.encode(), current_request_id().encode()
        headers: list[Any] = [*self.server_state.default_headers, *response.raw_headers, *SAFE, name, CLOSE_HEADER]
        reason = STATUS_PHRASES[problem.status]
        try:
            for event in (
                h11.Response(status_code=problem.status, headers=headers, reason=reason),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        except h11.LocalProtocolError:  # an answer is on its way already
            pass
        self.transport.close()
        self._follow()


def _unsent_bytes(transport: asyncio.Transport) -> int:
    """Bytes written that the system has not taken yet; with TLS also those that are encrypted already."""
    encrypted = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return transport.get_write_buffer_size() + (encrypted.get_write_buffer_size() if encrypted else 0)
