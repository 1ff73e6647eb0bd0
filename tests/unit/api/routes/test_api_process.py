"""Health, errors of the router, the description and its page."""

import logging
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from api.app import _BODIES
from api.dependencies import Prober
from api.openapi.description import example_of
from sidecar.model.stats import Lateness, TopicCounts
from tests.unit.api_world import REMINDERS, World, problem, world


@pytest.fixture
def api() -> Iterator[World]:
    with world() as made:
        yield made


def test_alive_while_the_engine_turns(api: World) -> None:
    api.monotonic_s = 110.0
    assert api.call("GET", "/livez").status_code == 200
    api.monotonic_s = 110.1
    problem(api.call("GET", "/livez"), 503, "not-alive")


def test_ready_when_nothing_is_wrong(api: World) -> None:
    assert api.call("GET", "/readyz").status_code == 200
    api.change_stats(joined=False, kafka_problem="brokers down")
    document = problem(api.call("GET", "/readyz"), 503, "not-ready")
    assert document["problems"] == ["waiting for the consumer group", "brokers down"]
    api.change_stats(joined=False, not_taken_in="it is full", kafka_problem="")
    document = problem(api.call("GET", "/readyz"), 503, "not-ready")
    assert document["problems"] == ["the consumer group refuses this process: it is full"]


def test_ready_with_words_about_what_may_be_lost(api: World) -> None:
    api.change_stats(warnings=("reminders: has become compacted",))
    answer = api.call("GET", "/readyz")
    assert (answer.status_code, answer.json()["warnings"]) == (200, ["reminders: has become compacted"])


def test_probes_ask_for_no_host(api: World) -> None:
    assert api.call("GET", "/livez", headers={"host": "10.1.2.3:8230"}).status_code == 200


def test_stats(api: World) -> None:
    counts = TopicCounts(accepted=9, emitted=2, dead=1, wheel=4, overflow=2)
    api.change_stats(replica="r1", topics={"t": counts}, lateness=Lateness())
    document = api.call("GET", "/v1/stats").json()
    assert document["replica"] == "r1"
    assert document["topics"]["t"]["accepted"] == 9
    assert document["topics"]["t"]["held"] == {"wheel": 4, "overflow": 2}
    assert set(document["lateness_ms"]) == {"p50", "p90", "p99", "max"}


def test_metrics(api: World) -> None:
    response = api.call("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "tickover_early_total 0.0" in response.text


def test_router_errors_are_problems(api: World) -> None:
    problem(api.call("GET", "/nothing"), 404, "not-found")
    problem(api.call("GET", "/v1/policies/"), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v1/stats", "GET, HEAD, OPTIONS"),
        ("POST", "/v1/policies", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v1/messages", "GET, HEAD, OPTIONS, POST"),
        ("POST", "/v1/policies/reminders", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("PUT", "/v1/messages/a", "DELETE, GET, HEAD, OPTIONS, PATCH"),
    ],
)
def test_another_method_is_told_all_that_there_are(api: World, method: str, path: str, allowed: str) -> None:
    response = api.call(method, path)
    problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == allowed


def test_head_says_what_get_would(api: World) -> None:
    for path in ("/livez", "/readyz", "/v1/stats", "/v1/policies", "/openapi.json", "/v1/nothing"):
        got, head = api.call("GET", path), api.call("HEAD", path)
        assert head.content == b""
        assert head.status_code == got.status_code
        assert {name: head.headers[name] for name in ("content-type", "content-length")} == {
            name: got.headers[name] for name in ("content-type", "content-length")
        }
    problem(api.call("GET", "/v1/policies?cursor="), 422, "invalid-cursor")


@pytest.mark.parametrize("path", ["/v1/policies/%00", "/v1/policies/%ed%a0%80", "/%ff", "/v1/policies/..%2f"])
def test_odd_paths(api: World, path: str) -> None:
    assert api.call("GET", path).status_code == 404


def test_the_unforeseen_shows_nothing(api: World, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ValueError("hunter2")

    api.app.add_api_route("/broken", broken, dependencies=[Prober])
    with caplog.at_level(logging.ERROR):
        response = api.call("GET", "/broken")
    problem(response, 500, "internal-error")
    assert "hunter2" not in response.text + caplog.text
    assert "ValueError at " in caplog.text
    assert "test_api_process.py" in caplog.text


def test_safe_headers_everywhere(api: World) -> None:
    for path in ("/livez", "/nothing", "/docs", "/openapi.json"):
        response = api.call("GET", path)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"


def test_description(api: World) -> None:
    document = api.call("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1.")
    references = set(re.findall(r'"\$ref": "([^"]+)"', api.call("GET", "/openapi.json").text))
    assert references
    for reference in references:
        found = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
    post = document["paths"]["/v1/messages"]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/NewMessage")
    assert post["security"] == [{}, {"token": ["write"]}]
    assert document["paths"]["/livez"]["get"]["security"] == [{}]
    assert {status for status in post["responses"] if status < "4"} == {"202"}
    held = document["paths"]["/v1/messages/{id}"]
    for action in (held["delete"], held["patch"], document["paths"]["/v1/messages/{id}/fire"]["post"]):
        assert {status for status in action["responses"] if status < "4"} == {"200", "202"}


def operations(api: World) -> list[tuple[str, dict[str, Any]]]:
    """All that the document describes, by method and path."""
    paths = api.call("GET", "/openapi.json").json()["paths"]
    return [(f"{method.upper()} {path}", one) for path, methods in paths.items() for method, one in methods.items()]


def test_every_operation_says_all_that_its_caller_must_know(api: World) -> None:
    described = operations(api)
    assert len({one["summary"] for _, one in described}) == len(described) >= 40
    for name, one in described:
        assert re.fullmatch(r"[A-Z][^.]{3,59}[^.]", one["summary"]), name
        assert re.search(r"[.`]\n\nRole: (none|read|write|admin)\.$", one["description"]), name
        assert all(parameter["description"] for parameter in one.get("parameters", ())), name
        assert {"401", "403", "429"} <= set(one["responses"]) or one["security"] == [{}], name
        if name.startswith(("POST", "PUT", "PATCH")) and "requestBody" in one:
            assert one["requestBody"]["content"]["application/json"]["example"], name
        for status in {"200", "201", "202"} & set(one["responses"]):
            media = one["responses"][status]["content"]
            is_other = name == "GET /v1/schemas/policy" or {"text/plain", "text/event-stream"} & media.keys()
            assert is_other or media["application/json"]["example"], (name, status)


def test_examples_of_bodies_are_taken(api: World) -> None:
    for model in _BODIES:
        model.model_validate(example_of(model))


def test_page_has_nothing_from_outside(api: World) -> None:
    response = api.call("GET", "/docs")
    assert not re.search(r"https?://|\bon[a-z]+=|\bstyle=", response.text)
    assert re.findall('src="([^"]*)"', response.text) == ["docs/redoc.js"]
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert not re.search("unsafe|https?:|blob:", policy)
    (nonce,) = set(re.findall(r'<(?:script|style)(?: nonce="([^"]*)")?', response.text))
    assert policy.count(f"'nonce-{nonce}'") == 2
    assert nonce not in api.call("GET", "/docs").text, "whoever knows one must not know the next"
    assert api.call("GET", "/").headers["location"] == "/docs"
    script = api.call("GET", "/docs/redoc.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert len(script.content) > 1_000_000


@pytest.mark.parametrize("removed", [False, True], ids=["by a proxy that keeps the path", "by one that removes it"])
def test_behind_a_path_everything_is_found_below_it(removed: bool) -> None:
    with world(path="/tickover") as api:

        def through_proxy(method: str, path: str, **options: Any) -> httpx.Response:
            sent = path.removeprefix("/tickover") or "/" if removed else path
            return api.call(method, sent, **options)

        headers = {"If-None-Match": "*"}
        made = through_proxy("PUT", "/tickover/v1/policies/reminders", json=REMINDERS, headers=headers)
        assert (made.status_code, made.headers["location"]) == (201, "/tickover/v1/policies/reminders")
        assert through_proxy("GET", made.headers["location"]).json()["name"] == "reminders"
        for start in ("/tickover", "/tickover/"):
            assert through_proxy("GET", start).headers["location"] == "/tickover/docs"
        page = through_proxy("GET", "/tickover/docs").text
        assert {
            urljoin("/tickover/docs", link) for link in re.findall(r'(?:href=|src=|fetch\(|url: )"([^"]*)"', page)
        } == {
            "/tickover/openapi.json",
            "/tickover/docs/redoc.js",
        }
        assert through_proxy("GET", "/tickover/openapi.json").json()["servers"] == [{"url": "/tickover"}]
        assert through_proxy("GET", "/tickover/readyz").status_code == 200
        foreign = through_proxy("GET", "/tickover/docs", headers={"Sec-Fetch-Site": "cross-site"})
        assert foreign.status_code == 200, "links of other sites open the page, as without a path"
        for path in ("/tickoverx/v1/policies", "/tickover/tickover/docs", "/tickover//docs"):
            problem(api.call("GET", path), 404, "not-found")


def test_a_client_that_names_a_path_in_a_header_changes_nothing(api: World) -> None:
    for name in ("X-Forwarded-Prefix", "X-Script-Name"):
        assert api.call("GET", "/", headers={name: "//elsewhere.example"}).headers["location"] == "/docs"
    assert api.call("GET", "/openapi.json").json()["servers"] == [{"url": "/"}]
