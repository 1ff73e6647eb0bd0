"""Logging in with a token and out again, and forms that nobody here has filled in."""

import tempfile
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from api.access.auth import Role
from api.console.page import cookie_name
from api.console.session import Session
from tests.process.api.console.browsing import OPTIONS, Console, client_of, look_at, served
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api_world import World

COOKIE = cookie_name(OPTIONS.group)


@pytest.fixture
def api() -> Iterator[World]:
    """An API that wants tokens."""
    with tempfile.TemporaryDirectory() as directory:
        yield World(tokens=tokens(directory), console=OPTIONS._replace(authenticates=True))


@pytest.fixture
def browserless(api: World) -> Iterator[httpx.Client]:
    """A client that does what it likes."""
    with served(api) as url, client_of(url) as client:
        yield client


def log_in(client: httpx.Client, token: str) -> httpx.Response:
    page = client.get("/ui/log-in")
    form = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    return client.post("/ui/log-in", data={"csrf": form, "token": token, "next": "/parts"})


def test_somebody_logs_in_is_led_where_they_wanted_and_logs_out(console: Console) -> None:
    page = console.open("/parts?zone=UTC")
    expect(page.locator("h1")).to_have_text("Log in")
    page.fill("input[name=token]", token_of(Role.READ))
    page.click("main button")
    expect(page.locator("h1")).to_have_text("Parts")
    assert page.url.endswith("/ui/parts?zone=UTC")
    assert "read" in page.inner_text(".who")
    page.click("text=Log out")
    page.goto(f"{console.url}/ui/parts")
    expect(page.locator("h1")).to_have_text("Log in")
    assert console.problems == []


def test_it_looks_as_it_should(console: Console) -> None:
    look_at(console, "/log-in", "log-in")


def test_a_wrong_token_is_said_and_shown_nowhere(console: Console) -> None:
    page = console.open("/log-in")
    page.fill("input[name=token]", "tickover_wrong")
    page.click("main button")
    assert "refused" in page.inner_text("main")
    assert "tickover_wrong" not in page.content()


def test_the_cookie_is_for_no_script_and_no_other_site(browserless: httpx.Client) -> None:
    answer = log_in(browserless, token_of(Role.WRITE))
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/parts")
    cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith(COOKIE))
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/ui" in cookie
    assert browserless.get("/ui/parts").status_code == 200


@pytest.mark.parametrize("there", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_nobody_is_led_to_another_site(browserless: httpx.Client, there: str) -> None:
    page = browserless.get("/ui/log-in", params={"next": there})
    form = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    answer = browserless.post("/ui/log-in", data={"csrf": form, "token": token_of(Role.READ), "next": there})
    assert answer.headers["location"] == "/ui/"


@pytest.mark.parametrize(
    ("headers", "form"),
    [
        ({}, ""),
        ({}, "0" * 32),
        ({"Origin": "https://evil.example"}, None),
        ({"Sec-Fetch-Site": "cross-site"}, None),
        ({"Sec-Fetch-Site": "same-site"}, None),
    ],
)
def test_a_form_that_the_session_has_not_shown_does_nothing(
    browserless: httpx.Client, headers: dict[str, str], form: str | None
) -> None:
    log_in(browserless, token_of(Role.WRITE))
    own = browserless.get("/ui/parts").text.partition('name="csrf" value="')[2].partition('"')[0]
    answer = browserless.post("/ui/log-out", data={"csrf": own if form is None else form}, headers=headers)
    assert answer.status_code == 403
    assert browserless.get("/ui/parts").status_code == 200, "still logged in"


def test_nobody_is_kept_whose_token_is_taken_back(api: World, browserless: httpx.Client) -> None:
    log_in(browserless, token_of(Role.READ))
    assert api.tokens is not None
    api.tokens._tokens = ()
    answer = browserless.get("/ui/parts")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/log-in?next=%2Fparts")


def test_a_session_ends_when_nobody_is_there(api: World, browserless: httpx.Client) -> None:
    log_in(browserless, token_of(Role.READ))
    cookie = browserless.cookies[COOKIE]
    version, id, begun, seen, _, token = cookie.split(".", 5)
    assert int(seen) >= int(begun)
    old = Session(token, id, int(begun) - OPTIONS.idle_s - 10, int(seen) - OPTIONS.idle_s - 10)
    assert version == "1"
    with client_of(str(browserless.base_url), cookies={COOKIE: old.cookie}) as client:
        assert client.get("/ui/parts").status_code == 303


def test_a_link_of_another_site_leads_to_the_page_by_a_step(browserless: httpx.Client) -> None:
    answer = browserless.get("/ui/parts?zone=UTC", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert answer.headers["refresh"] == "0; url=/ui/parts?zone=UTC"


def test_a_hostile_address_is_only_text(browser: Browser, console: Console) -> None:
    page = console.open("/log-in?next=%2F%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    expect(page.locator("h1")).to_have_text("Log in")
    assert "<script>alert" not in page.content()
    assert console.problems == []


def test_events_need_the_session_and_are_nobodys_presence(browserless: httpx.Client) -> None:
    assert browserless.get("/ui/events").status_code == 401
    log_in(browserless, token_of(Role.READ))
    with browserless.stream("GET", "/ui/events", params={"event": "policies"}) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert "set-cookie" not in answer.headers
        assert next(answer.iter_lines()) == "retry: 2000"
