"""Durations and times, row by row."""

import re

import pytest

from policies.duration import (
    DURATION_MAX_MS,
    TIME_MAX_MS,
    format_duration,
    parse_duration,
    parse_time,
    parse_typed_duration,
    parse_written_duration,
)
from policies.errors import FormatError


@pytest.mark.parametrize(
    ("given", "duration_ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("3d", 259_200_000),
        ("0", 0),
        ("1500", 1_500),
        (1_500, 1_500),
        (0, 0),
        ("1.5s", 1_500),
        ("0.0001s", 1),
        ("1.2", 2),
        (0.1, 1),
        ("PT90S", 90_000),
        ("PT0S", 0),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT1.5H", 5_400_000),
        ("PT1,5H", 5_400_000),
        ("P1DT0,0001S", 86_400_001),
        ("P2W", 1_209_600_000),
        ("3650d", DURATION_MAX_MS),
        ("1w", 604_800_000),
        ("1h30m", 5_400_000),
        ("1m30s", 90_000),
        ("15m0s", 900_000),
        ("1m0.0001s", 60_001),
        ("1w2d3h4m5s6ms", 788_645_006),
    ],
)
def test_a_duration_is_whole_milliseconds_rounded_up(given: object, duration_ms: int) -> None:
    assert parse_duration(given) == duration_ms


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("-5s", "negative"),
        (-1, "negative"),
        (-0.5, "negative"),
        ("-PT5S", "negative"),
        ("nan", "finite"),
        ("NaN", "finite"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ("inf", "finite"),
        ("-inf", "negative"),
        ("3651d", "3650d"),
        ("999999999999999999999999d", "3650d"),
        (1 << 80, "3650d"),
        ("9" * 65, "64 characters"),
        ("P1Y", "use days"),
        ("P1M", "use days"),
        ("", "not a duration"),
        (" 5s", "not a duration"),
        ("5s\n", "not a duration"),
        ("5 s", "not a duration"),
        ("30m1h", "not a duration"),
        ("1.5h30m", "not a duration"),
        ("1h1h", "not a duration"),
        ("15min", "1h30m"),
        ("1:30", "as on a clock"),
        ("0:15:00", "as on a clock"),
        ("5S", "not a duration"),
        ("+5s", "not a duration"),
        ("1e3", "not a duration"),
        ("٣s", "not a duration"),
        ("P", "not a duration"),
        ("PT", "not a duration"),
        ("P1DT", "not a duration"),
        ("PT1.5H3M", "smallest unit"),
        ("PT1,5H3M", "smallest unit"),
        ("P1,5Y", "use days"),
        ("1,5s", "not a duration"),
        (True, "a text like 90s"),
        (None, "a text like 90s"),
        ([1], "a text like 90s"),
    ],
)
def test_anything_else_is_refused_with_a_reason(given: object, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        parse_duration(given)


@pytest.mark.parametrize("given", [1.5, 0.1, "1.5", ".5", "5."])
def test_what_is_written_into_a_file_has_a_unit_or_is_whole(given: object) -> None:
    with pytest.raises(FormatError, match="needs its unit"):
        parse_written_duration(given)
    assert parse_written_duration(2.0) == parse_written_duration("2ms") == 2


def test_what_is_typed_has_a_unit() -> None:
    given = (("10s", 10_000), ("10ms", 10), ("PT1.5S", 1_500), ("1h30m", 5_400_000), ("0", 0), ("0.0", 0))
    for text, duration_ms in given:
        assert parse_typed_duration(text) == duration_ms
    for text in ("10", "1.5", "0010"):
        with pytest.raises(FormatError, match=re.escape(f"{text}s? {text}ms?")):
            parse_typed_duration(text)
    with pytest.raises(FormatError, match="not a duration"):
        parse_typed_duration("soon")


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0ms"), (1, "1ms"), (1_500, "1500ms"), (90_000, "90s"), (60_000, "1m"), (DURATION_MAX_MS, "3650d")],
)
def test_a_duration_is_shown_in_its_largest_whole_unit(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01T00:00:00Z", 0),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14t22:13:20z", 1_700_000_000_000),
        ("2023-11-15 03:43:20+05:30", 1_700_000_000_000),
        ("2023-11-14T17:13:20-05:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20.5Z", 1_700_000_000_500),
        ("2023-11-14T22:13:20.0000001Z", 1_700_000_000_001),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2017-01-01T00:59:60+01:00", 1_483_228_800_000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("9999-12-31T23:59:59.999Z", TIME_MAX_MS),
        ("2023-11-14T22:13:20,5Z", 1_700_000_000_500),
        ("2023-11-14T22:13Z", 1_699_999_980_000),
        ("2023-11-15T03:43:20+0530", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01", 1_700_000_000_000),
        ("1971-01-01T00:00:00Z", 31_536_000_000),
        ("100000000000", 100_000_000_000),
    ],
)
def test_a_time_is_epoch_milliseconds(text: str, time_ms: int) -> None:
    assert parse_time(text) == time_ms


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2023-11-14T22:13:20", "needs its zone"),
        ("-1", "negative"),
        ("1700000000000.5", "not a time"),
        ("1e12", "not a time"),
        ("nan", "not a time"),
        ("", "not a time"),
        ("tomorrow", "not a time"),
        ("2023-11-14", "not a time"),
        ("20231114T221320Z", "not a time"),
        ("2023-11-14T22Z", "not a time"),
        ("2023-11-14T22:13:20+01:00[Europe/Berlin]", "not a time"),
        ("1700000000", "seconds"),
        ("1", "seconds"),
        ("99999999999", "seconds"),
        ("1700000000000000", "microseconds"),
        ("1700000000000000000", "nanoseconds"),
        ("2023-02-29T00:00:00Z", "calendar"),
        ("2023-13-01T00:00:00Z", "calendar"),
        ("0000-01-01T00:00:00Z", "calendar"),
        ("2023-11-14T24:00:00Z", "time of day"),
        ("2023-11-14T12:60:00Z", "time of day"),
        ("2023-11-14T12:00:61Z", "time of day"),
        ("2023-11-14T12:00:00+24:00", "time of day"),
        ("2023-11-14T12:00:60Z", "leap second"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ("1970-01-01T00:00:00+01:00", "before 1970"),
        ("9999-12-31T23:59:59-01:00", "9999"),
        ("9" * 65, "64 characters"),
    ],
)
def test_a_time_without_zone_or_sense_is_refused(text: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        parse_time(text)


def test_the_problem_leaves_the_text_out_so_that_it_can_be_logged() -> None:
    with pytest.raises(FormatError) as caught:
        parse_duration("secret")
    assert "secret" in str(caught.value)
    assert "secret" not in caught.value.problem
