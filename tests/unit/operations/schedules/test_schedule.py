"""A schedule as users write it; which of its occurrences are owed."""

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
