"""Bodies: at most so many bytes, strict JSON, one model. Whatever arrives ends in a value or a 4xx.

Python's json is lenient where others are not: it takes duplicate keys (last wins), NaN, 1e999 as infinity and
half of a surrogate pair. Each would mean something else to the next reader, or crash librdkafka: refused.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import Problem, errors_of, problem_response, unprocessable
from api.shape import many_unknown_keys, refuse_many_keys, refuse_many_values, validator_of
from policies.faults.faults import Fault, faults_of, unknown_key

DRAINED_LIMITS: Final = 16  # of a refused body this many times the limit is read and thrown away
DRAIN_S: Final = 2.0  # for no longer than this in all
DIGITS_MAX: Final = 400  # of a whole number; a fraction's never count. Reading n digits takes n * n steps

Model = TypeVar("Model", bound=BaseModel)


class Body(NamedTuple):
    """A parsed body and its canonical bytes (sorted keys), by which two bodies are compared."""

    value: Any
    canonical: bytes


class BodyLimit:
    """Refuses bodies over `limit_bytes`: by Content-Length at once, else (chunked) by counting what comes.

    Most clients send all of a body before they read, and a connection closed in their face is reset, so that they
    would never see the 413. One that stays open has its answer at once, and throws the rest away while nobody works on
    the request. One that is closed after its answer is read to the end first, up to a limit and for a short time:
    nobody has asked for a token yet, and the request counts as under way.
    """

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self.app = app
        self.limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > self.limit_bytes:
            # A client that asks first gets its answer first, and may then send something else than the body.
            refusal = self._refusal(True) if b"expect" in headers else await self._refuse(scope, receive)
            await problem_response(refusal, scope["path"])(scope, receive, send)
            return
        received = 0

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit_bytes:
                raise self._refusal(False) if not message.get("more_body") else await self._refuse(scope, receive)
            return message

        await self.app(scope, counted_receive, send)

    async def _refuse(self, scope: Scope, receive: Receive) -> Problem:
        if not _is_closed_after(scope):
            return self._refusal(closes=False)
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._drain(receive)
        except TimeoutError:
            pass  # the client has had its time, and gets its answer
        return self._refusal(closes=True)

    async def _drain(self, receive: Receive) -> None:
        discarded = 0
        while discarded <= DRAINED_LIMITS * self.limit_bytes:
            message = await receive()
            discarded += len(message.get("body", b""))
            if not message.get("more_body"):
                return

    def _refusal(self, closes: bool) -> Problem:
        headers = {"Connection": "close"} if closes else {}
        return Problem(413, "body-too-large", f"A body may have {self.limit_bytes} bytes.", headers)


def _is_closed_after(scope: Scope) -> bool:
    """Whether this request is the last one of its connection."""
    wishes = [value.lower() for name, value in scope["headers"] if name == b"connection"]
    return scope["http_version"] == "1.0" or any(b"close" in value for value in wishes)


async def json_body(request: Request) -> Body:
    """The request's body as strict JSON."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, "unsupported-media-type", "Send the body as application/json.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "unsupported-encoding", "Send the body uncompressed.")
    return parse(await request.body())


def parse(data: bytes) -> Body:
    """Strict JSON: 400 for what isn't JSON, 422 for what is ambiguous or has too many values."""
    refuse_many_values(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Problem(400, "malformed-json", "The body is not UTF-8.") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant)
        # Also finds infinities written as 1e999 (ValueError) and half surrogates (UnicodeEncodeError).
        canonical = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return Body(value, canonical.encode("utf-8"))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(400, "malformed-json", f"The body is not JSON: {error.msg} at {where}.") from None
    except UnicodeEncodeError:
        raise unprocessable("invalid-text", "A text holds half of a surrogate pair.") from None
    except RecursionError:
        raise unprocessable("too-deep", "The body is nested too deeply.") from None
    except ValueError:
        raise unprocessable("invalid-number", "A number is too large or not finite.") from None


def validated(model: type[Model], body: Body) -> Model:
    """The body as `model`, or 422 with a list of what is wrong where."""
    if unknown := many_unknown_keys(model, body.value):
        raise _refused(unknown_key(model, body.value, place) for place in unknown)
    try:
        value = validator_of(model).validate_python(body.value)
        assert isinstance(value, model)
        return value
    except ValidationError as error:
        raise _refused(faults_of(error, model, body.value)) from None
    except RecursionError:
        raise unprocessable("too-deep", "The body is nested too deeply.") from None


def _refused(faults: Iterable[Fault]) -> Problem:
    return unprocessable("invalid-body", "The body does not fit the schema.", errors=errors_of(faults))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse_many_keys(len(pairs))
    value = dict(pairs)
    if len(value) != len(pairs):
        raise unprocessable("duplicate-key", "An object has the same key twice.")
    return value


def _integer(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise unprocessable("invalid-number", f"A number has at most {DIGITS_MAX} digits.")
    return int(text)


def _constant(name: str) -> NoReturn:
    raise unprocessable("invalid-number", f"{name} is not a JSON number.")
