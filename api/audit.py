"""Audit: who did what to which policy, message or dead letter, and how it ended, one JSON record each in the audit
topic.

Every route that needs more than the role `read` is audited by itself, refusals included, and so is every caller who is
not let in, wherever; a route adds what it knows with `Trail.note`. A route that only shows something worth a record (a
payload) says so with `Trail.show`.

A record is written when the outcome is known, and the answer waits until Kafka has it. If Kafka doesn't take it, the
action can't be undone: its record goes to the log as an error, is kept, and nothing more is done (503) until all that
are kept have been written. So at most the requests that were under way are owed.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.auth import Caller, Role
from api.answer_headers import REQUEST_ID_FIELD, current_request_id
from api.ports import Outgoing, Sender, SenderError
from api.problems import TOLD, Problem, problem_response

TEXT_LENGTH_MAX: Final = 500
CHEAP_PER_S_MAX: Final = 10  # of refusals that cost the caller nothing: nobody may fill the topic with them
NOT_LET_IN: Final = (401, 403, 429)
GONE: Final = 499  # no status of HTTP: the client hung up before its request had come

log = logging.getLogger("tickover.audit")


class AuditUnavailable(Exception):
    """The audit topic can't be written."""


class Trail:
    """Facts that are known of one request; in `request.state.trail`."""

    def __init__(self) -> None:
        self.caller: Caller | None = None
        self.needed: Role | None = None
        self.problem = ""
        self.status = 0
        self.notes: dict[str, Any] = {}
        self.shows = False
        self.is_recorded = False

    def note(self, **facts: object) -> None:
        """Add to the record: names, positions and counts, never a payload or a secret."""
        self.notes |= {name: _cut(fact) for name, fact in facts.items()}

    def show(self, **facts: object) -> None:
        """Note that this reading is worth a record: the answer is given only when the record is written."""
        self.shows = True
        self.note(**facts)

    @property
    def is_audited(self) -> bool:
        return self.shows or (self.needed is not None and self.needed > Role.READ)


class AuditLog:
    """Writes to the audit topic by the API's own producer. Used by the API's event loop alone."""

    def __init__(self, sender: Sender, topic: str, monotonic_s: Callable[[], float]) -> None:
        self._sender = sender
        self._topic = topic
        self._monotonic_s = monotonic_s
        self._owed: deque[dict[str, Any]] = deque()
        self._paying = asyncio.Lock()
        self._second = 0
        self._cheap = 0
        self._unrecorded = 0

    async def ready(self) -> None:
        """Write what is owed. Raises AuditUnavailable: then nothing may be done that would need a record."""
        if not self._owed:
            return
        async with self._paying:
            while self._owed:
                await self._send(self._owed[0])
                self._owed.popleft()
        log.warning("the audit topic takes records again")

    async def done(self, record: dict[str, Any]) -> None:
        """Record what can't be undone."""
        try:
            await self._send(record)
        except AuditUnavailable as error:
            log.error("audit record not written, kept", extra={"record": record, "error": str(error)})
            self._owed.append(record)

    async def refused(self, record: dict[str, Any]) -> None:
        """Record what was not done: if that fails, the log has it."""
        is_cheap = record["actor"] is None or record["status"] == 429
        if is_cheap and not self._may_record_cheap():
            return
        if self._unrecorded:
            record = {**record, "unrecorded": self._unrecorded}
        try:
            await self._send(record)
            self._unrecorded = 0
        except AuditUnavailable as error:
            log.error("audit record not written", extra={"record": record, "error": str(error)})

    async def shown(self, record: dict[str, Any]) -> None:
        """Record what is about to be shown. Raises AuditUnavailable: then it isn't."""
        await self._send(record)

    def _may_record_cheap(self) -> bool:
        second = int(self._monotonic_s())
        if second != self._second:
            self._second, self._cheap = second, 0
        self._cheap += 1
        if self._cheap > CHEAP_PER_S_MAX:
            self._unrecorded += 1
            return False
        return True

    async def _send(self, record: dict[str, Any]) -> None:
        value = json.dumps(record, default=str).encode()
        try:
            await self._sender.send(Outgoing(self._topic, 0, None, value, (), record["time"]))
        except SenderError as error:
            raise AuditUnavailable(str(error)) from None


class Audit:
    """The ASGI layer that writes a request's record between its outcome and its answer."""

    def __init__(self, app: ASGIApp, audit: AuditLog, now_ms: Callable[[], int]) -> None:
        self.app = app
        self._audit = audit
        self._now_ms = now_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        trail = Trail()
        scope.setdefault("state", {})["trail"] = trail
        replaced = False

        async def answer(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start":
                trail.status = message["status"]
                replaced = not await self._record(scope, trail)
                if replaced:
                    await problem_response(unavailable(), scope["path"])(scope, receive, send)
            if not replaced:
                await send(message)

        try:
            await self.app(scope, receive, answer)
        except asyncio.CancelledError:
            self._interrupted(scope, trail)
            raise
        except Exception as error:
            if not trail.status:
                is_client = isinstance(error, ClientDisconnect)
                trail.status = scope["state"].get(TOLD, GONE) if is_client else 500
                await self._record(scope, trail)
            raise

    def _interrupted(self, scope: Scope, trail: Trail) -> None:
        """The stop has cut the request off: nothing can be waited for any more, so the log has the record."""
        if trail.is_recorded or not trail.is_audited:
            return
        record = _record_of(scope, trail, self._now_ms())
        log.error("audit record not written: the stop interrupted the request", extra={"record": record})

    async def _record(self, scope: Scope, trail: Trail) -> bool:
        """Whether the answer may be given."""
        if trail.is_recorded or not (trail.is_audited or trail.status in NOT_LET_IN or _is_refused_body(trail)):
            return True
        record = _record_of(scope, trail, self._now_ms())
        may_answer = await self._write(record, trail)
        trail.is_recorded = True
        return may_answer

    async def _write(self, record: dict[str, Any], trail: Trail) -> bool:
        if 400 <= trail.status < 500 or trail.problem == "audit-unavailable":
            await self._audit.refused(record)
        elif trail.needed is not None and trail.needed > Role.READ and not trail.shows:
            await self._audit.done(record)
        else:
            try:
                await self._audit.shown(record)
            except AuditUnavailable:
                return False
        return True


def unavailable() -> Problem:
    """The answer while no record can be written."""
    detail = "The audit topic can't be written at the moment, and nothing is done without a record."
    return Problem(503, "audit-unavailable", detail, {"Retry-After": "1"})


def _is_refused_body(trail: Trail) -> bool:
    """A body so large that the request got no further: nobody knows yet whose it was."""
    return trail.status == 413 and trail.needed is None


def _record_of(scope: Scope, trail: Trail, now_ms: int) -> dict[str, Any]:
    route, client = scope.get("route"), scope.get("client")
    return {
        "time": now_ms,
        "actor": trail.caller.name if trail.caller else None,
        "action": getattr(route, "name", None),
        "method": scope["method"],
        "path": _cut(scope["path"]),
        "subject": {name: _cut(value) for name, value in scope.get("path_params", {}).items()},
        "outcome": _outcome_of(trail),
        "status": trail.status or None,
        "problem": trail.problem or None,
        REQUEST_ID_FIELD: current_request_id(),
        "client": client[0] if client else None,
        "notes": trail.notes,
    }


def _outcome_of(trail: Trail) -> str:
    if trail.problem == "audit-unavailable":
        return "refused"
    if not trail.status:
        return "unknown"
    return "done" if trail.status < 400 else "refused" if trail.status < 500 else "failed"


def _cut(fact: object) -> object:
    return fact[:TEXT_LENGTH_MAX] if isinstance(fact, str) else fact
