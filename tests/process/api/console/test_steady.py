"""A page that somebody works on: a second click, a way back, a connection that is lost, and what refreshes itself."""

import pytest
from playwright.sync_api import Page, Route, expect

from sidecar.model.condition import Pausable, Pause, PauseKind
from tests.process.api.console.browsing import LONGEST_MS, Console
from tests.unit.api_world import NOW_MS, REMINDERS, World
from tests.unit.letter_world import dead

TICK = "document.body.dispatchEvent(new Event('tick'))"
MARK = "document.querySelector('[data-events]').dataset.before = 'yes'"
SUBMITTED = """form => {
  const kept = [];
  const listen = (event) => { kept.push(event.defaultPrevented); event.preventDefault(); };
  window.addEventListener("submit", listen);
  form.requestSubmit();
  form.requestSubmit();
  window.dispatchEvent(new Event("pageshow"));
  form.requestSubmit();
  return kept;
}"""


def opened(console: Console, path: str) -> Page:
    """A page that knows the browser's zone, for which it is read once more."""
    page = console.open(path)
    page.wait_for_selector("text=times in Europe/Berlin")
    page.wait_for_load_state()
    return page


def refresh(page: Page) -> None:
    """Let the live part come anew."""
    page.evaluate(MARK)
    page.evaluate(TICK)
    page.locator("[data-events]:not([data-before])").wait_for(timeout=LONGEST_MS)


def test_a_form_is_sent_once_until_the_page_is_shown_again(console: Console) -> None:
    page = opened(console, "/redrives/new")
    page.fill("input[name=topic]", "orders-dlq")
    assert page.locator("main form").first.evaluate(SUBMITTED) == [False, True, False]


def test_a_form_that_is_too_large_is_kept(console: Console) -> None:
    page = opened(console, "/send/many")
    page.fill("textarea[name=text]", "x" * (1 << 20))
    page.click("button:text('Dry run')")
    expect(page.locator("#too-large")).to_be_visible()
    page.fill("textarea[name=text]", "target,value\npush,x\n")
    page.click("button:text('Dry run')")
    page.wait_for_selector("text=/would be sent/")


def test_escape_goes_back_but_not_from_what_was_written(api: World, console: Console) -> None:
    api.add(REMINDERS)
    page = opened(console, "/policies")
    page.click("text=New policy")
    page.locator("textarea[name=text]").press_sequentially("x")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.evaluate("new Promise((done) => setTimeout(done, 0))")
    assert page.url.endswith("/ui/policies/_edit")
    page.goto(f"{console.url}/ui/policies")
    page.goto(f"{console.url}/ui/redrives")
    page.keyboard.press("Escape")
    page.wait_for_url("**/ui/policies")


@pytest.mark.parametrize("status", [0, 503])
def test_what_can_not_be_refreshed_says_so_until_it_can(console: Console, status: int) -> None:
    def fail(route: Route) -> None:
        if status:
            route.fulfill(status=status, body="no")
        else:
            route.abort()

    page = opened(console, "/replicas")
    expect(page.locator("#stale")).to_be_hidden()
    page.route("**/ui/replicas", fail)
    page.evaluate("hears = true; askedAt = Date.now()")  # by its clock the page would not ask for a while
    page.evaluate(TICK)
    expect(page.locator("#stale")).to_contain_text("Not refreshed since", timeout=LONGEST_MS)
    expect(page.locator("#stale")).to_be_visible()
    page.unroute("**/ui/replicas")
    expect(page.locator("#stale")).to_be_hidden(timeout=LONGEST_MS)


def test_a_refresh_leaves_the_focus_where_it_is(api: World, console: Console) -> None:
    for name in ("a", "b", "c"):
        api.pauses.store.put(Pausable(PauseKind.TARGET, name), Pause("why", "me", NOW_MS, -1))
    page = opened(console, "/targets")
    page.locator("button:text('Resume')").nth(1).focus()
    refresh(page)
    focused = page.evaluate("[document.activeElement.innerText, document.activeElement.form?.elements.name.value]")
    assert focused == ["Resume", "b"]


def test_a_refresh_leaves_the_row_that_keys_have_chosen(api: World, console: Console) -> None:
    api.letters.add("orders-dlq", dead())
    page = opened(console, "/redrives/new")
    for number in range(3):
        page.goto(f"{console.url}/ui/redrives/new")
        page.fill("input[name=topic]", "orders-dlq")
        page.fill("input[name=reason]", f"reason-{number}")
        page.click("text=Plan it")
        page.wait_for_selector("h1:has-text('Redrive')")
    page.goto(f"{console.url}/ui/redrives")
    page.keyboard.press("j")
    page.keyboard.press("j")
    chosen = page.locator("tr.at a").get_attribute("href")
    refresh(page)
    assert page.locator("tr.at a").get_attribute("href") == chosen
    assert page.evaluate("document.activeElement.getAttribute('href')") == chosen
    page.keyboard.press("j")
    assert page.locator("tr.at a").get_attribute("href") != chosen


def test_after_a_journey_times_are_those_of_the_new_zone(console: Console) -> None:
    page = opened(console, "/redrives")
    page.context.add_cookies([{"name": "tickover-zone", "value": "America/New_York", "url": f"{console.url}/ui/"}])
    page.goto(f"{console.url}/ui/redrives")
    page.wait_for_selector("text=times in Europe/Berlin")
    page.goto(f"{console.url}/ui/redrives?zone=UTC")
    page.wait_for_selector("text=times in UTC")
