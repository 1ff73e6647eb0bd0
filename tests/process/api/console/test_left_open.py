"""A page that is left open grows by nothing, however often it refreshes itself."""

from typing import Any

from tests.process.api.console.browsing import Console

REFRESHED_S = 31  # a chart is drawn anew each 30 s
WARM = 3  # refreshes until what is made once is there
ROUNDS = 10
HEAP_BYTES = 60_000  # a refresh: what the clock of the test keeps; a chart that stays takes 240,000


def in_use(devtools: Any) -> dict[str, float]:
    """Nodes, listeners and bytes that the browser keeps for the page, after a collection."""
    devtools.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] for name in ("Nodes", "JSEventListeners", "JSHeapUsedSize")}


def test_a_page_that_refreshes_itself_keeps_nothing_of_before(console: Console) -> None:
    page = console.open("/")
    page.clock.install()
    page.reload()
    page.wait_for_selector(".plot canvas")
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")

    def refresh(times: int) -> None:
        for _ in range(times):
            page.evaluate("for (const plot of document.querySelectorAll('.plot')) plot.dataset.before = 'yes'")
            page.clock.fast_forward(REFRESHED_S * 1_000)
            page.evaluate("document.body.dispatchEvent(new Event('tick'))")
            page.locator(".plot:not([data-before]) canvas").first.wait_for()  # a handle of it would keep it

    refresh(WARM)
    before = in_use(devtools)
    refresh(ROUNDS)
    after = in_use(devtools)
    assert after["Nodes"] <= before["Nodes"] * 1.2, (before, after)
    assert after["JSEventListeners"] <= before["JSEventListeners"] * 1.2, (before, after)
    assert after["JSHeapUsedSize"] <= before["JSHeapUsedSize"] + HEAP_BYTES * ROUNDS, (before, after)
    assert console.problems == []
