"""A browser for all tests of the console, and the console of a world for each."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.process.api.console.browsing import OPTIONS, Console, launched, served
from tests.unit.api_world import World


@pytest.fixture(scope="module")  # no longer: while Playwright is there, nothing else may run a loop in this thread
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def api() -> World:
    """An API over fakes whose caller is whoever is on this machine; tests fill it before they open a page.

    Playwright has this thread's loop, so tests ask the API by HTTP, at the console's `url`.
    """
    return World(console=OPTIONS)


@pytest.fixture
def console(api: World, browser: Browser) -> Iterator[Console]:
    with served(api) as url:
        console = Console(url, browser)
        yield console
        console.close()
