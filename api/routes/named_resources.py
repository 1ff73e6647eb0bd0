"""Named resources over REST, policies and schedules: one conditional PUT (RFC 9110 section 13), and its answer.

A write says which version it replaces (`If-Match`), or that there must be none (`If-None-Match: *`); see
`api.preconditions`. The store compares and sets: who was slower is refused with 412 and the ETag of what there is.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header
from starlette.responses import Response

from api.body import Body
from api.dependencies import json_response
from api.ports import Ports
from api.preconditions import etag, expected_version, mismatch
from api.problems import Problem, unprocessable

IfMatch = Annotated[str | None, Header(description='The ETag of what is replaced, like "3"')]
IfNoneMatch = Annotated[str | None, Header(description="* to create")]

Answer = TypeVar("Answer")
Route = TypeVar("Route", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NamedResource:
    """One kind of them.

    `version` is that of what has a name now, 0: none. `problem` tells what a client is told of each of `errors`, which
    a write may raise.
    """

    noun: str
    path: str
    version: Callable[[Ports, str], int]
    errors: tuple[type[Exception], ...]
    problem: Callable[[Any], Problem]

    def put(self, router: APIRouter, description: Mapping[str, Any]) -> Callable[[Route], Route]:
        """The route that creates or replaces one; `description` is what `described` gives."""
        return router.put(
            f"{self.path}/{{name}}",
            **description,
            responses={201: {"description": "Created"}, 200: {"description": "Replaced"}},
        )

    def expected(self, ports: Ports, name: str, if_match: str | None, if_none_match: str | None = None) -> int:
        """The version that a write must find, 0: none. Raises `Problem` (412, 428)."""
        return expected_version(if_match, if_none_match, self.version(ports, name), self.noun)

    async def written(self, write: Callable[[], Answer]) -> Answer:
        """In a thread, because it blocks until the write was read back; a cancelled request does not stop it."""
        try:
            return await asyncio.to_thread(write)
        except self.errors as error:
            raise self.problem(error) from None

    def changed_meanwhile(self, version: int) -> Problem:
        """412: between the look at it and the write; `version` is what there is now, 0: none."""
        return mismatch(f"Somebody else changed the {self.noun} first.", version)


def with_name(body: Body, name: str) -> Body:
    """The body with the name of its path, unless it has one."""
    return body._replace(value={"name": name, **body.value}) if isinstance(body.value, dict) else body


def refuse_other_name(given: str, name: str) -> None:
    """Raises `Problem` (422) unless the body's name is that of its path."""
    if given != name:
        raise unprocessable("name-differs", f"The body's name is not {name}.")


def versioned_response(
    document: dict[str, Any], version: int, headers: Mapping[str, str] | None = None, created_at: str = ""
) -> Response:
    """The document with its version as ETag; 201 where it was created, with `created_at` as its Location."""
    told = {"ETag": etag(version), **(headers or {})}
    if created_at:
        return json_response(document, 201, {**told, "Location": created_at})
    return json_response(document, 200, told)
