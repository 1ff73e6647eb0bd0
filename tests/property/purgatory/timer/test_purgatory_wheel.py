"""Laws of the timer for any delays, ticks and levels: everything runs once, by Kafka's rounding or never early."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.timer.system_timer import SystemTimer
from purgatory.timer.timing_wheel import TimingWheel
from tests.examples import examples
from tests.unit.purgatory_tasks import Clock, Hook, Recorded, tasks_of

delays = st.integers(-5, 30_000)


def levels(timer: SystemTimer) -> list[TimingWheel]:
    found: list[TimingWheel] = []
    wheel: TimingWheel | None = timer._wheel
    while wheel is not None:
        found.append(wheel)
        wheel = wheel.overflow_wheel
    return found


def check_structure(timer: SystemTimer) -> None:
    """The counter is the sum of the buckets. Each bucket with tasks is queued, once, for a tick that is its own among
    those of its level, ahead of the clock and less than one turn of the ring."""
    queued = {id(bucket) for _, _, bucket in timer._queue._heap}
    assert len(queued) == len(timer._queue)
    total = 0
    for wheel in levels(timer):
        ticks = []
        for bucket in wheel._buckets:
            seen = tasks_of(bucket)
            total += len(seen)
            assert not seen or id(bucket) in queued
            if id(bucket) in queued:
                assert bucket.expiration_ms % wheel.tick_ms == 0
                ticks.append((bucket.expiration_ms - wheel.current_time_ms) // wheel.tick_ms)
        assert len(set(ticks)) == len(ticks)
        assert all(0 < tick < wheel.wheel_size for tick in ticks)
    assert total == timer.size()


@settings(deadline=None, max_examples=examples(30))
@given(
    tick_ms=st.sampled_from([1, 2, 10, 100]),
    wheel_size=st.sampled_from([2, 3, 20]),
    start_ms=st.floats(0, 1e6),
    steps=st.lists(st.tuples(st.lists(delays, max_size=6), st.floats(0, 5000)), max_size=20),
    round_up=st.booleans(),
)
def test_everything_runs_once_and_as_early_as_its_rounding_allows(tick_ms, wheel_size, start_ms, steps, round_up):
    clock = Clock(start_ms)
    timer = SystemTimer(clock, tick_ms, wheel_size, round_up=round_up)
    error_ms: list[float] = []
    added = 0

    def add(delay_ms: int) -> None:
        due_ms = clock.now_ms + delay_ms
        timer.add(Hook(delay_ms, lambda: error_ms.append(clock.now_ms - due_ms)))

    def advance_to(now_ms: float) -> None:
        """Turn the timer at each of its own times up to now, as a driver does."""
        while (next_ms := timer.next_expiration_ms()) is not None and next_ms <= now_ms:
            clock.now_ms = max(clock.now_ms, next_ms)
            timer.advance_clock(clock.now_ms)
            check_structure(timer)
        clock.now_ms = now_ms

    for new, pause_ms in steps:
        for delay_ms in new:
            add(delay_ms)
            added += 1
        advance_to(clock.now_ms + pause_ms)
    advance_to(clock.now_ms + 40_000)
    assert len(error_ms) == added
    assert timer.size() == 0
    late_ms = [error for error in error_ms if error > 5]  # added overdue by up to 5 ms
    if round_up:
        assert all(error >= 0 for error in error_ms)
        assert all(error < tick_ms + 1 + 5 for error in late_ms)
    else:
        assert all(error > -tick_ms - 1 for error in error_ms)
        assert late_ms == []


@settings(deadline=None, max_examples=examples(25))
@given(
    tasks=st.lists(st.tuples(delays, st.none() | st.integers(0, 30_000)), max_size=20),
    step_ms=st.integers(200, 3000),
)
def test_a_cancelled_task_never_runs_and_every_other_does(tasks, step_ms):
    clock = Clock()
    timer = SystemTimer(clock, wheel_size=3)
    ran: list[int] = []
    made = [Recorded(delay_ms, ran, number) for number, (delay_ms, _) in enumerate(tasks)]
    for task in made:
        timer.add(task)
    expected = []
    for now_ms in range(0, 36_000, step_ms):
        for number, (_, cancel_ms) in enumerate(tasks):
            if cancel_ms is not None and now_ms - step_ms < cancel_ms <= now_ms and number not in ran:
                made[number].cancel()
                expected.append(number)
        clock.now_ms = now_ms
        timer.advance_clock(now_ms)
        check_structure(timer)
    assert sorted(ran + expected) == list(range(len(tasks)))


def errors_of_3000_tasks(tick_ms: int, round_up: bool) -> list[float]:
    """When tasks with delays up to 1,500 ms ran, relative to their true deadlines, by a driver that is never late."""
    clock = Clock(0.93)
    timer = SystemTimer(clock, tick_ms, round_up=round_up)
    errors_ms: list[float] = []

    def record(due_ms: float) -> None:
        errors_ms.append(clock.now_ms - due_ms)

    for step in range(3000):
        clock.now_ms = 0.93 + step * 0.5
        delay_ms = step * 7 % 1500
        due_ms = clock.now_ms + delay_ms
        timer.add(Hook(delay_ms, partial(record, due_ms)))
        timer.advance_clock(clock.now_ms)
    while (next_ms := timer.next_expiration_ms()) is not None:
        clock.now_ms = max(clock.now_ms, next_ms)
        timer.advance_clock(clock.now_ms)
    return errors_ms


@pytest.mark.parametrize(("tick_ms", "measured_ms"), [(1, 0.97), (10, 9.7), (100, 99.5)])
def test_rounding_down_is_early_as_measured_on_kafka_and_rounding_up_never(tick_ms, measured_ms):
    """Measured: the earliest of 3,000 tasks on Kafka's SystemTimer, by tick."""
    down_ms, up_ms = errors_of_3000_tasks(tick_ms, False), errors_of_3000_tasks(tick_ms, True)
    assert len(down_ms) == len(up_ms) == 3000
    assert -tick_ms - 1 < min(down_ms) < -0.85 * measured_ms
    assert 0 <= min(up_ms) < max(up_ms) <= tick_ms + 1.5
