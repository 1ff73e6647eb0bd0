"""OpenAPI 3.1 of the API, and a page that shows it without anything from outside.

The page is Redoc, a copy of its npm package in `api/redoc` (`make redoc` fetches it). Redoc writes style sheets while
it runs: they, and the scripts, carry a nonce that is made for each answer, and nothing else may run.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.dependencies import Access, Visitor, declared_access, json_response
from api.openapi.answers import ANSWERS
from api.openapi.description import (
    ALWAYS,
    ANSWER_HEADERS,
    HEADERS,
    OF_REFUSALS,
    PARAMETERS,
    REFUSES,
    SCHEMA_PLACE,
    refusals,
)
from api.problems import MEDIA_TYPE

NONCE_BYTES: Final = 16
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "RFC 9457. `type` says what is wrong to programs, `detail` to people. Some have more members.",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference", "examples": ["/problems/file-managed"]},
        "title": {"type": "string", "examples": ["File managed"]},
        "status": {"type": "integer", "examples": [409]},
        "detail": {"type": "string", "examples": ["The policies file manages this policy; change it there."]},
        "instance": {"type": "string", "examples": ["/v1/policies/reminders"]},
        "request_id": {"type": "string", "examples": ["f3a1b07c2d9e4f68"]},
    },
}
_TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "`Authorization: Bearer <token>`: a token of `api.tokens_file`, or one that an OpenID Connect "
    "provider signed (`api.oidc`). Each has a role: `read`, `write` or `admin`; a role may do what those before it "
    "may. Without tokens the API answers on this machine only, and what changes something needs the header "
    "`Tickover-Client` instead.",
}
_DONE: Final = {"200": "Done", "202": "Accepted: it is done beside, or will be", "204": "Deleted"}
_IF_NONE_MATCH: Final = {"name": "if-none-match", "in": "header", "required": False, "schema": {"type": "string"}}
_UNFORESEEN: Final = (
    "Any other problem: `internal-error` (500), `request-timeout` (408), and 503 with `starting`, `stopping` or "
    "`too-many-requests-under-way`"
)

router = APIRouter(include_in_schema=False)


def install(app: FastAPI, bodies: tuple[type[BaseModel], ...], path: str = "") -> None:
    """`bodies` are the models named by `described`: FastAPI doesn't see them. `path`: where a proxy shows the API."""
    app.servers = [{"url": path or "/"}]
    app.openapi = partial(_document, app, bodies)  # type: ignore[method-assign]


@router.get("/openapi.json", dependencies=[Visitor])
async def openapi(request: Request) -> Response:
    """The description of the API; it holds no data, so it needs no token."""
    return json_response(request.app.openapi())


@router.get("/docs", dependencies=[Visitor])
async def docs() -> Response:
    """The page that shows it."""
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    page = _file("docs.html").decode().replace("{nonce}", nonce)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(page, headers={"Content-Security-Policy": policy})


@router.get("/docs/redoc.js", dependencies=[Visitor])
async def renderer() -> Response:
    """The script of the page."""
    return Response(_file("redoc/redoc.standalone.js"), media_type="text/javascript; charset=utf-8")


@router.get("/", dependencies=[Visitor])
async def start(request: Request) -> Response:
    """People who open the address get the console, or the page of the API."""
    return RedirectResponse(request.app.state.start, 302)


@cache
def _file(name: str) -> bytes:
    """A file beside the code, of which there are three."""
    return files("api").joinpath(name).read_bytes()


def _document(app: FastAPI, bodies: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = _built(app, bodies)
    return app.openapi_schema


def _built(app: FastAPI, bodies: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, servers=app.servers
    )
    models = _by_title(
        models_json_schema([(model, "validation") for model in (*bodies, *_told())], ref_template=SCHEMA_PLACE)[1]
    )
    components = document.setdefault("components", {})
    schemas = {**components.get("schemas", {}), **models["$defs"], "Problem": _PROBLEM}
    # One of `retry` and `delay`: its words say so, and what reads descriptions can't make a type of it.
    del schemas["Policy"]["oneOf"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["schemas"] = dict(sorted(schemas.items()))
    components["headers"] = {
        name: {"description": words, "schema": {"type": "string"}} for name, words in HEADERS.items()
    }
    components["securitySchemes"] = {"token": _TOKEN}
    answers: dict[str, dict[str, Any]] = json.loads(_file("answers.json"))
    accesses = _accesses(app.state.routes)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            _complete(method, operation, accesses[name], answers.get(name, {}))
    return document


def _told() -> list[type[BaseModel]]:
    """The models of answers, each once."""
    return list(dict.fromkeys(ANSWERS.values()))


def _by_title(models: dict[str, Any]) -> dict[str, Any]:
    """Schemas of models, where two models have one name called by their titles and not by their modules."""
    text = json.dumps(models)
    for name, schema in models["$defs"].items():
        if "__" in name:
            text = text.replace(name, schema["title"])
    titled: dict[str, Any] = json.loads(text, object_hook=_without_null_default)
    return titled


def _without_null_default(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, but for a default of null: what may be left out and is null then says that by itself, and
    openapi-typescript takes whatever has a default for something that is always there.
    """
    return {name: value for name, value in schema.items() if (name, value) != ("default", None)}


def _accesses(routes: Iterable[object]) -> dict[str, Access]:
    """Whom each route answers, by method and path as the document has them."""
    return {
        f"{method} {route.path_format}": declared_access(route)
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def _complete(method: str, operation: dict[str, Any], access: Access, answers: Mapping[str, Any]) -> None:
    """Add to what FastAPI knows: role, words of parameters, headers and examples of answers by status, refusals."""
    role = None if access.role is None else access.role.name.lower()
    operation["description"] = f"{operation['description'].strip()}\n\nRole: {role or 'none'}."
    operation["security"] = [{}] if role is None else [{}, {"token": [role]}]
    given = operation.pop(ANSWER_HEADERS)
    if method == "get" and "ETag" in given.get("200", ()):
        operation.setdefault("parameters", []).append(_IF_NONE_MATCH.copy())
    for parameter in operation.get("parameters", ()):
        if "description" not in parameter:
            parameter["description"] = PARAMETERS[parameter["name"]]
    told = operation["responses"]
    told.pop("422", None)
    for status, answer in told.items():
        if answer["description"] == "Successful Response":
            answer["description"] = _DONE[status]
        model = ANSWERS.get(operation["operationId"])
        if model is not None and status != "204":
            answer["content"] = {"application/json": {"schema": _schema(model.__name__)}}
        if status in answers:
            answer.setdefault("content", {}).setdefault("application/json", {})["example"] = answers[status]
        answer["headers"] = _headers(given.get(status, ()))
    if method == "get" and "ETag" in given.get("200", ()):
        told["304"] = {"description": "It has one of the ETags of If-None-Match", "headers": _headers(given["200"])}
    for status, types in refusals(method, operation, access).items():
        told[str(status)] = _refused(status, types)
    problem = {MEDIA_TYPE: {"schema": _schema("Problem")}}
    told["default"] = {"description": _UNFORESEEN, "content": problem, "headers": _headers(["Retry-After"])}
    del operation[REFUSES]


def _refused(status: int, types: list[str]) -> dict[str, Any]:
    # Beside the reference, not in `allOf`: generators make one type of all, not one of each answer of each call.
    names = [f"/problems/{name}" for name in types]
    narrowed = {"properties": {"type": {"enum": names}, "status": {"const": status}}}
    return {
        "description": ", ".join(f"`{name}`" for name in types),
        "headers": _headers(OF_REFUSALS.get(status, ())),
        "content": {MEDIA_TYPE: {"schema": {**_schema("Problem"), **narrowed}}},
    }


def _headers(names: Iterable[str]) -> dict[str, dict[str, str]]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in sorted({*names, ALWAYS})}


def _schema(name: str) -> dict[str, str]:
    return {"$ref": SCHEMA_PLACE.format(model=name)}
