"""Rules of the API that every route keeps, whoever adds one: asked of all that the application has."""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any, Final

import pytest
from fastapi.routing import APIRoute

from api.access.auth import Role
from api.app import PARTS
from api.dependencies import query_parameters
from api.openapi.description import STATUS_OF
from tests.pages.problems import types
from tests.source import ROOT
from tests.unit.api.access.role_world import CALLS, ask, full_world, token_of
from tests.unit.api_world import World, headers_described, problem, shapes, world
from tests.unit.place_rule import unplaced

ROUTES: Final = [route for part in PARTS for route in part.router.routes if isinstance(route, APIRoute)]
UNFORESEEN: Final = (
    "internal-error", "method-not-allowed", "request-timeout", "starting", "stopping", "too-many-requests-under-way"
)  # fmt: skip
OPERATION_ID_MAX: Final = 32
VERBS: Final = (
    "abort", "approve", "cancel", "canary", "close", "delete", "discard", "edit", "explain", "export", "fire", "follow",
    "get", "list", "open", "pause", "plan", "put", "reschedule", "resume", "rewind", "rollback", "run", "send",
)  # fmt: skip
TIME: Final = re.compile("epoch m|RFC 3339", re.IGNORECASE)
TIMES_MIN: Final = 15  # of them, in parameters and in bodies
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


# --- the description ----------------------------------------------------------------------------------------------


def operations(document: Any) -> dict[str, Any]:
    """All that the document describes, by method and path."""
    return {
        f"{method.upper()} {path}": one
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    }


def test_operation_ids_are_names_for_functions_of_a_client(document: Any) -> None:
    ids = [one["operationId"] for one in operations(document).values()]
    assert len(set(ids)) == len(ids)
    for id in ids:
        assert re.fullmatch(r"[a-z]+(_[a-z]+){1,3}", id), id
        assert len(id) <= OPERATION_ID_MAX, id
        assert id.partition("_")[0] in VERBS, f"{id}: does it begin with a verb?"


@pytest.mark.parametrize("call", sorted(name for name in CALLS if "/v1/" in name))
def test_what_is_answered_has_a_schema_and_an_example(document: Any, call: str) -> None:
    for status, answer in operations(document)[call]["responses"].items():
        if call == "GET /v1/events" and status == "200":
            assert answer["content"].keys() == {"text/event-stream"}
            assert answer["content"]["text/event-stream"].keys() == {"schema", "example"}
        elif status.startswith("2") and status != "204":
            media = answer["content"]["application/json"]
            assert media["schema"], (call, status)
            assert "example" in media or call == "GET /v1/schemas/policy", (call, status)
            assert f"{call} {status}" in shapes()


def types_of(schema: Any) -> set[str]:
    """JSON types that a schema takes."""
    return {schema.get("type", "")}.union(*(types_of(one) for one in schema.get("anyOf", ()))) - {""}


def test_each_time_that_is_asked_for_is_taken_as_a_number_and_as_a_text(document: Any) -> None:
    asked = {
        f"{name}: {parameter['name']}": parameter
        for name, one in operations(document).items()
        for parameter in one.get("parameters", ())
    }
    asked |= {
        f"{name}: {field}": schema
        for name, model in document["components"]["schemas"].items()
        for field, schema in model.get("properties", {}).items()
    }
    times = {name: one for name, one in asked.items() if TIME.search(one.get("description", ""))}
    assert len(times) >= TIMES_MIN
    for name, one in times.items():
        types = types_of(one.get("schema", one))
        assert "string" in types, f"{name} takes {types}"
        assert "in" in one or types & {"integer", "number"}, f"{name} takes {types}"


@pytest.mark.slow
@pytest.mark.parametrize("call", sorted(name for name in CALLS if "/v1/" in name))
def test_what_is_answered_is_as_described(call: str) -> None:
    for one in CALLS[call]:
        assert ask(call, one, Role.ADMIN).status < 300  # the world compares the answer with its schema


@pytest.mark.parametrize("call", sorted(answers := json.loads((ROOT / "api/answers.json").read_text())))
def test_each_place_of_a_record_is_there_as_text_under_a_name_that_ends_alike(call: str) -> None:
    for status, answer in answers[call].items():
        assert list(unplaced(answer)) == [], status


PLACED: Final = {"topic": "a", "partition": 0, "offset": 7}


@pytest.mark.parametrize(
    "answer",
    [
        PLACED,
        {"position": PLACED},
        {"position": "a/0/7"},
        {"position": PLACED, "place": "a/0/8"},
        {"items": [{"control": PLACED, "place": "a/0/7"}]},
        {"timeline": [{"by": PLACED, "by_place": "by"}]},
        {"positions": [PLACED, PLACED], "places": ["a/0/7"]},
        {"items": [PLACED]},
        {"ledger": {"partition": 0, "offset": 7}, "ledger_place": "ledger/0/8"},
        {"redriven": {"came_back": "a/0/7"}},
    ],
    ids=str,
)
def test_an_answer_with_a_place_that_has_no_text_is_found(answer: Any) -> None:
    assert list(unplaced(answer))


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


# --- methods ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", sorted({path_of(route) for route in ROUTES}))
def test_every_path_says_which_methods_it_has(api: World, asked: str) -> None:
    here = [route for route in ROUTES if route.path_regex.match(asked)]  # an id may end with /fire, too
    methods = {method for route in here for method in route.methods or ()}
    wanted = ", ".join(sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])}))
    told = api.call("OPTIONS", asked)
    assert (told.status_code, told.content, told.headers["allow"]) == (204, b"", wanted)
    refused = api.call("TRACE", asked)
    problem(refused, 405, "method-not-allowed")
    assert refused.headers["allow"] == wanted


@pytest.mark.parametrize("route", [route for route in ROUTES if "GET" in (route.methods or ())], ids=name)
def test_head_is_answered_wherever_get_is(api: World, route: APIRoute) -> None:
    got, head = api.call("GET", path_of(route)), api.call("HEAD", path_of(route))
    assert (head.status_code, head.content) == (got.status_code, b"")


def test_options_of_what_is_not_there(api: World) -> None:
    problem(api.call("OPTIONS", "/v1/nothing"), 404, "not-found")


# --- problems -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", sorted({*STATUS_OF, *UNFORESEEN}))
def test_every_type_of_problem_has_a_page(api: World, type: str) -> None:
    told = api.call("GET", f"/problems/{type}", headers={"accept": "application/json"}).json()
    assert told["type"] == f"/problems/{type}"
    assert told["status"] == STATUS_OF.get(type, told["status"])
    assert all(detail.strip("….") for detail in told["details"])
    assert told["details"]
    page = api.call("GET", f"/problems/{type}", headers={"accept": "text/html,*/*"})
    assert page.headers["content-type"].startswith("text/html")
    for text in (told["title"], type, str(told["status"]), *told["details"], *told["calls"]):
        assert escape(text) in page.text


def test_a_page_of_a_problem_names_the_calls_that_answer_with_it(api: World) -> None:
    calls = api.call("GET", "/problems/rewind-not-back").json()["calls"]
    assert calls == ["POST /v1/schedules/{name}/rewind"]
    assert api.call("GET", "/problems/not-ready").json()["calls"] == ["GET /readyz"]
    assert len(api.call("GET", "/problems/unauthorized").json()["calls"]) > 30


def test_a_type_that_there_is_not(api: World) -> None:
    problem(api.call("GET", "/problems/nonsense"), 404, "not-found")
    problem(api.call("GET", "/problems/%3Cscript%3E", headers={"accept": "text/html"}), 404, "not-found")


def test_types_are_known_from_the_code() -> None:
    assert (ROOT / "api" / "problems.json").read_text(encoding="utf-8") == types()


# --- ETags --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="full")
def full_fixture() -> Iterator[World]:
    with full_world() as made:
        made.client_headers["authorization"] = f"Bearer {token_of(Role.ADMIN)}"
        yield made


WITH_ETAG: Final = [name for name, headers in headers_described().items() if "etag" in headers.get("200", ())]


@pytest.mark.parametrize("call", [name for name in WITH_ETAG if name.startswith("GET ")])
def test_what_is_known_already_is_not_told_again(full: World, call: str) -> None:
    path = call.removeprefix("GET ").format(**CALLS[call][0].given)
    got = full.call("GET", path)
    etag = got.headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*", f'{etag[:-1]}-gzip"'):
        for method in ("GET", "HEAD"):
            same = full.call(method, path, headers={"if-none-match": known})
            assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
            assert "content-type" not in same.headers
    for other in ('"other"', "", etag.strip('"')):
        assert full.call("GET", path, headers={"if-none-match": other}).json() == got.json()


def test_all_that_have_an_etag_say_so_and_take_it_back(document: Any) -> None:
    assert {name for name, one in operations(document).items() if "304" in one["responses"]} == {
        "GET /v1/messages/{id}", "GET /v1/policies/{name}", "GET /v1/schedules/{name}",
    } <= set(WITH_ETAG)  # fmt: skip
    for one in operations(document).values():
        asks = {parameter["name"] for parameter in one.get("parameters", ())}
        assert ("304" in one["responses"]) <= ("if-none-match" in asks)


def test_what_has_no_etag_is_told_each_time(api: World) -> None:
    assert api.call("GET", "/v1/policies", headers={"if-none-match": "*"}).status_code == 200
    problem(api.call("GET", "/v1/policies/x", headers={"if-none-match": "*"}), 404, "policy-not-found")
