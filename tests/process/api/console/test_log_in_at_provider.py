"""Logging in at a provider of another site, in a browser: there and back, and what is said when nobody is let in."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from api.access.gate import open_gate
from api.access.sign_on import SignOn
from api.console.log_in import BEGUN
from api.console.page import cookie_name
from sidecar.settings.api import ApiSettings, OidcSettings
from tests.process.api.access.login_provider import CLIENT_ID, PERSON, LoginProvider, login_provider
from tests.process.api.console.browsing import OPTIONS, Console
from tests.unit.api.access.oidc_world import AUDIENCE
from tests.unit.api_world import World
from tests.unit.letter_world import dead

COOKIE, BEGUN_HERE = cookie_name(OPTIONS.group), cookie_name(OPTIONS.group, BEGUN)


@pytest.fixture
def provider() -> Iterator[LoginProvider]:
    with login_provider() as provider:
        yield provider


@pytest.fixture
def api(provider: LoginProvider) -> World:
    """An API that takes tokens of the provider."""
    oidc = OidcSettings(issuer=provider.url, audience=(AUDIENCE,), client_id=CLIENT_ID)
    gate = open_gate(ApiSettings(oidc=oidc), lambda: 0.0)
    world = World(gate=gate, console=OPTIONS._replace(authenticates=True, sign_on=SignOn(oidc)))
    world.letters.add("orders-dlq", dead())
    return world


def at_provider(console: Console, provider: LoginProvider, path: str) -> Page:
    """The provider's page, to which somebody came who wanted this page of the console."""
    console.others = (provider.url,)
    page = console.open(path)
    expect(page.locator("h1")).to_have_text("Log in")
    page.click("text=Log in at the provider")
    expect(page.locator("h1")).to_have_text(f"Are you {PERSON}?")
    return page


def cookies(page: Page) -> dict[str, dict[str, object]]:
    return {str(one.get("name")): dict(one) for one in page.context.cookies()}


@pytest.mark.parametrize("is_opaque", [False, True])
def test_somebody_logs_in_there_sees_what_the_role_may_and_logs_out(
    console: Console, provider: LoginProvider, is_opaque: bool
) -> None:
    provider.is_opaque = is_opaque  # then the ID token is what counts
    page = at_provider(console, provider, "/dead-letters?topic=orders-dlq&zone=UTC")
    assert cookies(page)[BEGUN_HERE]["httpOnly"]
    page.click("text=Continue")
    expect(page.locator("h1")).to_have_text("Dead letters")
    assert page.url == f"{console.url}/ui/dead-letters?topic=orders-dlq&zone=UTC"
    assert (provider.redeemed, provider.refusals) == (1, [])
    assert PERSON in page.inner_text(".who")
    assert "read" in page.inner_text(".who")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.locator("text=Redrive selected").count() == 0, "that needs the role write"
    kept = cookies(page)
    assert BEGUN_HERE not in kept
    assert (kept[COOKIE]["httpOnly"], kept[COOKIE]["sameSite"]) == (True, "Strict")
    page.goto(f"{console.url}/ui/policies")
    expect(page.locator("h1")).to_have_text("Policies")
    page.click("text=Log out")
    expect(page.locator("h1")).to_have_text("Log in")
    assert COOKIE not in cookies(page)
    page.goto(f"{console.url}/ui/policies")
    expect(page.locator("h1")).to_have_text("Log in")
    assert console.problems == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("state", "This log-in was not begun in this browser, or too long ago. Begin again."),
        ("code", "The provider let nobody in: the provider answers 400."),
        ("nonce", "The provider let nobody in: its ID token is of another log-in."),
        ("issuer", "it is of another issuer"),
    ],
)
def test_what_is_not_of_this_log_in_lets_nobody_in(
    console: Console, provider: LoginProvider, fault: str, says: str
) -> None:
    provider.fault = fault
    page = at_provider(console, provider, "/policies")
    page.click("text=Continue")
    expect(page.locator("h1")).to_have_text("Log in")
    assert says in page.inner_text("main")
    assert provider.refusals == (["another verifier"] if fault == "code" else [])
    assert not {COOKIE, BEGUN_HERE} & cookies(page).keys()
    page.goto(f"{console.url}/ui/policies")
    expect(page.locator("h1")).to_have_text("Log in")
    provider.fault = ""
    page.click("text=Log in at the provider")
    page.click("text=Continue")
    expect(page.locator("h1")).to_have_text("Policies")
    assert console.problems == []


def test_who_refuses_there_is_told_so_in_the_providers_words(console: Console, provider: LoginProvider) -> None:
    page = at_provider(console, provider, "/policies")
    page.click("text=Refuse")
    expect(page.locator("h1")).to_have_text("Log in")
    assert f"{PERSON} <b>said</b> no" in page.inner_text("main")
    assert COOKIE not in cookies(page)
    assert provider.redeemed == 0
    page.go_back()
    page.click("text=Continue")
    expect(page.locator("main")).to_contain_text("not begun in this browser, or too long ago")
    assert console.problems == []


def test_who_has_no_role_there_sees_nothing_and_why(console: Console, provider: LoginProvider) -> None:
    provider.roles = []
    page = at_provider(console, provider, "/policies")
    page.click("text=Continue")
    expect(page.locator("main")).to_contain_text("This needs the role read.")
    assert COOKIE not in cookies(page)
    assert console.problems == []
