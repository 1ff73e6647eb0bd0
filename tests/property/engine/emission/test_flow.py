"""The parts of flow control against what they must hold, for any input."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fields import HOUR_S, RATE_MAX, format_rate, parse_rate
from sidecar.engine.emission import due_queue
from sidecar.engine.emission.due_queue import DueQueue
from sidecar.engine.emission.rate_limit import TokenBucket
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import Held, Position, TopicPartition


@given(st.integers(1, RATE_MAX))
def test_a_rate_shown_reads_back_the_same(per_hour: int) -> None:
    assert parse_rate(format_rate(per_hour)) == per_hour


@pytest.mark.parametrize(
    ("given", "per_hour"), [("500/s", 500 * HOUR_S), ("30/m", 1_800), ("10/h", 10), (7, 7 * HOUR_S), ("1/h", 1)]
)
def test_rates_as_written(given: object, per_hour: int) -> None:
    assert parse_rate(given) == per_hour


@pytest.mark.parametrize(
    "given", ["", "5", "0/s", "-1/s", "1.5/s", "5/d", "5 /s", 0, -1, True, 2.5, None, "9999999999/s"]
)
def test_what_is_no_rate(given: object) -> None:
    with pytest.raises(ValueError, match="rate"):
        parse_rate(given)


# --- token bucket -----------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.integers(-50, 5_000), st.integers(0, 60), st.none() | st.sampled_from([0.5, 2.0])), max_size=60
)


@given(st.sampled_from([0.001, 0.5, 3.0, 20.0, 1_000.0]), st.sampled_from([0.2, 1.0, 7.0, 500.0]), steps)
def test_over_any_time_no_more_is_taken_than_rate_and_burst_allow(
    rate: float, burst: float, moves: list[tuple[int, int, float | None]]
) -> None:
    now_ms = 1_000_000
    bucket = TokenBucket(rate, burst, now_ms)
    taken: list[tuple[int, int]] = []
    passed_ms, rate_max = 0, rate
    for step_ms, wanted, factor in moves:
        now_ms += step_ms
        passed_ms += max(step_ms, 0)
        if factor is not None:
            bucket.resize(rate * factor, burst, now_ms)
            rate_max = max(rate_max, rate * factor)
        count = min(wanted, bucket.available(now_ms))
        bucket.take(count)
        taken.append((passed_ms, count))
    for first, (begin_ms, _) in enumerate(taken):
        for last in range(first, len(taken)):
            total = sum(count for _, count in taken[first : last + 1])
            assert total <= max(burst, 1) + rate_max * (taken[last][0] - begin_ms) / 1_000 + 1e-6


@given(st.sampled_from([0.001, 0.5, 3.0, 20.0]), st.floats(0.1, 5))
def test_a_share_below_one_token_still_lets_one_through_at_its_rate(rate: float, burst: float) -> None:
    bucket = TokenBucket(rate, burst, 0)
    bucket.take(bucket.available(0))
    assert bucket.available(0) == 0
    assert bucket.available(int(1_000 / rate) + 1) >= 1


def test_a_clock_that_goes_back_takes_no_tokens() -> None:
    bucket = TokenBucket(10, 5, 60_000)
    assert bucket.available(0) == 5
    bucket.take(5)
    assert bucket.available(100) == 1


# --- due queue --------------------------------------------------------------------------------------------------------


def lane(partition: int) -> SourcePartition:
    return SourcePartition(TopicPartition("t", partition), Wheel(0), PromotionWindows(Position(0, 0)))


def held(due_ms: int, offset: int, expires_ms: int) -> Held:
    return Held(due_ms, offset, "mail", -1, None, None, [], "p@1", None, 0, -1, [], expires_ms, "dlq", 1)


records = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([-1, -1, 3, 8])), min_size=1, max_size=12)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), records),
        st.tuples(st.just("take"), st.integers(0, 7), st.integers(0, 12)),
        st.tuples(st.just("remove"), st.integers(0, 99), st.none()),
        st.tuples(st.just("drop"), st.integers(0, 2), st.none()),
    ),
    max_size=40,
)


@given(acts, st.sampled_from([1, 3, 1_000]))
def test_a_queue_is_a_sorted_list(acts: list[tuple[str, int, Any]], run_max: int) -> None:
    """Taken in the order of due over all lanes; what has expired is taken with the rest and not counted."""
    whole, due_queue.RUN_MAX = due_queue.RUN_MAX, run_max  # type: ignore[misc]
    try:
        lanes = [lane(number) for number in range(3)]
        queue, model, offset = DueQueue(), dict[int, tuple[SourcePartition, Held]](), 0
        for act, number, what in acts:
            if act == "put":
                batch = [held(due_ms, offset + place, expires) for place, (due_ms, expires) in enumerate(what)]
                offset += len(batch)
                queue.put(lanes[number], batch)
                model |= {record.offset: (lanes[number], record) for record in batch}
            elif act == "take":
                taken, counted = queue.take(number, what)
                flat = [(place, record) for place, run in taken for record in run]
                _check_taken(flat, counted, number, what, model)
            elif act == "remove" and model:
                found_lane, found = model.pop(sorted(model)[number % len(model)])
                assert queue.remove(found_lane, found)
                assert not queue.remove(found_lane, found)
            elif act == "drop":
                gone = {record.offset for where, record in model.values() if where is lanes[number]}
                assert {record.offset for record in queue.drop({lanes[number]})} == gone
                model = {key: entry for key, entry in model.items() if key not in gone}
            _check_state(queue, lanes, model)
    finally:
        due_queue.RUN_MAX = whole  # type: ignore[misc]


def _check_taken(
    flat: list[tuple[SourcePartition, Held]],
    counted: int,
    wanted: int,
    now_ms: int,
    model: dict[int, tuple[SourcePartition, Held]],
) -> None:
    alive = [record for _, record in flat if not 0 <= record.expires_ms < now_ms]
    assert len(alive) == counted <= wanted
    for place, record in flat:
        assert model.pop(record.offset) == (place, record)
    dues = [record.due_ms for _, record in flat]
    assert dues == sorted(dues)
    assert all(due_ms <= now_ms for due_ms in dues), "the clock may have been set back since they fired"
    left = [record for _, record in model.values() if record.due_ms <= now_ms]
    assert not dues or not left or dues[-1] <= min(record.due_ms for record in left)
    assert counted == wanted or not left


def _check_state(queue: DueQueue, lanes: list[SourcePartition], model: dict[int, tuple[SourcePartition, Held]]) -> None:
    assert queue.count == len(model) == sum(queue.by_topic().values())
    assert queue.oldest_due_ms() == min((record.due_ms for _, record in model.values()), default=-1)
    for place in lanes:
        seen = [record for run, start in queue.runs(place) for record in run[start:]]
        assert sorted(seen) == sorted(record for where, record in model.values() if where is place)
