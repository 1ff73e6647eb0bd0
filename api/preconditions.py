"""No lost updates (RFC 9110 section 13): an ETag is a version, a write says which it replaces.

A held message has no versions: its ETag is the place where it is held, which no other message has while its source
exists. A source that is deleted and created again counts from 0, so that a later message may have the place.

Proxies that compress an answer change its ETag: nginx makes it weak (`W/"3"`), Apache and Caddy add the coding
(`"3-gzip"`). All of these name version 3. RFC 9110 lets a weak tag match nothing here, since it may stand for
several contents; a version stands for one.
"""

import re
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import Problem
from sidecar.model.record import Place

_ETAGS: Final = re.compile(r'\s*(?:W/)?"[\x21\x23-\x7e]*"\s*(?:,\s*(?:W/)?"[\x21\x23-\x7e]*"\s*)*')
_NAMED: Final = re.compile(r'"([\x21\x23-\x7e]*?)(?:--?(?:gzip|deflate|br|zstd))?"')


def etag(version: int) -> str:
    """The strong ETag of a version."""
    return f'"{version}"'


def expected_version(if_match: str | None, if_none_match: str | None, current: int, thing: str) -> int:
    """The version a write must find, 0: none; `current` is what there is. Raises `Problem` (412, 428)."""
    if if_match is None and if_none_match is None:
        detail = "Say what this replaces: If-None-Match: * to create, If-Match with the ETag to replace."
        raise Problem(428, "precondition-required", detail)
    if if_match is not None and if_none_match is not None:
        raise Problem(422, "invalid-precondition", "Give If-Match or If-None-Match, not both.")
    if if_match is not None:
        return _matched(if_match, current, thing)
    if if_none_match is None or if_none_match.strip() != "*":
        raise Problem(422, "invalid-precondition", "Only If-None-Match: * is understood here.")
    if current:
        raise mismatch(f"There is a {thing} of this name already.", current)
    return 0


def _matched(if_match: str, current: int, thing: str) -> int:
    if objection := _objection(if_match, etag(current), thing):
        raise mismatch(objection, current)
    if not current:
        raise mismatch(f"There is no {thing} of this name.", current)
    return current


def _objection(if_match: str, current: str, thing: str) -> str:
    """Why `if_match` doesn't match the ETag `current`; empty when it does."""
    if if_match.strip() == "*":
        return ""
    if not _ETAGS.fullmatch(if_match):
        return 'If-Match is a list of ETags like "3", with their quotes, or *: this matches nothing.'
    is_named = current.strip('"') in _NAMED.findall(if_match)
    return "" if is_named else f"The {thing} is not, or no longer, the one with this ETag."


class NotModified:
    """A GET whose answer has one of the ETags of its `If-None-Match` is answered with 304, and no body.

    A held message may have gone from Redis to memory meanwhile: its ETag says where it is held in its source.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = Headers(scope=scope).get("if-none-match") if scope["type"] == "http" else None
        if known is None or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        is_known = False

        async def send_what_is_new(message: Message) -> None:
            nonlocal is_known
            if message["type"] == "http.response.start" and message["status"] == 200:
                headers = MutableHeaders(scope=message)
                is_known = "etag" in headers and not _objection(known, headers["etag"], "")
                if is_known:
                    for name in ("content-length", "content-type"):
                        del headers[name]
                    message = {**message, "status": 304, "headers": headers.raw}
            await send({**message, "body": b""} if is_known and message["type"] == "http.response.body" else message)

        await self.app(scope, receive, send_what_is_new)


def mismatch(detail: str, current: int) -> Problem:
    """412, with the ETag of what there is."""
    headers = {"ETag": etag(current)} if current else {}
    return Problem(412, "precondition-failed", detail, headers)


def message_etag(place: Place) -> str:
    """The strong ETag of a message that is held at `place`: `"topic/partition/offset"`."""
    return f'"{place.topic}/{place.partition}/{place.offset}"'


def refuse_other(if_match: str | None, held: Place) -> None:
    """Raises `Problem` (412) unless `if_match` is left out, or names the message that is held at this place."""
    if if_match is not None and (objection := _objection(if_match, message_etag(held), "message")):
        raise Problem(412, "precondition-failed", objection, {"ETag": message_etag(held)})
