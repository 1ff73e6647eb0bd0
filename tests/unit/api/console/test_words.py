"""Figures and times as pages show them."""

from zoneinfo import ZoneInfo

import pytest
from markupsafe import Markup

from api.console import words

NOW_MS = 1_800_000_000_000  # 2027-01-15 08:00:00 UTC


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (9_999, "9,999"), (10_000, "10.0 k"), (1_204_331, "1.2 M"), (2_000_000_000, "2.0 G"), (None, "–")],
)
def test_short_figures(number: int | None, text: str) -> None:
    assert words.short(number) == text


def test_moments_name_the_day_only_where_it_is_another() -> None:
    zone = ZoneInfo("Europe/Berlin")
    assert words.absolute(NOW_MS + 7, zone, NOW_MS) == "09:00:00.007"
    assert words.absolute(NOW_MS + 86_400_000, zone, NOW_MS) == "2027-01-16 09:00:00"
    assert words.absolute(1 << 62, zone, NOW_MS) == f"{1 << 62} ms"  # a deliver-at may be as far as it likes


def test_relative_moments() -> None:
    assert words.relative(NOW_MS + 12_000, NOW_MS) == "in 12 s"
    assert words.relative(NOW_MS - 960_000, NOW_MS) == "16 min ago"
    assert words.relative(NOW_MS + 900, NOW_MS) == "now"


def test_times_in_a_sentence_are_found_and_all_else_stays() -> None:
    text = (
        "waits since 07:59:00 UTC (60 s), up to 2027-01-15T09:00:00.5+01:00, not 2027-02-31T00:00:00Z or 07:44:00 UTC"
    )
    pieces = list(words.moments(text, NOW_MS - 60_000))
    assert [piece for piece in pieces if piece[1] is not None] == [
        ("07:59:00 UTC", NOW_MS - 60_000),
        ("2027-01-15T09:00:00.5+01:00", NOW_MS + 500),
    ]
    assert "".join(piece for piece, _ in pieces) == text


def test_a_clock_whose_day_nobody_knows_stays_as_it_is() -> None:
    assert list(words.moments("since 07:59:00 UTC")) == [("since 07:59:00 UTC", None)]


def test_pieces_of_text_are_escaped_later_and_those_of_markup_are_not() -> None:
    [(first, _), (_, ms), (last, _)] = words.moments(Markup("<b>at</b> 2027-01-15T08:00:00Z &amp; on"))
    assert (ms, first.__html__(), last.__html__()) == (NOW_MS, "<b>at</b> ", " &amp; on")  # type: ignore[attr-defined]
    assert type(next(words.moments("<b>"))[0]) is str
