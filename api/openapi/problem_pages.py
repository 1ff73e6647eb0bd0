"""`GET /problems/{name}`: what the `type` of a problem leads to, as a page for people and as JSON.

Types with their statuses and words are in `api/problems.json`, which is made from the places that raise them (`make
pages`).
"""

import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import HTMLResponse, Response

from api.dependencies import Visitor, json_response
from api.openapi.description import described
from api.problems import Problem, title_of

PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<h1>{title}</h1>
<p>Problem <code>{name}</code> of tickover's REST API, with status {status}. Its <code>detail</code> says:</p>
<ul>
{details}
</ul>
{calls}<p><a href="../docs">All calls</a></p>
</html>
"""
BY: Final = "<p>Calls that may answer with it:</p>\n<ul>\n{calls}\n</ul>\n"

router = APIRouter(tags=["problems"])


class ProblemType(BaseModel):
    """A type of problem. An ellipsis in `details` stands for what depends on the case. `calls` may answer with it;
    there are none where any call may.
    """

    model_config = ConfigDict(frozen=True)
    type: str
    title: str
    status: int
    details: tuple[str, ...]
    calls: tuple[str, ...]


@router.get(
    "/problems/{name}",
    responses={200: {"model": ProblemType}},
    dependencies=[Visitor],
    **described("Say what a type of problem means", None, "not-found"),
)
async def get_problem_type(request: Request, name: str) -> Response:
    """Meaning of a type of problem, as HTML for who accepts it, else as JSON."""
    known = _types().get(name)
    if known is None:
        raise Problem(404, "not-found", "There is no type of problem of this name.")
    calls = _calls(request.app.openapi(), name)
    told = ProblemType(
        type=f"/problems/{name}", title=title_of(name), status=known["status"], details=known["details"], calls=calls
    )
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_page(name, told), headers={"Vary": "Accept"})
    return json_response(told.model_dump(), headers={"Vary": "Accept"})


@cache
def _types() -> dict[str, dict[str, Any]]:
    types: dict[str, dict[str, Any]] = json.loads(files("api").joinpath("problems.json").read_bytes())
    return types


def _calls(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Calls whose description has this type."""
    return tuple(
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if any(name in answer["description"].split("`") for answer in operation["responses"].values())
    )


def _page(name: str, told: ProblemType) -> str:
    calls = "\n".join(f"<li><code>{escape(call)}</code></li>" for call in told.calls)
    return PAGE.format(
        title=escape(told.title),
        name=escape(name),
        status=told.status,
        details="\n".join(f"<li>{escape(detail)}</li>" for detail in told.details),
        calls=BY.format(calls=calls) if calls else "",
    )
