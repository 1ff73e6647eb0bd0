"""Instants of cron expressions, over zones and changes of their clocks."""

from datetime import UTC, datetime, time, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sidecar.operations.schedules.cron import BadCron, check_cron, check_meant, latest, occurrences, zone, zone_names
from tests.examples import examples

# Changes by an hour, by half an hour, at midnight, of a whole day, far from UTC, and none.
ZONES = st.sampled_from(
    (
        "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Pacific/Apia",
        "America/St_Johns", "Asia/Kathmandu", "Pacific/Chatham", "America/Havana", "Asia/Tokyo",
    )
)  # fmt: skip
# By an hour, by half an hour, forth and back; at midnight; a day that was left out.
CHANGES = [
    ("America/New_York", "2027-03-13"), ("America/New_York", "2027-11-06"), ("Australia/Lord_Howe", "2020-10-02"),
    ("Australia/Lord_Howe", "2021-04-02"), ("Africa/Cairo", "2027-04-28"), ("Pacific/Apia", "2011-12-28"),
]  # fmt: skip
TIMES_MS = st.integers(1_262_304_000_000, 2_208_988_800_000)  # 2010 to 2040
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FUZZ = settings(max_examples=examples(150), deadline=None)


def some_of(most: int) -> st.SearchStrategy[str]:
    numbers = st.integers(0, most)
    return st.lists(numbers, min_size=1, max_size=3).map(lambda chosen: ",".join(map(str, sorted(chosen))))


FIXED = st.builds(lambda minute, hour, day: f"{minute} {hour} {day}", some_of(59), some_of(23), st.just("* * *"))
FIXED_SECONDS = st.builds(lambda second, rest: f"{second} {rest}", some_of(59), FIXED)
PASSING = st.sampled_from(["* * * * *", "*/15 * * * *", "30 */2 * * *", "5 * * * MON", "*/20 * * * * *"])
CRONS = FIXED | FIXED_SECONDS | PASSING


def ms(text: str, name: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(name)).timestamp() * 1_000)


def local(cron: str, name: str, after: str, count: int) -> list[str]:
    found = islice(occurrences(cron, name, ms(after, name)), count)
    return [datetime.fromtimestamp(at_ms / 1_000, zone(name)).isoformat() for at_ms in found]


@FUZZ
@given(CRONS, ZONES, TIMES_MS)
def test_they_rise_and_lie_behind_the_given_time(cron: str, name: str, after_ms: int) -> None:
    found = list(islice(occurrences(cron, name, after_ms), 30))
    assert len(found) == 30
    assert found[0] > after_ms
    assert all(one < other for one, other in pairwise(found))


@FUZZ
@given(FIXED | FIXED_SECONDS, ZONES, TIMES_MS, st.integers(0, 20))
def test_it_does_not_matter_where_one_begins(cron: str, name: str, after_ms: int, steps: int) -> None:
    """A successor finds behind the last occurrence what its predecessor would have gone on with."""
    found = list(islice(occurrences(cron, name, after_ms), steps + 5))
    assert list(islice(occurrences(cron, name, found[steps]), 4)) == found[steps + 1 :]
    assert list(islice(occurrences(cron, name, found[steps] - 1), 5)) == found[steps:]


@FUZZ
@given(FIXED | FIXED_SECONDS, ZONES, TIMES_MS)
def test_each_time_on_the_wall_happens_once_a_day(cron: str, name: str, after_ms: int) -> None:
    """Against a model that asks of every second of three local days whether it exists, and when for the first time."""
    place = zone(name)
    *second, minute, hour = cron.split()[:-3]
    first_day = datetime.fromtimestamp(after_ms // 1_000, place).date() + timedelta(days=1)
    expected = set()
    for day in range(3):
        for h in hour.split(","):
            for m in minute.split(","):
                for s in second[0].split(",") if second else ["0"]:
                    wall = datetime.combine(first_day + timedelta(days=day), time(int(h), int(m), int(s)))
                    while not exists(wall, place):
                        wall += timedelta(minutes=1)
                    expected.add(round(wall.replace(tzinfo=place).timestamp() * 1_000))
    # A day that a gap has swallowed is moved into the next one: only what lies surely within is compared.
    low, high = min(expected), max(expected)
    found = set(takewhile(lambda at_ms: at_ms <= high, occurrences(cron, name, low - 1)))
    assert found >= expected
    assert len(found - expected) <= len(expected)
    assert all(low <= at_ms <= high for at_ms in found)


def exists(wall: datetime, place: ZoneInfo) -> bool:
    return wall.replace(tzinfo=place).astimezone(UTC).astimezone(place).replace(tzinfo=None) == wall


@FUZZ
@given(FIXED | PASSING.filter(lambda cron: len(cron.split()) == 5), ZONES, TIMES_MS)
def test_with_five_fields_it_is_as_cronsim_says(cron: str, name: str, after_ms: int) -> None:
    assume(name != "Australia/Lord_Howe" or "*" not in cron.removesuffix(" * * *"))  # cronsim walks whole hours there
    after = datetime.fromtimestamp(after_ms // 1_000, zone(name))
    said = {round(instant.timestamp()) * 1_000 for instant in islice(CronSim(cron, after), 30)}
    found = set(islice(occurrences(cron, name, after_ms), 60))
    assert {at_ms for at_ms in said if at_ms > after_ms} <= found


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]} {change[1][:10]}")
@pytest.mark.parametrize("cron", ["*/15 11 * * *", "*/15 * * * *", "30 */2 * * *", "5 * * * *", "20 */15 1,2 * * *"])
def test_by_passing_time_each_time_on_the_wall_fires_whenever_it_is(change: tuple[str, str], cron: str) -> None:
    """Against a model that asks of every 20 seconds of three days what the clock on the wall says."""
    name, day = change
    begin_ms = ms(day, "UTC")
    instants = [begin_ms + n * 20_000 for n in range(3 * DAY_MS // 20_000)]
    meant = [at_ms for at_ms in instants if means(cron, datetime.fromtimestamp(at_ms // 1_000, zone(name)))]
    for after_ms in [begin_ms - 1_000, *(begin_ms + n * 15 * HOUR_MS // 2 for n in range(9))]:
        found = takewhile(lambda at_ms: at_ms < begin_ms + 3 * DAY_MS, occurrences(cron, name, after_ms))
        assert list(found) == [at_ms for at_ms in meant if at_ms > after_ms]


def means(cron: str, wall: datetime) -> bool:
    """Whether an expression that limits nothing but hours, minutes and seconds names this time of the day."""
    *second, minute, hour = cron.removesuffix(" * * *").split()

    def fits(text: str, value: int) -> bool:
        return value % int(text[2:] or 1) == 0 if text.startswith("*") else str(value) in text.split(",")

    return fits(second[0] if second else "0", wall.second) and fits(minute, wall.minute) and fits(hour, wall.hour)


@FUZZ
@given(CRONS, ZONES, TIMES_MS, st.integers(0, 3 * DAY_MS), st.integers(1, 20))
def test_the_latest_are_the_last_of_all(cron: str, name: str, after_ms: int, span_ms: int, count: int) -> None:
    until_ms = after_ms + span_ms
    everything = list(takewhile(lambda at_ms: at_ms <= until_ms, occurrences(cron, name, after_ms)))
    assert latest(cron, name, after_ms, until_ms, count) == everything[-count:]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["2027-03-14T03:00:00-04:00", "2027-03-15T02:30:00-04:00"]),
        ("31 2 * * *", ["2027-03-14T03:00:00-04:00", "2027-03-15T02:31:00-04:00"]),
        ("15 30 2 * * *", ["2027-03-14T03:00:15-04:00", "2027-03-15T02:30:15-04:00"]),
        ("0,30 2 * * *", ["2027-03-14T03:00:00-04:00", "2027-03-15T02:00:00-04:00"]),
        ("0 2,3 * * *", ["2027-03-14T03:00:00-04:00", "2027-03-15T02:00:00-04:00"]),
        ("*/30 2 * * *", ["2027-03-15T02:00:00-04:00", "2027-03-15T02:30:00-04:00"]),
    ],
)
def test_a_time_that_the_clock_leaves_out(cron: str, expected: list[str]) -> None:
    assert local(cron, "America/New_York", "2027-03-13T12:00", 2) == expected


def test_what_was_moved_out_of_a_gap_is_found_from_behind_the_gap_too() -> None:
    """At 3:00:05 the local time 2:30:15 is over, and what it was moved to, 3:00:15, is not."""
    found = local("15 30 2 * * *", "America/New_York", "2027-03-14T03:00:05", 2)
    assert found == ["2027-03-14T03:00:15-04:00", "2027-03-15T02:30:15-04:00"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 1 * * *", ["2027-11-07T01:30:00-04:00", "2027-11-08T01:30:00-05:00"]),
        ("15 30 1 * * *", ["2027-11-07T01:30:15-04:00", "2027-11-08T01:30:15-05:00"]),
        ("30 */1 * * *", ["2027-11-07T00:30:00-04:00", "2027-11-07T01:30:00-04:00", "2027-11-07T01:30:00-05:00"]),
    ],
)
def test_a_time_that_comes_twice(cron: str, expected: list[str]) -> None:
    assert local(cron, "America/New_York", "2027-11-07T00:00", len(expected)) == expected


def test_a_day_that_was_left_out() -> None:
    """Samoa had no 30 December 2011."""
    found = local("0 12 * * *", "Pacific/Apia", "2011-12-29T13:00", 2)
    assert found == ["2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"]


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("0 0 31 2 *", "such a day never comes"),
        ("0 0 31 4,6,9,11 *", "such a day never comes"),
        ("0 0 */30 * MON#2", "never happens"),
        ("0 0 30 2", "has 4 fields"),
        ("0 0 0 0 0 0 0", "has 7 fields"),
        ("61 * * * *", "minute cannot be read"),
        ("60 * * * * *", "second cannot be read"),
        ("* * * * MOON", "day-of-week cannot be read"),
        ("@daily", "at most 256 letters"),
        ("", "at most 256 letters"),
        ("1," * 200 + "1 * * * *", "at most 256 letters"),
    ],
)
def test_what_means_nothing_is_refused_in_words(cron: str, says: str) -> None:
    with pytest.raises(BadCron, match=says):
        check_cron(cron)


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("@daily", "write 0 0 \\* \\* \\* for @daily"),
        ("@reboot", "nicknames"),
        ("0 0 ? * *", "write \\* instead of \\?"),
        ("0 0 1W * *", "nearest weekday"),
        ("0 0 * * FRI-MON", "ends later than it begins"),
    ],
)
def test_what_other_crons_take_is_refused_with_what_to_write(cron: str, says: str) -> None:
    with pytest.raises(BadCron, match=says):
        check_cron(cron)


@pytest.mark.parametrize(
    "cron",
    ["*/90 * * * *", "0-59/90 * * * *", "*/1440 * * * *", "*/60 * * * *", "0 */25 * * *", "0 0 */40 * *",
     "0 0 1-31/50 * *", "5,*/60 * * * *", "*/60 * * * * *", "50/10 * * * *", "0 0 1 */12 *"],
)  # fmt: skip
def test_a_step_that_is_never_taken_is_not_meant(cron: str) -> None:
    check_cron(cron)  # what was stored by an earlier version stays valid
    with pytest.raises(BadCron, match="alone, as the next one"):
        check_meant(cron)


@pytest.mark.parametrize(
    "cron",
    ["*/59 * * * *", "*/5 * * * *", "0 */23 * * *", "0 0 */15 * *", "0 0 * * */2", "10-40/30 * * * *", "0 0 L * *"],
)
def test_a_step_that_is_taken_is_meant(cron: str) -> None:
    check_cron(cron)
    check_meant(cron)


def test_the_rarest_is_not_refused() -> None:
    check_cron("0 0 29 2 *")
    assert local("0 0 29 2 *", "Europe/Berlin", "2096-03-01T00:00", 1) == ["2104-02-29T00:00:00+01:00"]


@FUZZ
@given(st.text(max_size=30) | st.text("0123456789*/,-#L WSUN", max_size=20).map(lambda text: f"{text} * * * *"))
def test_any_text_is_valid_or_refused(cron: str) -> None:
    try:
        check_cron(cron)
    except BadCron:
        return
    assert next(occurrences(cron, "Europe/Berlin", 0)) > 0


@pytest.mark.parametrize("name", sorted(zone_names())[::40])
def test_zones_come_from_the_package(name: str) -> None:
    assert zone(name).key == name
