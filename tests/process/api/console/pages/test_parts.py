"""The page of all parts: how it looks, and what every page has."""

from tests.process.api.console.browsing import FIRST_PAGE_BYTES_MAX, Console, look_at


def test_the_parts_look_as_they_should(console: Console) -> None:
    look_at(console, "/parts", "parts", lambda page: page.wait_for_selector(".plot canvas"))


def test_it_can_be_read_without_a_script(console: Console) -> None:
    page = console.open("/parts", script=False)
    assert page.locator("figure.chart table").first.is_visible()
    assert "8,214 messages wait for it" in page.inner_text("main")


def test_a_first_page_is_small(console: Console) -> None:
    page = console.open("/parts")
    page.wait_for_selector(".plot canvas")
    page.wait_for_load_state("networkidle")
    assert 0 < sum(console.received.values()) <= FIRST_PAGE_BYTES_MAX, console.received


def test_keys_move_select_and_help(console: Console) -> None:
    page = console.open("/parts")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("tr.at input").is_checked()
    assert page.locator("tr.at").inner_text().startswith("invoice-88127") or "invoice-88127" in page.inner_text("tr.at")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()


def test_times_are_those_of_the_browser_unless_the_address_says_otherwise(console: Console) -> None:
    page = console.open("/parts")
    page.wait_for_selector("text=times in Europe/Berlin")
    page.goto(f"{console.url}/ui/parts?zone=UTC")
    assert page.is_visible("text=times in UTC")
