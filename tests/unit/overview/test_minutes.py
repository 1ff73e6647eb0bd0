"""The last hour of a process by minute: counted once, bounded, and right when topics, clocks and snapshots are not."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sidecar.lookup.report import MINUTE_MS, MINUTES, Flow
from sidecar.model.stats import Lateness, Stats, TopicCounts
from sidecar.overview.minutes import MARKS_MAX, LastHour
from tests.unit.report_world import NOW_MS, late

START_MS = NOW_MS // MINUTE_MS * MINUTE_MS


def stats(at_ms: int, turned_s: float, lateness: tuple[int, ...] = late(), **topics: TopicCounts) -> Stats:
    return Stats(at_ms=at_ms, turned_monotonic_s=turned_s, topics=topics, lateness=Lateness(lateness))


def new_hour() -> LastHour:
    return LastHour(lambda topic: topic.endswith("retry"))


def test_a_minute_has_what_came_in_it() -> None:
    hour = new_hour()
    hour.step(stats(START_MS, 1.0, a=TopicCounts(emitted=5, dead=1)))
    hour.step(stats(START_MS + 59_999, 2.0, late(3, 3), a=TopicCounts(emitted=7, dead=2, quarantined=1)))
    second = TopicCounts(emitted=7, dead=2, quarantined=1)
    hour.step(stats(START_MS + 60_000, 3.0, late(3, 3, 90), a=second, a_retry=TopicCounts(emitted=4)))
    first, last = hour.minutes()
    assert (first.at_ms, first.emitted, first.retried, first.dead, first.quarantined) == (START_MS, 7, 0, 2, 1)
    assert (last.at_ms, last.emitted, last.retried, last.dead) == (START_MS + MINUTE_MS, 4, 4, 0)
    assert (first.late, last.late) == (late(3, 3), late(90))


def test_a_snapshot_that_was_seen_already_adds_nothing() -> None:
    hour, now = new_hour(), stats(START_MS, 1.0, a=TopicCounts(emitted=5))
    hour.step(now)
    hour.step(now)
    hour.step(replace(now, at_ms=START_MS + 1_000))
    assert [minute.emitted for minute in hour.minutes()] == [5]


def test_a_topic_that_is_gone_and_one_that_is_back_take_nothing_away() -> None:
    hour = new_hour()
    for turn, topics in enumerate(({"a": 5, "b": 3}, {"b": 4}, {"a": 2, "b": 4}), 1):
        counts: dict[str, Any] = {name: TopicCounts(emitted=n) for name, n in topics.items()}
        hour.step(stats(START_MS, float(turn), **counts))
    assert [minute.emitted for minute in hour.minutes()] == [5 + 3 + 1 + 2]


def test_it_is_an_hour_and_no_more() -> None:
    hour = new_hour()
    for minute in range(200):
        hour.step(stats(START_MS + minute * MINUTE_MS, float(minute + 1), a=TopicCounts(emitted=minute)))
    told = hour.minutes()
    assert [one.at_ms for one in told] == [START_MS + minute * MINUTE_MS for minute in range(140, 200)]
    assert all(one.emitted == 1 for one in told)


def test_a_clock_that_is_set_back_leaves_no_minute_in_the_future() -> None:
    hour = new_hour()
    hour.step(stats(START_MS + 10 * MINUTE_MS, 1.0, a=TopicCounts(emitted=5)))
    hour.step(stats(START_MS, 2.0, a=TopicCounts(emitted=6)))
    assert [(one.at_ms, one.emitted) for one in hour.minutes()] == [(START_MS, 1)]


def test_the_last_minute_slides() -> None:
    hour = new_hour()
    assert hour.last_minute() == Flow()
    for second in range(300):
        hour.step(stats(START_MS + second * 1_000, second + 1.0, a=TopicCounts(emitted=10 * second)))
        assert hour.last_minute().emitted == 10 * min(second, 60)


def test_memory_is_bounded_however_often_it_steps() -> None:
    hour = new_hour()
    for turn in range(5_000):
        hour.step(stats(START_MS + turn, turn + 1.0, a=TopicCounts(emitted=turn)))
    assert len(hour._marks) <= MARKS_MAX
    assert len(hour.minutes()) <= MINUTES


@given(st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_the_minutes_together_are_all_that_was_emitted(steps: list[tuple[int, int, int]]) -> None:
    """A naive sum agrees, while less than an hour has passed."""
    hour, at_ms, counts = new_hour(), START_MS, {"a": 0, "b-retry": 0}
    for turn, (later_ms, first, second) in enumerate(steps, 1):
        at_ms += later_ms
        counts = {"a": counts["a"] + first, "b-retry": counts["b-retry"] + second}
        topics: dict[str, Any] = {name: TopicCounts(emitted=count) for name, count in counts.items()}
        hour.step(Stats(at_ms=at_ms, turned_monotonic_s=float(turn), topics=topics))
    assert sum(minute.emitted for minute in hour.minutes()) == sum(counts.values())
    assert sum(minute.retried for minute in hour.minutes()) == counts["b-retry"]
