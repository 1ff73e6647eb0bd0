"""Live parts of a page: changed by an event, asked for by the clock where none come, silent while nobody looks."""

from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from api.events import feed as feeds
from tests.process.api.console.browsing import LONGEST_MS, Console
from tests.unit.api_world import World
from tests.unit.report_world import report, seen

# No part is asked for by the clock alone.
NEVER_BY_CLOCK = "Object.defineProperty(window, 'setInterval', { value: () => 0 });"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "STEP_S", 0.05)


def sees(api: World, wheel: int) -> None:
    api.group.seen = seen(report(wheel=wheel))
    api.monotonic_s += 10


def opened(console: Console, script: str = "") -> tuple[Page, list[str]]:
    """The overview, and addresses that it has asked for, where a script runs before its own."""
    context = console.browser.new_context(reduced_motion="reduce")
    console.contexts.append(context)
    page = context.new_page()
    page.set_default_timeout(LONGEST_MS)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    if script:
        page.add_init_script(script)
    page.goto(f"{console.url}/ui/")
    return page, asked


def shows(page: Page, held: str) -> None:
    expect(page.locator(".figure").first.locator(".value")).to_have_text(held, timeout=LONGEST_MS)


def wait_until(page: Page, true: Callable[[], bool]) -> None:
    """Let the browser go on until it is true."""
    for _ in range(LONGEST_MS // 20):
        if true():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it has not come so far")


def test_a_part_is_changed_by_an_event_and_not_by_the_clock(api: World, console: Console) -> None:
    sees(api, 5)
    page, asked = opened(console, NEVER_BY_CLOCK)
    shows(page, "5")
    assert [url for url in asked if "/events?" in url] == [f"{console.url}/ui/events?event=overview&event=problems"]
    sees(api, 77)
    shows(page, "77")


def test_where_no_events_come_a_part_is_asked_for_by_the_clock(api: World, console: Console) -> None:
    api.app.state.events._listeners_max = 0
    sees(api, 5)
    page, asked = opened(console)
    sees(api, 77)
    shows(page, "77")
    assert len([url for url in asked if "/events?" in url]) == 1, "a refused stream is left alone for a while"


def test_a_hidden_page_holds_no_stream(api: World, console: Console) -> None:
    listeners = api.app.state.events._listeners
    page, _ = opened(console)
    wait_until(page, lambda: len(listeners) == 1)
    for state, count in (("hidden", 0), ("visible", 1)):
        page.evaluate(
            "state => { Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });"
            " document.dispatchEvent(new Event('visibilitychange')); }",
            state,
        )
        wait_until(page, lambda count=count: len(listeners) == count)  # type: ignore[misc]
    page.close()
    other, _ = opened(console)
    other.goto(f"{console.url}/ui/policies")  # has no live part
    wait_until(other, lambda: not listeners)


def test_no_other_site_opens_a_stream_of_the_console(console: Console) -> None:
    given: tuple[tuple[dict[str, str], int], ...] = (({"Sec-Fetch-Site": "cross-site"}, 403), ({}, 200))
    for headers, status in given:
        with httpx.stream("GET", f"{console.url}/ui/events", headers=headers, timeout=60) as answer:
            assert answer.status_code == status
    assert httpx.head(f"{console.url}/ui/events", timeout=60).status_code == 200
