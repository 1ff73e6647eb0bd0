"""The overview and the replicas in a browser: what is wrong first, the same figures as the API, live, and harmless."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from sidecar.conditions.attribution import Sign
from sidecar.lookup.report import MINUTE_MS, MINUTES, DueMinute, Minute, Rebuild, Report, Wait
from tests.process.api.console.browsing import Console, look_at
from tests.unit.api_world import World
from tests.unit.report_world import LANE, NOW_MS, busy_report, late, report, seen

THIS = NOW_MS // MINUTE_MS


def minutes() -> tuple[Minute, ...]:
    """An hour with a bad quarter."""
    return tuple(
        Minute(
            at_ms=(THIS - back) * MINUTE_MS, emitted=2_100 + back * 7, retried=30 + back, dead=back % 3, quarantined=0,
            late=late(*(3,) * 97, *((90,) * 3 if 20 < back < 35 else (12,) * 3)),
        )
        for back in range(MINUTES - 1, -1, -1)
    )  # fmt: skip


def rebuilding() -> Report:
    part = Rebuild(topic="orders-retry", partition=3, done=1_200, held=8_000, read_share=0.4)
    wait = Wait(kind="recovering", topic="orders-retry", partition=1, since_ms=NOW_MS - 3_000)
    return report(
        "tickover-2", partitions=4, recovering=1, wheel=900, rebuilding=(part,), waits=(wait,), minutes=minutes()
    )


def fill(api: World) -> None:
    due = {THIS + ahead: 1_500 + (ahead * 37) % 900 + (9_000 if 31 < ahead < 35 else 0) for ahead in range(MINUTES)}
    near = tuple(DueMinute(minute=THIS + ahead, held=due[THIS + ahead]) for ahead in range(10))
    busy = busy_report().model_copy(update={"minutes": minutes(), "near": near})
    signs = (Sign("r", "tickover-1", NOW_MS - 45_000),)
    api.group.seen = seen(
        busy, rebuilding(), silent=signs, minutes={**due, -1: 1_026_331}, read={LANE: 9}, lags={LANE: 4}
    )


def test_the_overview_looks_as_it_should(api: World, console: Console) -> None:
    fill(api)
    look_at(console, "/", "overview", lambda page: page.wait_for_selector(".plot canvas"))


def test_the_replicas_look_as_they_should(api: World, console: Console) -> None:
    fill(api)
    look_at(console, "/replicas", "replicas")


def test_a_quiet_group_has_one_quiet_line(api: World, console: Console) -> None:
    api.group.seen = seen(report(wheel=5))
    page = console.open("/")
    assert page.locator(".problem").count() == 0
    assert "Nothing is wrong: 1 of 1 replicas answer" in page.inner_text("main")


def test_a_group_that_has_just_begun_is_told_how_to_go_on(api: World, console: Console) -> None:
    api.group.seen = seen(report())
    assert "tickover messages send" in console.open("/").inner_text(".empty")


def test_what_is_wrong_stands_first_with_its_fix(api: World, console: Console) -> None:
    fill(api)
    page = console.open("/", script=False)
    told = page.locator(".problem")
    assert "tickover-1 has given no sign of life" in told.first.inner_text()
    assert "push has not acknowledged since" in page.inner_text("#now")
    assert told.filter(has_text="push has not").locator("code").inner_text() == "tickover doctor"
    top: list[Any] = [page.locator(one).first.bounding_box() or {} for one in (".problem", ".figure", "figure.chart")]
    assert [box["y"] for box in top] == sorted(box["y"] for box in top)


def test_times_in_sentences_are_in_the_viewers_zone(api: World, console: Console) -> None:
    fill(api)
    page = console.open("/?zone=Europe/Berlin")
    told = page.locator(".problem", has_text="push has not")
    assert told.locator("time").get_attribute("datetime") == "2027-01-15T07:44:00.000Z"
    assert "since 2027-01-15 08:44:00 (16 min)." in told.inner_text()
    assert "UTC" not in page.inner_text("#now")
    page.goto(f"{console.url}/ui/?zone=UTC")
    assert "since 2027-01-15 07:44:00 (16 min)." in told.inner_text()


def test_figures_are_those_of_the_api_and_change_in_place(api: World, console: Console) -> None:
    fill(api)
    page = console.open("/")
    held = page.locator(".figure").first
    expect(held.locator(".value")).to_have_text("1.2 M")
    page.evaluate("window.kept = true")
    api.group.seen = seen(report(wheel=77))
    api.monotonic_s += 10
    expect(held.locator(".value")).to_have_text("77")
    assert page.evaluate("window.kept"), "the page was not loaded anew"
    assert console.problems == []


def test_counts_stand_beside_the_names_of_pages_and_change_with_the_page(api: World, console: Console) -> None:
    fill(api)
    page = console.open("/settings")  # the first page of a process knows nothing yet
    page.goto(f"{console.url}/ui/")
    links = page.get_by_role("navigation").get_by_role("link")
    expect(links.filter(has_text="Messages")).to_have_accessible_name("Messages 1.2 M held")
    dead = sum(one.dead for one in minutes()) * 2
    expect(links.filter(has_text="Dead letters")).to_have_accessible_name(f"Dead letters +{dead} in the last hour")
    expect(links.filter(has_text="Overview")).to_have_accessible_name(re.compile("Overview [1-9] problems"))
    expect(page.locator("#n")).to_have_class("n bad")
    expect(links.filter(has_text="Policies")).to_have_accessible_name("Policies")
    api.group.seen = seen(report(wheel=77))
    api.monotonic_s += 10
    expect(links.filter(has_text="Messages")).to_have_accessible_name("Messages 77 held")
    expect(links.filter(has_text="Dead letters")).to_have_accessible_name("Dead letters")
    assert console.problems == []


def test_a_chart_has_its_figures_as_a_table(api: World, console: Console) -> None:
    fill(api)
    page = console.open("/")
    page.wait_for_selector(".plot canvas")
    due = page.locator("figure.chart").first
    due.locator(".table-key").click()
    rows = due.locator("tbody tr")
    assert rows.count() == MINUTES
    assert rows.nth(32).inner_text().split()[-1] == f"{1_500 + (32 * 37) % 900 + 9_000:,}"
    page.evaluate("document.getElementById('charts').firstElementChild.dataset.before = 'yes'")
    page.evaluate("htmx.ajax('GET', location.href, {target: '#charts', select: '#charts > *', swap: 'innerHTML'})")
    page.locator("#charts > :first-child:not([data-before])").wait_for(state="attached")
    due.locator(".figures").wait_for()  # still a table


def test_a_replica_shows_lag_memory_and_how_far_a_rebuild_is(api: World, console: Console) -> None:
    fill(api)
    page = console.open("/replicas")
    row = page.locator("tr", has_text="tickover-0").inner_text()
    for words in ("running", "12", "4", "92,410", "1,111,921", "134.2 MB"):
        assert words in row
    assert "has not answered" in page.locator("tr", has_text="tickover-1").inner_text()
    assert "1,200 of 8,000, 40 % of the ledger read" in page.inner_text("main")
    assert page.locator("progress").first.get_attribute("value") == "1200"


def test_each_page_is_a_command_and_a_call(api: World, console: Console) -> None:
    for path, command, call in (
        ("/", "tickover overview", "/v1/overview"),
        ("/replicas", "tickover replicas", "/v1/replicas"),
    ):
        page = console.open(path, script=False)
        codes = page.locator(".command code").all_text_contents()
        assert (codes[0], call in codes[1]) == (command, True)


@pytest.mark.parametrize("path", ["/", "/replicas"])
def test_what_others_said_is_only_text(api: World, console: Console, path: str) -> None:
    hostile: Any = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    part = Rebuild(topic="t", partition=0, problem=hostile)
    api.group.seen = seen(
        report(hostile, version=hostile, kafka_problem=hostile, warnings=(hostile,), rebuilding=(part,)),
        silent=(Sign("r", hostile, NOW_MS),),
    )
    page = console.open(path)
    assert "alert(2)" in page.inner_text("main")
    assert page.locator("main img, main script").count() == 0
    assert console.problems == []
