"""A schedule as users write it; which of its occurrences are owed."""

from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sidecar.operations.schedules.cron import occurrences
from sidecar.operations.schedules.owing import Limits, owed
from sidecar.operations.schedules.schedule import Progress, Schedule, headers_of, schedule_document
from tests.unit.schedule_world import LIMITS, NOW_MS, schedule

MINUTE_MS = 60_000
MISSED = st.sampled_from(["skip", "once", "all"])


def owes(since_ms: int, most: int = 1_000, **changes: Any) -> tuple[list[int], bool, int]:
    """Seconds from now, whether some were dropped, and how far it is settled, in seconds."""
    found = owed(schedule(**changes), Progress(since_ms), NOW_MS, LIMITS, most)
    return (
        [(at_ms - NOW_MS) // 1_000 for at_ms in found.due],
        found.dropped,
        (found.through_ms - NOW_MS) // 1_000,
    )


def test_on_time_all_that_lies_ahead_is_owed() -> None:
    assert owes(NOW_MS) == ([5, 10], False, 10)
    assert owes(NOW_MS - 7_000) == ([-5, 0, 5, 10], False, 10)


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("skip", ([-30, 0], True, 0)),
        ("once", ([-60, -30, 0], True, 0)),
        ("all", ([-180, -150, -120, -90, -60, -30, 0], True, 0)),
    ],
)
def test_missed_ones_are_passed_over_or_made_up_for(missed: str, expected: object) -> None:
    assert owes(NOW_MS - 10 * MINUTE_MS, cron="*/30 * * * * *", missed=missed) == expected


def test_all_are_made_up_for_within_the_limit() -> None:
    assert owes(NOW_MS - 2 * MINUTE_MS, cron="*/30 * * * * *", missed="all") == ([-90, -60, -30, 0], False, 0)


def test_when_nothing_is_in_time_what_was_missed_is_settled_all_the_same() -> None:
    hourly: Any = {"cron": "50 * * * *"}
    assert owes(NOW_MS - 30 * MINUTE_MS, **hourly) == ([], True, -600)
    assert owes(NOW_MS - 30 * MINUTE_MS, missed="once", **hourly) == ([-600], False, -600)
    assert owes(NOW_MS - 5 * MINUTE_MS, **hourly) == ([], False, -300)


def test_a_paused_one_owes_nothing() -> None:
    assert owes(NOW_MS - 10 * MINUTE_MS, paused=True, missed="all") == ([], False, -600)


@given(
    st.integers(0, 20 * MINUTE_MS),
    MISSED,
    st.integers(1, 7),
    st.integers(0, 10),
    st.sampled_from(["*/7 * * * * *", "* * * * *"]),
)
def test_step_by_step_every_occurrence_is_written_once_or_passed_over(
    behind_ms: int, missed: str, most: int, missed_max: int, cron: str
) -> None:
    """Against the plain list of all occurrences: what `owed` gives in pieces, each from where the last one ended."""
    limits = Limits(10_000, MINUTE_MS, max(missed_max, 1))
    one = schedule(cron=cron, missed=missed)
    since_ms = NOW_MS - behind_ms
    everything = list(takewhile(lambda at_ms: at_ms <= NOW_MS + 10_000, occurrences(cron, "UTC", since_ms)))
    written: list[int] = []
    through_ms, dropped = since_ms, False
    while (found := owed(one, Progress(through_ms), NOW_MS, limits, most)).through_ms > through_ms:
        written += found.due
        through_ms, dropped = found.through_ms, dropped or found.dropped
    late = [at_ms for at_ms in everything if at_ms <= NOW_MS - MINUTE_MS]
    keep = {"skip": 0, "once": 1, "all": limits.missed_max}[missed]
    kept = late[-keep:] if keep else []
    assert written == kept + everything[len(late) :]
    assert dropped == (len(kept) < len(late))
    assert through_ms == (everything[-1] if everything else since_ms)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cron": "0 0 31 2 *"}, "such a day never comes"),
        ({"time_zone": "Berlin"}, "did you mean Europe/Berlin?"),
        ({"time_zone": "Mars"}, "not an IANA time zone"),
        ({"time_zone": "../etc/passwd"}, "not an IANA time zone"),
        ({"missed": "some"}, "'skip', 'once' or 'all'"),
        ({"target": "a b"}, "not a topic name"),
        ({"headers": {"tickover-id": "1"}}, "must not begin with tickover-"),
        ({"value": {"base64": "?"}}, "not base64"),
        ({"name": "No"}, "match pattern"),
        ({"paused": 1}, "boolean"),
        ({"crn": ""}, "Extra inputs"),
    ],
)
def test_bad_input_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        schedule(**changes)
    assert says.replace("\\", "") in str(caught.value)


@given(
    st.none() | st.text(st.characters(exclude_categories=["Cs"])) | st.just({"base64": "AP8="}),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.none() | st.just("x"))) | st.just({"a": None, "b": "y"}),
)
def test_its_document_reads_back_equal(value: Any, headers: Any) -> None:
    one = schedule(key=value, value=value, headers=headers, time_zone="Europe/Berlin", source="reminders")
    again = Schedule.model_validate(schedule_document(one))
    assert again == one
    assert headers_of(again) == headers_of(one)


SECOND_MS = 1_000


@pytest.mark.parametrize(
    ("since_s", "start_s", "end_s", "expected"),
    [
        (0, 5, None, [5, 10]),
        (0, 6, None, [10]),
        (-20, -5, None, [-5, 0, 5, 10]),
        (0, None, 10, [5]),
        (0, None, 11, [5, 10]),
        (-20, -10, 0, [-10, -5]),
        (0, 11, None, []),
        (0, None, 0, []),
    ],
)
def test_none_is_owed_before_its_start_or_from_its_end_on(
    since_s: int, start_s: int | None, end_s: int | None, expected: list[int]
) -> None:
    bounds = {"start": start_s, "end": end_s}
    given = {name: NOW_MS + at_s * SECOND_MS for name, at_s in bounds.items() if at_s is not None}
    assert owes(NOW_MS + since_s * SECOND_MS, **given)[0] == expected


@given(
    since_s=st.integers(-600, 0),
    start_s=st.integers(-600, 20),
    length_s=st.integers(1, 600),
    missed=MISSED,
)
def test_what_is_owed_lies_within_and_nothing_within_is_left_out(
    since_s: int, start_s: int, length_s: int, missed: str
) -> None:
    start_ms, end_ms = NOW_MS + start_s * SECOND_MS, NOW_MS + (start_s + length_s) * SECOND_MS
    limits = Limits(LIMITS.ahead_ms, LIMITS.grace_ms, 1_000)
    progress = Progress(NOW_MS + since_s * SECOND_MS)
    free = owed(schedule(missed=missed), progress, NOW_MS, limits, 1_000)
    bound = owed(schedule(missed=missed, start=start_ms, end=end_ms), progress, NOW_MS, limits, 1_000)
    assert all(start_ms <= at_ms < end_ms for at_ms in bound.due)
    if missed == "all":
        assert bound.due == tuple(at_ms for at_ms in free.due if start_ms <= at_ms < end_ms)
    again = owed(schedule(missed=missed, start=start_ms, end=end_ms), Progress(bound.through_ms), NOW_MS, limits, 1_000)
    assert again.due == ()


@pytest.mark.parametrize(
    "time", [NOW_MS, "2027-01-15T08:00:00Z", "2027-01-15T09:00:00+01:00", datetime.fromtimestamp(NOW_MS / 1_000, UTC)]
)
def test_a_bound_is_a_time_in_any_form(time: object) -> None:
    one = schedule(start=time)
    assert one.start == NOW_MS
    assert schedule(**schedule_document(one)) == one


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"start": 5 * 10**11, "end": 5 * 10**11}, "later than start"),
        ({"end": 1_800_000_000}, "seconds"),
        ({"end": datetime.fromtimestamp(NOW_MS / 1_000)}, "zone"),  # noqa: DTZ006 - without a zone
        ({"start": "soon"}, "not a time"),
        ({"start": True}, "int"),
        ({"start": 1.5}, "int"),
        ({"start": 10**14}, "less than"),
    ],
)
def test_what_is_no_bound(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        schedule(**changes)


def test_who_changes_a_bound_begins_anew() -> None:
    assert schedule(end=NOW_MS).times() != schedule().times()
