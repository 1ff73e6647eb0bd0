"""The forecast in a browser: what is due, and where a peak doesn't fit into a rate."""

import pytest

from tests.process.api.console.browsing import Console, look_at
from tests.unit.api_world import NOW_MS, REMINDERS, World

THIS = NOW_MS // 60_000


def fill(api: World, **target: object) -> None:
    api.add({**REMINDERS, "target": {"topic": "mail", "rate": "60/m", **target}})
    api.add({**REMINDERS, "name": "quick", "match": {"topics": ["orders"]}, "target": {"topic": "t", "rate": "9000/s"}})
    api.sources.topics = ("reminders", "orders")
    api.held.minutes = {THIS + place: 40 + (place * 7) % 15 + (250 if place == 12 else 0) for place in range(60)}


def test_it_looks_as_it_should(api: World, console: Console) -> None:
    fill(api)
    look_at(console, "/forecast", "forecast", lambda page: page.wait_for_selector(".plot canvas"))


def test_a_peak_says_how_late_it_is_and_the_spread_that_fits(api: World, console: Console) -> None:
    fill(api)
    page = console.open("/forecast", script=False)
    policies = page.locator("section.panel", has=page.locator("h3"))
    assert "The most in a minute is" in policies.nth(0).inner_text()
    told = policies.nth(1).inner_text()
    for words in ("reminders", "does not fit", "the last is", "With a spread of", "1 a second"):
        assert words in told


def test_of_several_targets_it_only_may_not_fit(api: World, console: Console) -> None:
    fill(api, topic=None, allow=["mail-*"])
    assert "may not fit" in console.open("/forecast", script=False).inner_text("main")


def test_without_a_rate_it_says_so(console: Console) -> None:
    assert "No policy has a rate" in console.open("/forecast", script=False).inner_text("main")


def test_the_address_says_what_is_asked(api: World, console: Console) -> None:
    fill(api)
    page = console.open("/forecast?source=reminders&minutes=5", script=False)
    assert page.locator("figure.chart").first.locator("tbody tr").count() == 5
    assert page.locator(".command code").first.inner_text() == "tickover forecast --minutes 5 --source reminders"
    assert api.held.asked[0].topic == "reminders"


@pytest.mark.parametrize("query", ["minutes=x", "minutes=99999"])
def test_a_wrong_number_is_refused_in_words(console: Console, query: str) -> None:
    assert "minutes" in console.open(f"/forecast?{query}", script=False).inner_text("main")
