"""OpenAPI 3.1 of the API, and a page that shows it without anything from outside."""

import base64
import hashlib
import re
from functools import partial
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.dependencies import Visitor, json_response

REFERENCE: Final = "#/components/schemas/{model}"
_OPEN: Final = ("/livez", "/readyz")
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "RFC 9457",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference", "examples": ["/problems/file-managed"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
    },
}

router = APIRouter(include_in_schema=False)


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route that parses its own JSON, as `openapi_extra`."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install(app: FastAPI, bodies: tuple[type[BaseModel], ...], path: str = "") -> None:
    """`bodies` are the models named by `body_of`: FastAPI doesn't see them. `path`: where a proxy shows the API."""
    app.servers = [{"url": path or "/"}]
    app.openapi = partial(_document, app, bodies)  # type: ignore[method-assign]


@router.get("/openapi.json", dependencies=[Visitor])
async def openapi(request: Request) -> Response:
    """The description of the API; it holds no data, so it needs no token."""
    return json_response(request.app.openapi())


@router.get("/docs", dependencies=[Visitor])
async def docs() -> Response:
    """The page that shows it."""
    page = files("api").joinpath("docs.html").read_text("utf-8")
    return HTMLResponse(page, headers={"Content-Security-Policy": _content_policy(page)})


@router.get("/", dependencies=[Visitor])
async def start() -> Response:
    """People who open the address get the page."""
    return RedirectResponse("/docs", 302)


def _content_policy(page: str) -> str:
    """Nothing but this page's own script and style, known by their hashes, and our openapi.json."""
    script, style = (_hash_of(tag, page) for tag in ("script", "style"))
    return (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash_of(tag: str, page: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert found is not None
    return "sha256-" + base64.b64encode(hashlib.sha256(found.group(1).encode()).digest()).decode()


def _document(app: FastAPI, bodies: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = _built(app, bodies)
    return app.openapi_schema


def _built(app: FastAPI, bodies: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, servers=app.servers
    )
    _, models = models_json_schema([(model, "validation") for model in bodies], ref_template=REFERENCE)
    components = document.setdefault("components", {})
    schemas = {**components.get("schemas", {}), **models["$defs"], "Problem": _PROBLEM}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["schemas"] = dict(sorted(schemas.items()))
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    problem = {
        "description": "Not done",
        "content": {"application/problem+json": {"schema": {"$ref": REFERENCE.format(model="Problem")}}},
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = problem
            operation["security"] = [{}] if path in _OPEN else [{}, {"token": []}]
    return document
