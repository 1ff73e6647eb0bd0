"""`tickover overview`, `replicas` and `top` where there is no terminal, against the real REST interface over fakes."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from rich.console import Console

from sidecar.cli.overview.figures import bars, digest, problem_lines, replica_line, short
from sidecar.cli.overview.screen import PROBLEMS_MAX, View, screen
from sidecar.conditions.attribution import Sign
from sidecar.lookup.report import Rebuild
from tests.unit.api_world import NOW_MS, REMINDERS, world
from tests.unit.cli.test_cli_rest import Terminal
from tests.unit.report_world import busy_report, report, seen


@pytest.fixture
def tickover(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)
    with world() as there:
        there.group.seen = seen(busy_report(), silent=(Sign("r", "tickover-1", NOW_MS - 4_000),))
        yield Terminal(there)


def test_an_overview_is_data_on_stdout_and_problems_in_words_on_stderr(tickover: Terminal) -> None:
    result = tickover("overview")
    told = dict(line.split("\t") for line in result.stdout.splitlines())
    assert (told["group"], told["held.wheel"], told["replicas.silent"]) == ("payments", "92410", "tickover-1")
    assert (told["problems"], told["last_hour.emitted"], told["suspended"]) == ("3", "120", "push")
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["bad"] * 3
    assert "push has not acknowledged since 07:44:00 UTC (16 min)." in result.stderr
    assert "Fix: tickover doctor" in result.stderr


def test_json_and_yaml_are_what_rest_says(tickover: Terminal) -> None:
    told = tickover.data("overview")
    assert (len(told["due"]["minutes"]), len(told["hour"]["minutes"])) == (60, 60)
    assert tickover("overview", "-o", "json").stderr == ""
    assert yaml.safe_load(tickover("overview", "-o", "yaml").stdout)["as_of"] == "2027-01-15T08:00:00.000Z"


def test_top_without_a_terminal_tells_once(tickover: Terminal) -> None:
    assert tickover.data("top") == tickover.data("overview")
    assert tickover("top").stdout == tickover("overview").stdout


def test_replicas_have_a_line_each(tickover: Terminal) -> None:
    first, second = (line.split("\t") for line in tickover("replicas").stdout.splitlines()[1:])
    assert first[:7] == ["tickover-0", "running", "12", "0", "92410", "1111921", "2.0"]
    assert (second[:2], second[-1]) == (["tickover-1", "silent"], "last sign 2027-01-15T07:59:56.000Z")
    assert [item["state"] for item in tickover.data("replicas")] == ["running", "silent"]


def shown(view: View, width: int = 100) -> str:
    console = Console(width=width, height=50, record=True, file=None, highlight=False)
    with console.capture() as captured:
        console.print(screen(view))
    return captured.get()


def view_of(tickover: Terminal, **fields: Any) -> View:
    return View(tickover.data("overview"), tickover.data("replicas"), **fields)


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_screen_begins_with_what_is_wrong_and_has_the_figures(tickover: Terminal, width: int) -> None:
    text = shown(view_of(tickover), width)
    assert text.index("has not acknowledged") < text.index("held")
    for words in ("1.2M", "92.4k near", "4 ms / 100 ms", "tickover-1"):
        assert words in text
    assert max(map(len, text.splitlines())) <= width


def test_a_quiet_group_has_one_quiet_line(tickover: Terminal) -> None:
    tickover.there.group.seen = seen(report())
    tickover.there.monotonic_s += 5
    assert "All is well." in shown(view_of(tickover))


def test_a_screen_that_is_not_refreshed_says_why(tickover: Terminal) -> None:
    assert "not refreshed: nobody answers" in shown(view_of(tickover, stale="nobody answers"))


def test_many_problems_leave_room_for_the_figures(tickover: Terminal) -> None:
    tickover.there.group.seen = seen(report(suspended=tuple(f"t{number}" for number in range(40))))
    tickover.there.monotonic_s += 5
    text = shown(view_of(tickover))
    assert f"and {40 - PROBLEMS_MAX} more: tickover overview" in text
    assert "held" in text


def test_what_others_said_does_nothing_to_a_terminal(tickover: Terminal) -> None:
    hostile = "\x1b[31mred\x07"
    tickover.there.group.seen = seen(report(hostile, kafka_problem=hostile, warnings=(hostile,)))
    tickover.there.monotonic_s += 5
    result = tickover("overview")
    assert "\x1b" not in result.stdout + result.stderr + tickover("replicas").stdout
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(screen(view_of(tickover)))
    assert "\x1b" not in captured.get()
    assert "\x07" not in captured.get()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1_204, "1.2k"), (92_410, "92.4k"), (1_204_331, "1.2M"), (10**10, "10G")],
)
def test_counts_are_short(count: int, text: str) -> None:
    assert short(count) == text


def test_bars_are_as_high_as_their_part_of_the_largest() -> None:
    assert bars([0, 1, 50, 100, None]) == " ▁▄█ "
    assert bars([None, 0]) == "  "


def test_capacity_says_where_a_peak_does_not_fit(tickover: Terminal) -> None:
    tickover.there.add({**REMINDERS, "target": {"topic": "mail", "rate": "60/m"}})
    tickover.there.sources.topics = ("reminders",)
    tickover.there.held.minutes = {NOW_MS // 60_000 + 2: 300}
    (line,) = (line.split("\t") for line in tickover("capacity").stdout.splitlines()[1:])
    assert line == ["reminders", "mail", "1.0", "300", "2027-01-15T08:02:00.000Z", "no", "4 min", "4 min"]
    assert len(tickover.data("capacity", "--minutes", "5")[0]["minutes"]) == 5


def test_a_line_says_how_far_recovery_and_rebuilds_are(tickover: Terminal) -> None:
    parts = (
        Rebuild(topic="t", partition=1, done=5, held=9, read_share=0.25),
        Rebuild(topic="t", partition=2, held=4),
    )
    tickover.there.group.seen = seen(report(recovering=2, rebuilding=parts))
    tickover.there.monotonic_s += 5
    (item,) = tickover.data("replicas")
    assert replica_line(item)["progress"] == (
        "recovers 2 partitions; rebuilds t/1: 5 of 9, 25%; rebuilds t/2: 0 of 4, waits"
    )
    document = tickover.data("overview")
    assert digest(document)["rebuilds"] == ["t/1", "t/2"]
    assert len(problem_lines(document)) == 3
