"""Rules of the API that every route keeps, whoever adds one: asked of all that the application has."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from fastapi.routing import APIRoute

from api.app import PARTS
from api.dependencies import query_parameters
from tests.unit.api_world import World, problem, world

ROUTES: Final = [route for part in PARTS for route in part.router.routes if isinstance(route, APIRoute)]
DESCRIBED: Final = [route for route in ROUTES if route.include_in_schema]


def calls(routes: list[APIRoute]) -> list[tuple[str, APIRoute]]:
    """Each method of each route."""
    return [(method, route) for route in routes for method in sorted(route.methods or ())]


def name(call: object) -> str:
    """Of a call in the list of tests."""
    return call.path_format if isinstance(call, APIRoute) else str(call)


def path_of(route: APIRoute) -> str:
    """A path that the route takes."""
    return route.path_format.format(**dict.fromkeys(route.param_convertors, "0"))


@pytest.fixture(scope="module", name="api")
def api_fixture() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture(scope="module", name="document")
def document_fixture(api: World) -> Any:
    return api.call("GET", "/openapi.json").json()


# --- parameters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "route"), calls(DESCRIBED), ids=name)
def test_an_unknown_parameter_is_refused(api: World, document: Any, method: str, route: APIRoute) -> None:
    response = api.call(method, f"{path_of(route)}?no-such=1")
    told = problem(response, 422, "unknown-parameter")["detail"]
    described = document["paths"][route.path_format][method.lower()].get("parameters", ())
    known = {one["name"] for one in described if one["in"] == "query"}
    assert known == query_parameters(route)
    assert told == f"There is no parameter 'no-such' here; there are {', '.join(sorted(known)) or 'none'}."
    misspelt = [one.upper() for one in known] or ["limit"]
    problem(api.call(method, path_of(route), params=dict.fromkeys(misspelt, "1")), 422, "unknown-parameter")


def test_a_page_is_opened_with_whatever_stands_behind_a_link(api: World) -> None:
    assert api.call("GET", "/docs?utm_source=chat").status_code == 200
