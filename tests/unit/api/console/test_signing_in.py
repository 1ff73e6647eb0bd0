"""Cookies and ways of a log-in: in several windows, behind a proxy, and at a provider."""

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from api.access.auth import Role
from api.console.page import ROOT, ConsoleOptions, cookie_name
from api.console.session import Session
from api.console.words import now_ms
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api_world import World, world

PROVIDER = "https://provider.example/authorize?tenant=1"
GUARDED = OPTIONS._replace(authenticates=True)
COOKIE = cookie_name(OPTIONS.group)


class Provider:
    """A provider's pages."""

    def __init__(self) -> None:
        self.ways_back: list[str] = []

    async def address(self, state: str, challenge: str, redirect_uri: str) -> str:
        self.ways_back.append(redirect_uri)
        return PROVIDER

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> Sequence[str]:
        return [token_of(Role.READ)]


def guarded(options: ConsoleOptions = GUARDED, path: str = "") -> Iterator[World]:
    with (
        tempfile.TemporaryDirectory() as directory,
        world(console=options._replace(path=path), tokens=tokens(directory), path=path) as api,
    ):
        yield api


@pytest.fixture
def api() -> Iterator[World]:
    yield from guarded()


def csrf_of(page: httpx.Response) -> str:
    return page.text.partition('name="csrf" value="')[2].partition('"')[0]


def cookies_of(*answers: httpx.Response) -> str:
    """The header Cookie of a browser that had these answers, in order."""
    kept: dict[str, str] = {}
    for answer in answers:
        kept |= dict(one.partition(";")[0].split("=", 1) for one in answer.headers.get_list("set-cookie"))
    return "; ".join(f"{name}={value}" for name, value in kept.items())


def set_cookie(answer: httpx.Response, name: str = COOKIE) -> str:
    return next(one for one in answer.headers.get_list("set-cookie") if one.startswith(f"{name}="))


def enter(api: World, page: httpx.Response, cookies: str, **headers: str) -> httpx.Response:
    form = {"csrf": csrf_of(page), "token": token_of(Role.READ), "next": "/messages"}
    return api.call("POST", f"{ROOT}/log-in", data=form, headers={"cookie": cookies, **headers})


def test_of_two_windows_that_ask_for_a_token_either_may_be_used(api: World) -> None:
    first = api.call("GET", f"{ROOT}/log-in")
    second = api.call("GET", f"{ROOT}/log-in", headers={"cookie": cookies_of(first)})
    cookies = cookies_of(first, second)
    entered = enter(api, first, cookies)
    assert (entered.status_code, entered.headers["location"]) == (303, f"{ROOT}/messages")
    again = enter(api, second, cookies_of(first, second, entered))
    assert (again.status_code, again.headers["location"]) == (303, f"{ROOT}/messages")


def test_a_log_in_form_counts_for_no_other_form(api: World) -> None:
    page = api.call("GET", f"{ROOT}/log-in")
    entered = enter(api, page, cookies_of(page))
    answer = api.call(
        "POST", f"{ROOT}/log-out", data={"csrf": csrf_of(page)}, headers={"cookie": cookies_of(page, entered)}
    )
    assert answer.status_code == 403


def test_groups_on_one_host_have_forms_of_their_own(api: World) -> None:
    page = api.call("GET", f"{ROOT}/log-in")
    names = {one.partition("=")[0] for one in page.headers.get_list("set-cookie")}
    other = cookie_name("another group", "tickover-form")
    assert names
    assert other not in names


@pytest.mark.parametrize(
    ("headers", "is_secure"),
    [
        ({"host": "tickover.example", "sec-fetch-site": "same-origin"}, True),  # a page behind a proxy that speaks TLS
        ({"host": "tickover.example", "origin": "https://tickover.example"}, True),
        ({"host": "tickover.example"}, False),  # by plain HTTP browsers say nothing
        ({"host": "tickover.example", "origin": "http://tickover.example"}, False),
        ({"host": "localhost:8230", "sec-fetch-site": "same-origin"}, False),
        ({"host": "127.0.0.1:8230", "sec-fetch-site": "none"}, False),
        ({"host": "[::1]:8230", "sec-fetch-site": "none"}, False),
    ],
)
def test_the_cookie_stays_secure_when_it_is_written_again(api: World, headers: dict[str, str], is_secure: bool) -> None:
    seen = Session.begin(token_of(Role.READ), now_ms() // 1_000 - 120).cookie
    answer = api.call("GET", f"{ROOT}/redrives", headers={"cookie": f"{COOKIE}={seen}", **headers})
    assert answer.status_code == 200
    assert ("Secure" in set_cookie(answer)) == is_secure


def test_calls_are_printed_as_browsers_reach_the_api() -> None:
    for api in guarded(GUARDED._replace(url="https://tickover.example"), "/tick"):
        cookie = Session.begin(token_of(Role.READ), now_ms() // 1_000).cookie
        page = api.call("GET", f"/tick{ROOT}/settings", headers={"cookie": f"{COOKIE}={cookie}"})
        assert "https://tickover.example/tick/v1/doctor" in page.text
        assert "--url https://tickover.example/tick" in page.text
        assert "http://" not in page.text


@pytest.mark.parametrize("path", ["", "/tick"])
def test_the_provider_is_reached_from_behind_a_path(path: str) -> None:
    provider = Provider()
    for api in guarded(GUARDED._replace(sign_on=provider), path):
        answer = api.call("GET", f"{path}{ROOT}/log-in/provider", params={"next": "/messages"})
        assert answer.headers["location"] == PROVIDER
        assert provider.ways_back == [f"http://127.0.0.1:8230{path}{ROOT}/log-in/returned"]
        refused = api.call("GET", f"{path}{ROOT}/messages")
        assert refused.headers["location"] == f"{path}{ROOT}/log-in?next=%2Fmessages"


def test_who_logs_out_after_the_session_has_ended_leaves_no_token_behind(api: World) -> None:
    old = Session.begin(token_of(Role.READ), now_ms() // 1_000 - 2 * OPTIONS.idle_s)
    form: dict[str, Any] = {"data": {"csrf": old.csrf}}
    ways: tuple[tuple[str, str, dict[str, Any]], ...] = (("POST", "/log-out", form), ("GET", "/messages", {}))
    for method, path, more in ways:
        answer = api.call(method, f"{ROOT}{path}", headers={"cookie": f"{COOKIE}={old.cookie}"}, **more)
        assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, f"{ROOT}/log-in")
        assert set_cookie(answer).startswith(f'{COOKIE}="";')
    foreign = {"cookie": f"{COOKIE}={old.cookie}", "sec-fetch-site": "cross-site"}
    assert api.call("POST", f"{ROOT}/log-out", headers=foreign).status_code == 403


@pytest.mark.parametrize(
    ("kind", "status"), [("image", 403), ("iframe", 403), ("empty", 403), ("script", 403), ("document", 200)]
)
def test_without_tokens_no_other_site_shows_or_asks_for_a_page(kind: str, status: int) -> None:
    with world(console=OPTIONS) as api:
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-dest": kind}
        assert api.call("GET", f"{ROOT}/redrives", headers=headers).status_code == status


def test_a_page_and_its_calls_have_one_name(api: World) -> None:
    cookie = Session.begin(token_of(Role.READ), now_ms() // 1_000).cookie
    headers = {"cookie": f"{COOKIE}={cookie}", "x-request-id": "named-by-a-proxy"}
    answer = api.call("GET", f"{ROOT}/messages?key_prefix=x", headers=headers)
    assert answer.headers["x-request-id"] == "named-by-a-proxy"
    assert [record["request_id"] for record in api.audited] == ["named-by-a-proxy"]
