"""Whom the API lets in: declared for every route, denied by default, safe where there are no tokens."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from api import app as api_app
from api.access.auth import AccessConfigError, Role, load_tokens
from api.access.gate import Gate, open_gate
from api.answer_headers import SAFE_HEADERS
from api.app import PARTS
from api.dependencies import Prober, Reader, UndeclaredRoute, Visitor, Writer, declared_access
from sidecar.model.stats import RebuildProgress
from sidecar.settings.api import ApiSettings, OidcSettings
from tests.unit.api.access.oidc_world import AUDIENCE, ISSUER
from tests.unit.api.access.test_api_auth import OPEN, ROUTES, bearer, tokens_file
from tests.unit.api_world import REMINDERS, World, problem, world

pytestmark = pytest.mark.slow

EVERYBODY = {
    **dict.fromkeys(("/livez", "/readyz"), "prober"),
    **dict.fromkeys(("/openapi.json", "/docs", "/docs/redoc.js", "/", "/problems/{name}"), "visitor"),
}


def declared() -> dict[tuple[str, str], Any]:
    return {
        (method, route.path): declared_access(route)
        for part in PARTS
        for route in part.router.routes
        for method in route.methods
    }


def test_every_route_declares_whom_it_answers() -> None:
    everything = declared()
    open_ones = {path: access.name for (_, path), access in everything.items() if access.role is None}
    assert open_ones == EVERYBODY
    assert len(everything) == len(ROUTES) + len(EVERYBODY)
    assert {path for (_, path), access in everything.items() if access.name == "scraper"} == {"/metrics"}


def test_what_changes_something_needs_more_than_reading() -> None:
    reads = {("POST", "/v1/policies/explain")}
    for (method, path), access in declared().items():
        if method not in ("GET", "HEAD") and (method, path) not in reads:
            assert access.role is not None
            assert access.role > Role.READ, (method, path)


def test_an_idempotency_key_is_honoured_or_refused() -> None:
    honouring = {("POST", "/v1/messages"), ("POST", "/v1/messages:batch"), ("POST", "/v1/schedules/{name}/run")}
    acting = [one for one in declared() if one[0] not in ("GET", "HEAD") and one not in honouring]
    assert ("POST", "/v1/redrives/{id}/canary") in acting
    with world() as api:
        for method, path in acting:
            response = api.call(method, path, json={}, headers={"Idempotency-Key": "k"})
            problem(response, 422, "idempotency-key-not-supported")
        assert api.call("GET", "/v1/policies", headers={"Idempotency-Key": "k"}).status_code == 200
        assert api.sender.sent == []


async def nobody() -> PlainTextResponse:
    return PlainTextResponse("let in")


async def twice(caller: Reader, author: Writer) -> PlainTextResponse:
    return PlainTextResponse("let in")


async def declared_twice(caller: Reader) -> PlainTextResponse:
    return PlainTextResponse("let in")


def undeclared_routers() -> list[APIRouter]:
    routers = [APIRouter() for _ in range(5)]
    routers[0].add_api_route("/new", nobody)
    routers[1].add_api_route("/new", twice)
    routers[2].add_api_route("/new", declared_twice, dependencies=[Prober])
    routers[3].routes.append(Route("/new", lambda request: PlainTextResponse("let in")))
    routers[4].add_api_route("/new", nobody, dependencies=[Depends(nobody)])
    return routers


@pytest.mark.parametrize("router", undeclared_routers())
def test_a_route_that_declares_nothing_keeps_the_api_from_starting(
    router: APIRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Part:
        pass

    part = Part()
    part.router = router  # type: ignore[attr-defined]
    monkeypatch.setattr(api_app, "PARTS", (*PARTS, part))
    with pytest.raises(UndeclaredRoute, match="/new must declare"):
        World()


def test_a_route_that_is_added_later_answers_nobody(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        api.app.add_api_route("/new", nobody)
        api.app.add_api_route("/known", nobody, dependencies=[Visitor])
        for headers in ({}, bearer(given[Role.ADMIN])):
            problem(api.call("GET", "/new", headers=headers), 403, "forbidden")
        assert api.call("GET", "/known").text == "let in"


def test_metrics_are_open_only_if_a_setting_says_so(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    tokens = load_tokens(path)
    with world(tokens=tokens) as api:
        assert api.call("GET", "/metrics").status_code == 401
        assert api.call("GET", "/metrics", headers=bearer(given[Role.READ])).status_code == 200
    assert open_gate(ApiSettings(metrics_open=True), lambda: 0.0).metrics_open
    with world(gate=Gate(tokens, metrics_open=True)) as api:
        assert api.call("GET", "/metrics").status_code == 200
        assert api.call("GET", "/v1/stats").status_code == 401


FOREIGN_PAGES: list[dict[str, str]] = [
    *({"origin": origin} for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "")),
    *({"sec-fetch-site": site} for site in ("cross-site", "same-site", "Cross-Site", "")),
    {"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1:8230"},
    {"sec-fetch-site": "same-origin", "origin": "http://evil.example"},
]
OWN_PAGES: list[dict[str, str]] = [
    {},
    {"origin": "http://127.0.0.1:8230"},
    {"origin": "https://127.0.0.1:8230"},  # TLS in front
    {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8230"},
    {"sec-fetch-site": "none"},
]


@pytest.mark.parametrize("mode", ["loopback", "anybody", "tokens"])
def test_no_other_sites_page_is_answered_in_any_mode(mode: str, tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    tokens = load_tokens(path)
    gate = {"loopback": Gate(), "anybody": Gate(anybody=True), "tokens": Gate(tokens)}[mode]
    token = bearer(given[Role.ADMIN]) if mode == "tokens" else {}
    with world(gate=gate) as api:
        for page in FOREIGN_PAGES:
            for method, route, _ in ROUTES:
                answer = api.call(method, route, headers={**token, **page})
                problem(answer, 403, "origin-not-allowed")
        assert not api.sender.sent
        for page in OWN_PAGES:
            assert api.call("GET", "/v1/stats", headers={**token, **page}).status_code == 200


@pytest.mark.parametrize("gate", [Gate(), Gate(anybody=True)], ids=["loopback", "anybody"])
def test_without_tokens_what_a_form_can_send_may_only_read(gate: Gate) -> None:
    """Old browsers, and such as are part of other programs, say neither Sec-Fetch-Site nor Origin."""
    forms = [{"content-type": type} for type in ("text/plain", "application/x-www-form-urlencoded", "")]
    meant = ({"tickover-client": "curl"}, {"content-type": "application/json; charset=utf-8"})
    remembered = {"authorization": "Basic eDp5"}  # a browser adds it by itself
    with world(gate=gate, client_headers={}) as api:
        api.add(REMINDERS)
        for headers in ({}, *forms, remembered):
            for method, route, needed in ROUTES:
                if method == "POST" and needed > Role.READ:
                    document = problem(api.call(method, route, headers=headers), 403, "client-header-needed")
                    assert "Tickover-Client" in document["detail"]
            assert api.call("GET", "/v1/dead-letters", headers=headers).status_code == 200
            shown = api.call("GET", "/v1/dead-letters?payload=true", headers=headers)
            problem(shown, 403, "client-header-needed")
        for headers in meant:
            assert api.call("POST", "/v1/messages/a/fire", headers=headers).status_code != 403
            assert api.call("GET", "/v1/dead-letters?payload=true", headers=headers).status_code != 403
        assert api.message(target="push").status_code == 202  # JSON is no form's
        assert api.call("DELETE", "/v1/messages/a").status_code != 403


@pytest.mark.parametrize("mode", ["loopback", "anybody", "tokens"])
def test_what_is_open_to_everybody_is_not_open_to_other_sites_pages(mode: str, tmp_path: Path) -> None:
    tokens = load_tokens(tokens_file(tmp_path / "tokens.yaml")[0])
    gate = {
        "loopback": Gate(metrics_open=True),
        "anybody": Gate(anybody=True, metrics_open=True),
        "tokens": Gate(tokens, metrics_open=True),
    }[mode]
    with world(gate=gate) as api:
        for path in ("/openapi.json", "/metrics", "/docs", "/"):
            for page in FOREIGN_PAGES:
                answer = api.call("GET", path, headers=page)
                if path in ("/docs", "/") and page.get("origin") in (None, "http://127.0.0.1:8230"):
                    assert answer.status_code < 400  # a link on another site may lead there
                else:
                    problem(answer, 403, "origin-not-allowed")
            for page in OWN_PAGES:
                assert api.call("GET", path, headers=page).status_code < 400
            answer = api.call("GET", path, headers={"host": "evil.example"})
            assert answer.status_code == 403 if mode == "loopback" else answer.status_code < 400
        assert api.call("GET", "/livez", headers={"host": "evil.example", **FOREIGN_PAGES[0]}).status_code == 200


def test_without_tokens_hosts_are_named_on_this_machine_only() -> None:
    async def ask(client: str) -> httpx.Response:
        transport = httpx.ASGITransport(api.app, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8230") as http:
            return await http.get("/readyz")

    with world() as api:
        api.change_stats(kafka_problem=HOSTS)
        for client, is_named in (("10.9.9.9", False), ("2001:db8::1", False), ("127.0.0.1", True), ("::1", True)):
            answer = api.runner.run(ask(client))
            assert answer.status_code == 503
            assert (HOSTS in answer.text) is is_named


HOSTS = "10.1.2.3:9092/7: Connect to ipv4#10.1.2.3:9092 failed (kafka-7.shop.internal)"


@pytest.mark.parametrize(
    "stats",
    [
        {"kafka_problem": HOSTS},
        {"overflow_problem": HOSTS},
        {"rebuilding": (RebuildProgress("shop.internal", 0, 1, 2, HOSTS),)},
        {"warnings": (HOSTS,)},
        {"partitions_recovering": 3, "joined": False},
    ],
    ids=lambda stats: next(iter(stats)),
)
def test_hosts_are_named_to_known_callers_only(stats: dict[str, Any], tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    named = {"X-Request-Id": "asked-twice"}
    with world(tokens=load_tokens(path)) as api:
        api.change_stats(**stats)
        full = api.call("GET", "/readyz", headers={**bearer(given[Role.READ]), **named})
        assert full.status_code == (200 if "warnings" in stats else 503)
        for headers in ({}, bearer("wrong"), {"authorization": "Basic eDp5"}):
            for _ in range(200):  # probes are never too often
                answer = api.call("GET", "/readyz", headers=headers)
                assert answer.status_code == full.status_code
            assert "10.1.2.3" not in answer.text
            assert "internal" not in answer.text
            assert answer.json().get("problems") or answer.json().get("warnings")
        assert not [record for record in api.audited if record["path"] == "/readyz"]
    assert "partitions_recovering" in stats or "kafka-7.shop.internal" in full.text
    with world() as api:
        api.change_stats(**stats)
        assert api.call("GET", "/readyz", headers=named).json() == full.json()


def test_with_a_token_no_other_header_is_needed(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path), client_headers={}) as api:
        assert api.call("POST", "/v1/messages/a/fire", headers=bearer(given[Role.WRITE])).status_code != 403


def test_anybody_is_let_in_only_if_a_setting_says_so(caplog: pytest.LogCaptureFixture) -> None:
    gate = open_gate(ApiSettings(host="0.0.0.0", allow_unauthenticated=True), lambda: 0.0)
    assert "may do everything" in caplog.text
    caplog.clear()
    with world(gate=gate) as api:
        elsewhere = {"host": "tickover.example"}
        assert api.call("GET", "/v1/stats", headers=elsewhere).status_code == 200
        assert api.call("DELETE", "/v1/policies/x", headers={**elsewhere, "if-match": "*"}).status_code == 404
        assert api.audited[0]["actor"] == "anonymous"
    open_gate(ApiSettings(), lambda: 0.0)
    assert not caplog.text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"allow_unauthenticated": True, "tokens_file": "x"}, "contradicts"),
        ({"oidc": {"issuer": ISSUER}}, "api.oidc.audience must be set"),
        ({"oidc": {"audience": "x"}}, "api.oidc.issuer must be set"),
        ({"oidc": {"issuer": "http://login.example", "audience": "x"}}, "https://"),
        ({"oidc": {"issuer": "ftp://login.example", "audience": "x"}}, "https://"),
        ({"oidc": {"issuer": "https://a:geheim@login.example", "audience": "x"}}, "without user name"),
        ({"oidc": {"issuer": "https://[", "audience": "x"}}, "https://"),
        ({"oidc": {"issuer": "login.example", "audience": "x"}}, "https://"),
        ({"oidc": {"issuer": ISSUER, "audience": "x", "algorithms": "HS256"}}, "some of RS256"),
        ({"oidc": {"issuer": ISSUER, "audience": "x", "algorithms": "RS256,none"}}, "some of RS256"),
        ({"oidc": {"issuer": ISSUER, "audience": "x", "algorithms": ""}}, "some of RS256"),
        ({"oidc": {"issuer": ISSUER, "audience": "x", "keys_stale_max": "5m"}}, "must not be shorter"),
    ],
)
def test_settings_that_are_not_safe(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        ApiSettings.model_validate(settings)
    assert "geheim" not in str(raised.value)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("geheim")
    for name in ("ca.pem", "nothing.pem"):
        oidc = OidcSettings(issuer=ISSUER, audience=(AUDIENCE,), ca_file=str(tmp_path / name))
        with pytest.raises(AccessConfigError, match=r"api\.oidc\.ca_file") as raised:
            open_gate(ApiSettings(oidc=oidc), lambda: 0.0)
        assert "geheim" not in str(raised.value)


def test_every_answer_has_safe_headers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        api.add(REMINDERS)
        api.sender.failures = [ZeroDivisionError()]
        admin = bearer(given[Role.ADMIN])
        answers = {
            200: api.call("GET", "/livez"),
            302: api.call("GET", "/"),
            401: api.call("GET", "/v1/stats"),
            403: api.call("POST", "/v1/messages", headers=bearer(given[Role.READ])),
            404: api.call("GET", "/nothing"),
            405: api.call("PUT", "/livez"),
            413: api.send_raw("POST", "/v1/messages", b" " * (api.limits.body_bytes + 1), **admin),
            422: api.call("POST", "/v1/messages", json={"target": "nowhere"}, headers=admin),
            500: api.call("POST", "/v1/messages", json={"target": "push"}, headers=admin),
        }
        assert [answer.status_code for answer in answers.values()] == list(answers)
        page = api.call("GET", "/docs")
        for answer in (*answers.values(), page):
            assert {name: answer.headers.get(name) for name in SAFE_HEADERS} == SAFE_HEADERS
            assert answer.headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert "server" not in answer.headers
        assert "script-src 'nonce-" in page.headers["content-security-policy"]


def test_whoever_is_not_let_in_is_recorded(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        for method, route, needed in ROUTES:
            before = len(api.audited)
            api.call(method, route, headers=bearer("wrong"))
            if needed > Role.READ:
                api.call(method, route, headers=bearer(given[Role.READ]))
            records = api.audited[before:]
            assert [record["status"] for record in records] == ([401, 403] if needed > Role.READ else [401])
            assert all(record["outcome"] == "refused" for record in records)
            api.monotonic_s += 1
        before = len(api.audited)
        for route in OPEN:
            api.call("GET", route)
        assert len(api.audited) == before
    assert "wrong" not in str(api.audited)
