"""The page of REST, from the OpenAPI document."""

from collections.abc import Iterator
from typing import Any, Final

from fastapi.routing import APIRoute

from api.app import PARTS
from api.dependencies import declared_access
from api.openapi.description import OF_BODIES, OF_CALLERS, OF_QUERIES
from tests.pages.schema import default, kind, limits, sections
from tests.pages.text import code, head, table
from tests.unit.api_world import World

WORDS: Final = """\
Every call, from the OpenAPI document that the process serves at `/openapi.json` (and shows at `/docs`). What answers
mean: [the contract](../contract.md#rest). What can go wrong: [errors](problems.md). Who may call:
[security of the API](../api-security.md).

The problems below are those of each call. Each may also answer with {queries}, whatever needs a role with {callers},
whatever takes a body with {bodies}.
"""


def roles() -> dict[str, str]:
    """The role that each call needs, by method and path; `none`: anybody."""
    return {
        f"{method} {route.path.replace(':path}', '}')}": access.role.name.lower()
        if (access := declared_access(route)).role
        else "none"
        for part in PARTS
        for route in part.router.routes
        if isinstance(route, APIRoute) and route.path != "/"
        for method in route.methods or ()
    }


def words() -> str:
    """Words above the calls."""
    given = {"callers": OF_CALLERS, "bodies": OF_BODIES, "queries": OF_QUERIES}
    return WORDS.format(**{name: ", ".join(map(code, types)) for name, types in given.items()})


def page() -> str:
    """The whole text."""
    document = World().app.openapi()
    calls = [
        (method.upper(), path, operation)
        for path, operations in sorted(document["paths"].items())
        for method, operation in operations.items()
    ]
    parts = [
        head("REST", "the OpenAPI document of api/app.py", words()),
        *(text for method, path, operation in calls for text in call(method, path, operation)),
        "\n## Bodies\n",
        *sections(document["components"]["schemas"], "###"),
    ]
    return "".join(parts)


def types(answer: dict[str, Any]) -> list[str]:
    """The problem types that an answer may have; none of what may come from anywhere."""
    schema = answer["content"]["application/problem+json"]["schema"]
    enum = schema["properties"]["type"]["enum"] if "properties" in schema else []
    return [name.removeprefix("/problems/") for name in enum]


def call(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    """The section of one call."""
    yield f"\n## {method} {path}\n\n{operation['description']}\n"
    if body := operation.get("requestBody"):
        yield f"Body: {kind(body['content']['application/json']['schema'])}.\n"
    answers, refused = [], []
    for status, answer in operation["responses"].items():
        schema = answer.get("content", {}).get("application/json", {}).get("schema")
        if status.startswith("2"):
            answers.append(f"{status}{f' {kind(schema)}' if schema else ''}")
        elif status == "304":
            answers.append(status)
        elif own := [name for name in types(answer) if name not in {*OF_CALLERS, *OF_BODIES, *OF_QUERIES}]:
            refused.append(f"{status} {', '.join(map(code, own))}")
    yield f"Answer: {', '.join(answers)}; else a [problem](#problem){': ' if refused else ''}{'; '.join(refused)}.\n"
    if parameters := operation.get("parameters"):
        yield "\n" + table(
            ("parameter", "in", "value", "default", "limits", "what"),
            (
                (
                    code(one["name"]),
                    one["in"],
                    kind(one["schema"]),
                    default(one["schema"], one["required"]),
                    limits(one["schema"]),
                    one.get("description", ""),
                )
                for one in parameters
            ),
        )
