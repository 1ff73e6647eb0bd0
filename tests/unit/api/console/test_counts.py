"""Counts of the navigation: of the last look, and of nothing else."""

import pytest

from api.console.counts import Count, counts_of
from api.console.page import ROOT
from api.routes.group.looks import KEPT_S, KNOWN_S
from sidecar.lookup.report import MINUTE_MS, MINUTES, Minute
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api_world import world
from tests.unit.report_world import NOW_MS, busy_report, report, seen


def test_without_a_look_nothing_is_known() -> None:
    assert counts_of(None) == {}


def test_counts_are_those_of_all_replicas_and_zeros_are_left_out() -> None:
    old = Minute(at_ms=NOW_MS - MINUTES * MINUTE_MS, dead=500)
    other = report("b", wheel=3, minutes=(old, Minute(at_ms=NOW_MS, dead=5)))
    found = counts_of(seen(busy_report(), other))
    assert found.pop("").is_bad
    assert found == {
        "/messages": Count(92_410 + 1_111_921 + 3, "held"),
        "/dead-letters": Count(7, "in the last hour"),
        "/quarantine": Count(1, "in the last hour"),
    }
    assert counts_of(seen(report())) == {}


def test_pages_ask_the_group_no_more_than_once_a_second_and_forget_what_is_old() -> None:
    with world(console=OPTIONS) as api:

        def messages() -> str:
            text = api.call("GET", f"{ROOT}/settings").text
            api.runner.run(api.app.state.overviews.seen())  # the look that has begun, in a thread
            return text.partition('id="n-messages">')[2].partition("</span>")[0]

        assert messages() == ""
        for _ in range(3):
            assert messages().startswith("1.2 M")
        assert len(api.group.looks) == 1
        api.monotonic_s += KEPT_S
        messages()
        assert len(api.group.looks) == 2
        api.monotonic_s += KNOWN_S
        assert messages() == ""


@pytest.mark.parametrize("failure", [OSError("Redis is away")])
def test_a_look_that_failed_leaves_pages_as_they_are(failure: Exception) -> None:
    with world(console=OPTIONS) as api:

        def look() -> None:
            raise failure

        api.group.look = look  # type: ignore[method-assign,assignment]
        for _ in range(2):
            page = api.call("GET", f"{ROOT}/settings")
            assert (page.status_code, "held" in page.text.partition("<main")[0]) == (200, False)
