"""Pages show what they are given, and nothing that is given can become markup."""

from typing import Any

import pytest

from pipeline.reports import html_report

pytest.importorskip("matplotlib", reason="make setup-pipeline")

NASTY = "<script>alert(1)</script> $\\frac$ é"
MINUTE_MS = 1_763_720_040_000
TIMES = {"minute_ms": MINUTE_MS, "first_ms": 5, "last_ms": 10**18}
ROWS: dict[html_report.Draw, dict[str, Any]] = {
    html_report.draw_funnel: {"policy": NASTY, "attempt": 2, "delivered": 3, "failed": 1, "rescued": 2},
    html_report.draw_lateness: {"tier": NASTY, "minute_ms": MINUTE_MS, "p50": 5, "p99": 50},
    html_report.draw_triage: {
        "error_class": NASTY,
        "fingerprint": None,
        "reason": "expired",
        "records": 3,
        "new": True,
        **TIMES,
    },
    html_report.draw_herd: {"target": NASTY, "minute_ms": MINUTE_MS, "due": 5, "over": True},
    html_report.draw_storms: {"target": NASTY, "minute_ms": MINUTE_MS, "retries": 50, "storm": True},
    html_report.draw_forecast: {"minute_ms": MINUTE_MS, "held": 3, "arriving": 1.5, "due": 4.5},
}


@pytest.mark.parametrize("draw", ROWS, ids=[f"{draw.__name__}" for draw in ROWS])
def test_each_report_has_a_plot_and_a_table(draw: html_report.Draw) -> None:
    rows = [ROWS[draw], {**ROWS[draw], "minute_ms": MINUTE_MS + 60_000}] if "minute_ms" in ROWS[draw] else [ROWS[draw]]
    text = html_report.page(NASTY, "words", rows, draw)
    assert text.count("<svg") == text.count("</svg>") == 1
    assert "<script" not in text
    assert text.count("<tr>") == len(rows) + 1
    assert "<?xml" not in text


def test_no_rows_are_said_in_words() -> None:
    assert "No rows" in html_report.page("t", "w", [], html_report.draw_herd)


def test_long_tables_are_cut_and_say_so() -> None:
    rows = [{"a": number} for number in range(html_report.ROWS_SHOWN_MAX + 5)]
    text = html_report.table(rows)
    assert text.count("<tr>") == html_report.ROWS_SHOWN_MAX + 1
    assert f"{html_report.ROWS_SHOWN_MAX} of {len(rows)}" in text


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("minute_ms", MINUTE_MS, "<td>2025-11-21 10:14</td>"),
        ("minute_ms", 10**18, "<td>1000000000000000000</td>"),
        ("records", 12_345, '<td class="number">12,345</td>'),
        ("share", 0.25, '<td class="number">0.250</td>'),
        ("new", True, "<td>True</td>"),
        ("reason", None, "<td></td>"),
        ("reason", "<b>", "<td>&lt;b&gt;</td>"),
    ],
)
def test_a_field_is_shown_as_what_it_is(name: str, value: object, shown: str) -> None:
    assert html_report.cell(name, value) == shown
