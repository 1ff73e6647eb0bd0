"""RFC 9457 problem documents: the one shape of every error that leaves the API."""

import json
import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answer_headers import REQUEST_ID_FIELD, current_request_id
from policies.errors import FAULTS_TOLD_MAX
from policies.faults.faults import Fault
from policies.faults.words import words_of

MEDIA_TYPE: Final = "application/problem+json"
TOLD: Final = "told"  # in a scope's state: the status of what the connection has answered in the application's place
STEP_LENGTH_MAX: Final = 200  # of a key in the place of an error, so much is shown

log = logging.getLogger("tickover.api")


class Problem(Exception):
    """A refused request. `type` is the last step of its URI (`file-managed`); `extra` are further members."""

    def __init__(
        self,
        status: int,
        type: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(f"{status} {type}")
        self.status = status
        self.type = type
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = extra


def title_of(type: str) -> str:
    """Words of a type: `File managed`."""
    return type.replace("-", " ").capitalize()


def problem_document(problem: Problem, instance: str) -> dict[str, Any]:
    """Problem document as plain data, without the id of a request."""
    return {
        "type": f"/problems/{problem.type}",
        "title": title_of(problem.type),
        "status": problem.status,
        "detail": problem.detail,
        "instance": instance,
        **problem.extra,
    }


def problem_response(problem: Problem, instance: str) -> Response:
    """ASCII JSON, so that no text in it (a half character in a name, say) can fail to be encoded."""
    document = problem_document(problem, instance)
    if request_id := current_request_id():
        document[REQUEST_ID_FIELD] = request_id
    return Response(json.dumps(document), problem.status, problem.headers, MEDIA_TYPE)


def unprocessable(type: str, detail: str, **extra: Any) -> Problem:
    """422: well-formed, but not to be done."""
    return Problem(422, type, detail, **extra)


def install(app: FastAPI) -> None:
    """Every error the routes and the router raise becomes a problem document."""
    app.add_exception_handler(Problem, _own)
    app.add_exception_handler(HTTPException, _of_router)
    app.add_exception_handler(RequestValidationError, _of_parameters)


def errors_of(faults: Iterable[Fault]) -> list[dict[str, str]]:
    """Faults as place and message, the first of them; never the input, which may be a payload."""
    return [
        {"at": "/" + "/".join(str(step)[:STEP_LENGTH_MAX] for step in fault.place), "message": fault.problem}
        for fault in islice(faults, FAULTS_TOLD_MAX)
    ]


def _own(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    request.state.trail.problem = error.type
    return problem_response(error, request.url.path)


def _of_router(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    detail = {
        404: "There is nothing at this path.",
        405: f"{request.method} is not allowed here.",
    }.get(error.status_code, phrase)
    type = phrase.lower().replace(" ", "-")
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    return problem_response(Problem(error.status_code, type, detail, headers), request.url.path)


def _allowed(request: Request) -> str:
    """The methods of this path; the router names those of the first route that has it, and not what is answered for
    every one: OPTIONS here, HEAD by `api.app.Head`.
    """
    routes = [route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in routes for method in route.methods}
    return ", ".join(sorted({*methods, "OPTIONS", *({"HEAD"} if "GET" in methods else ())}))


def _of_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = errors_of(Fault(tuple(one["loc"]), words_of(one)) for one in error.errors())
    request.state.trail.problem = "invalid-parameter"
    return problem_response(
        unprocessable("invalid-parameter", "A query or path parameter is not valid.", errors=errors),
        request.url.path,
    )


class Answer:
    """An ASGI `send` that knows whether something of the answer has gone."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


class Failures:
    """The outermost ASGI layer: what nobody foresaw becomes a 500 without internals.

    The log gets the type and the place, never the message: pydantic and librdkafka put input into theirs.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = Answer(send)
        try:
            await self.app(scope, receive, answer)
        except ClientDisconnect:  # there is nobody to answer, and strangers could fill the log with it
            return
        except Exception as error:  # noqa: BLE001 - the last line: a client gets an answer, whatever it was
            log_failure(error)
            if answer.has_begun:
                raise ConnectionAbortedError("response cut short") from None
            problem = Problem(500, "internal-error", "The request failed inside tickover; its log says where.")
            await problem_response(problem, scope["path"])(scope, receive, send)


def log_failure(error: Exception) -> None:
    """Log what nobody foresaw: type and place."""
    log.error("request failed: %s at %s", type(error).__name__, _place(error))


def _place(error: Exception) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else "unknown"
