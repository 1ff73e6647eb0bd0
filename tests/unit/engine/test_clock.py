"""The clock at its edges, and the one place that reads the machine's clocks."""

import time

import pytest

from sidecar.engine.clock import PROBE_MS, RECOVERY_MS, SLEW, STEP_MS, Clock, SystemTime, Timekeeper

WALL_MS = 1_763_720_000_000.0
BOOT_MS = 50_000.0
SHIFT_MS = WALL_MS - BOOT_MS


def read(clock: Clock, boot_ms: float, wall_off_ms: float = 0.0) -> float:
    """Reading minus true time."""
    return clock.read(boot_ms + SHIFT_MS + wall_off_ms, boot_ms) - boot_ms - SHIFT_MS


def observe(clock: Clock, boot_ms: float, broker_off_ms: float = 0.0) -> None:
    """A block appended at `boot_ms`, two milliseconds after it was sent, acknowledged three later."""
    clock.observe(boot_ms - 2, boot_ms + SHIFT_MS + broker_off_ms, boot_ms + 3)


@pytest.fixture
def clock() -> Clock:
    return Clock(WALL_MS, BOOT_MS)


def test_the_example_of_the_module():
    clock = Clock(1_050.0, 50.0)

    clock.observe(50.0, 1_030.0, 54.0)

    assert clock.read(1_060.0, 60.0) == 1_040.0
    assert clock.skew_ahead_ms == 20.0


def test_before_any_observation_it_is_wall_time(clock):
    assert read(clock, BOOT_MS + 10_000) == 0.0
    assert clock.skew_ahead_ms == 0.0


def test_jitter_between_two_readings_moves_nothing(clock):
    assert read(clock, BOOT_MS + 1_000, 0.4) == 0.0
    assert read(clock, BOOT_MS + 2_000, -0.4) == 0.0


def test_a_small_difference_is_slewed_away(clock):
    assert read(clock, BOOT_MS + 1_000, 50.0) == 1_000 * SLEW
    for turn in range(2, 12):
        last = read(clock, BOOT_MS + turn * 1_000, 50.0)
    assert 49.5 <= last <= 50.0


def test_a_small_difference_after_a_pause_is_no_jump(clock):
    assert read(clock, BOOT_MS + 3_600_000, STEP_MS - 1) == 1_000 * SLEW


def test_a_step_that_nothing_confirms_is_shown_and_not_followed(clock):
    assert read(clock, BOOT_MS + 1_000, 3_600_000) == 0.0
    assert clock.unconfirmed_step_ms == 3_600_000

    assert read(clock, BOOT_MS + 2_000, 0.0) == 0.0
    assert clock.unconfirmed_step_ms == 0.0


def test_a_confirmed_step_is_shown_no_more(clock):
    observe(clock, BOOT_MS, 3_600_000)

    assert read(clock, BOOT_MS + 10, 3_600_000) == 3_600_000 - 3
    assert clock.unconfirmed_step_ms == 0.0


def test_a_step_is_followed_as_far_as_the_broker_goes_along(clock):
    observe(clock, BOOT_MS, 1_000)

    assert read(clock, BOOT_MS + 10, 3_600_000) == 997.0
    assert clock.unconfirmed_step_ms == 3_600_000 - 997


def test_a_step_back_is_followed_as_far_as_the_broker_goes_along(clock):
    observe(clock, BOOT_MS, -1_000)

    read(clock, BOOT_MS + 10, -3_600_000)

    assert clock.skew_ahead_ms == 0.0
    assert read(clock, BOOT_MS + 20, -3_600_000) == -1_003.0


def test_what_is_left_of_a_step_does_not_pass_the_broker(clock):
    observe(clock, BOOT_MS, 1_000)
    assert read(clock, BOOT_MS + 1_000, 1_050) == 997.0
    for turn in range(2, 20):
        assert read(clock, BOOT_MS + turn * 1_000, 1_050) == 1_002.0


def test_a_step_back_does_not_raise_the_limit(clock):
    observe(clock, BOOT_MS, -1_000)
    observe(clock, BOOT_MS + 10, -300)

    read(clock, BOOT_MS + 20, -3_600_000)

    assert read(clock, BOOT_MS + 30, -3_600_000) == -998.0


def test_of_steps_that_the_broker_can_not_tell_only_those_back_are_slewed(clock):
    clock.observe(BOOT_MS - 500, WALL_MS, BOOT_MS + 500)

    assert read(clock, BOOT_MS + 1_000, 200.0) == 0.0
    assert read(clock, BOOT_MS + 2_000, -200.0) == -1_000 * SLEW


def test_a_broker_that_is_ahead_changes_nothing(clock):
    observe(clock, BOOT_MS, 5_000)

    assert read(clock, BOOT_MS + 10) == 0.0
    assert clock.skew_ahead_ms == 0.0


def test_the_limit_rises_only_when_nothing_speaks_for_it_any_more(clock):
    observe(clock, BOOT_MS, -1_000)
    assert read(clock, BOOT_MS) == -998.0

    start = BOOT_MS + 10
    observe(clock, start)
    observe(clock, start + RECOVERY_MS - 1)
    assert read(clock, start + RECOVERY_MS) == -998.0
    observe(clock, start + RECOVERY_MS)
    assert read(clock, start + RECOVERY_MS) == -3.0


def test_an_observation_that_agrees_starts_the_wait_anew(clock):
    observe(clock, BOOT_MS, -1_000)
    observe(clock, BOOT_MS + 10)
    observe(clock, BOOT_MS + RECOVERY_MS - 10, -1_000)
    observe(clock, BOOT_MS + RECOVERY_MS + 100)

    assert read(clock, BOOT_MS + RECOVERY_MS + 200) == -998.0


def test_a_lower_observation_starts_the_wait_anew(clock):
    observe(clock, BOOT_MS, -1_000)
    observe(clock, BOOT_MS + 10)
    observe(clock, BOOT_MS + RECOVERY_MS - 10, -2_000)
    observe(clock, BOOT_MS + RECOVERY_MS + 100)

    assert read(clock, BOOT_MS + RECOVERY_MS + 200) == -1_998.0


def test_the_limit_rises_to_the_slowest_broker_and_again_when_that_one_is_gone(clock):
    observe(clock, BOOT_MS, -1_000)
    start = BOOT_MS + 10
    observe(clock, start, -500)
    observe(clock, start + RECOVERY_MS)
    assert read(clock, start + RECOVERY_MS) == -503.0

    observe(clock, start + RECOVERY_MS + 1)
    observe(clock, start + 2 * RECOVERY_MS + 1)
    assert read(clock, start + 2 * RECOVERY_MS + 1) == -3.0


def test_an_observation_that_says_little_does_not_raise_the_limit(clock):
    observe(clock, BOOT_MS, -1_000)
    for turn in range(1, 20):
        late = BOOT_MS + turn * 1_000
        clock.observe(late - 900, late + SHIFT_MS - 1_000, late + 900)

    assert read(clock, BOOT_MS + 20_000) == -998.0


def test_an_unknown_append_time_is_no_observation(clock):
    clock.observe(BOOT_MS, -1, BOOT_MS + 1)

    assert read(clock, BOOT_MS + 10) == 0.0


def test_epoch_times_are_refused_where_boot_times_are_wanted(clock):
    with pytest.raises(ValueError, match="no boot time"):
        clock.observe(WALL_MS, WALL_MS + 2, WALL_MS + 5)


def test_a_probe_is_due_once_a_second_until_the_broker_was_seen(clock):
    assert clock.probe_due(BOOT_MS)
    assert not clock.probe_due(BOOT_MS + PROBE_MS - 1)
    assert clock.probe_due(BOOT_MS + PROBE_MS)

    observe(clock, BOOT_MS + PROBE_MS)
    assert not clock.probe_due(BOOT_MS + 100 * PROBE_MS)


def test_a_probe_is_due_while_a_step_is_unconfirmed(clock):
    observe(clock, BOOT_MS)
    read(clock, BOOT_MS + 10, 3_600_000)

    assert not clock.probe_due(BOOT_MS + 10)  # the observation is not a second old
    assert clock.probe_due(BOOT_MS + 10 + PROBE_MS)


def test_a_probe_is_due_while_the_broker_holds_us_back(clock):
    observe(clock, BOOT_MS, -1_000)

    assert clock.probe_due(BOOT_MS + 3 + PROBE_MS)


def test_system_time_is_the_machines():
    system = SystemTime()
    before, began_s = system.boot_ms(), time.time()
    wall_ms, boot_ms = system.read()

    assert before <= boot_ms <= system.boot_ms()
    assert began_s - 1 < wall_ms / 1_000 < time.time() + 1


def test_without_boot_time_the_monotonic_clock_does(monkeypatch):
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 9_999)

    began_s = time.monotonic()
    boot_ms = SystemTime().boot_ms()

    assert began_s - 1 < boot_ms / 1_000 < time.monotonic() + 1


def test_a_thread_switch_between_two_readings_is_not_taken_for_a_step(monkeypatch):
    readings = iter([0, 90_000_000, 90_010_000, 90_020_000, 95_000_000])
    system = SystemTime()
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: next(readings))

    _, boot_ms = system.read()

    assert boot_ms == 90.02


def test_the_time_is_known_from_the_first_observation_on():
    timekeeper = Timekeeper()
    assert not timekeeper.is_known
    timekeeper.observe(timekeeper.boot_ms(), WALL_MS, timekeeper.boot_ms())
    assert timekeeper.is_known
