"""The clock is never ahead of the broker as last seen and never stands still, whatever wall, broker and network do."""

from math import floor

from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.clock import RECOVERY_MS, SLEW, STEP_MS, Clock

EPOCH_MS = 1_763_720_000_000.0
ROUNDING_MS = 0.01  # floats of this size are exact to a quarter of a microsecond; a sum of hundreds is not

STEPS = st.floats(-50, 50) | st.floats(-3_600_000, 3_600_000)
LATENCIES = st.floats(0, 20) | st.floats(0, 10_000)
PASS = st.tuples(st.just("pass"), st.floats(0, 100) | st.floats(0, 60_000), st.just(0.0))
WALL = st.tuples(st.just("wall"), STEPS, st.just(0.0))
BROKER = st.tuples(st.just("broker"), STEPS, st.just(0.0))
BOTH = st.tuples(st.just("both"), STEPS, st.just(0.0))
OBSERVE = st.tuples(st.just("observe"), LATENCIES, LATENCIES)
OBSERVED_STEP = st.tuples(
    st.floats(STEP_MS + 20, 1_000) | st.floats(STEP_MS + 20, 3_600_000),
    st.sampled_from([-1, 0, 1]),
    st.floats(0, 5_000),
    LATENCIES,
    LATENCIES,
)
EVENTS = st.lists(PASS | WALL | BROKER | BOTH | OBSERVE, max_size=40)


class World:
    """A machine, a broker and the network between them, with the clock under test reading all the while."""

    def __init__(self, wall_off_ms: float = 0.0) -> None:
        self.boot_ms = 50_000.0
        self.wall_shift_ms = self.broker_shift_ms = EPOCH_MS - self.boot_ms
        self.wall_shift_ms += wall_off_ms
        self.clock = Clock(self.boot_ms + self.wall_shift_ms, self.boot_ms)
        self.uncertainty_ms: float | None = None  # of the last observation; None while it says nothing

    def read(self) -> float:
        return self.clock.read(self.boot_ms + self.wall_shift_ms, self.boot_ms)

    def ahead_ms(self) -> float:
        return self.read() - (self.boot_ms + self.broker_shift_ms)

    def happen(self, event: str, first: float, second: float) -> None:
        match event:
            case "pass":
                self.boot_ms += first
            case "wall":
                self.wall_shift_ms += first
            case "broker":
                self.broker_shift_ms += first
                self.uncertainty_ms = None
            case "both":
                self.wall_shift_ms += first
                self.broker_shift_ms += first
                self.uncertainty_ms = None
            case "observe":
                self.observe(first, second)

    def observe(self, there_ms: float, back_ms: float) -> None:
        sent_ms = self.boot_ms
        self.boot_ms += there_ms
        self.read()
        appended_ms = floor(self.boot_ms + self.broker_shift_ms)
        self.boot_ms += back_ms
        self.read()
        self.clock.observe(sent_ms, appended_ms, self.boot_ms)
        self.uncertainty_ms = there_ms

    def quiet(self, duration_ms: float) -> None:
        """Nothing but traffic: an observation of a few milliseconds five times a second."""
        end_ms = self.boot_ms + duration_ms
        while self.boot_ms < end_ms:
            self.observe(2.0, 3.0)
            self.boot_ms += 195.0


@given(STEPS, EVENTS)
def test_never_ahead_of_the_broker_by_more_than_the_last_observation_left_open(wall_off_ms, events):
    world = World(wall_off_ms)
    for event in events:
        world.happen(*event)
        ahead_ms = world.ahead_ms()
        if world.uncertainty_ms is not None:
            assert ahead_ms <= world.uncertainty_ms + ROUNDING_MS


@given(STEPS, EVENTS, st.floats(0, 10_000))
def test_time_goes_on_evenly_through_any_step(wall_off_ms, events, passed_ms):
    world = World(wall_off_ms)
    for event in events:
        world.happen(*event)
        world.read()
    before_ms = world.read()

    world.boot_ms += passed_ms

    assert abs(world.read() - before_ms - passed_ms) <= passed_ms * SLEW + ROUNDING_MS


@given(EVENTS)
def test_only_the_broker_makes_time_jump(events):
    world = World()
    for event, first, second in events:
        if event == "observe":
            continue
        before_ms, boot_ms = world.read(), world.boot_ms
        world.happen(event, first, second)
        passed_ms = world.boot_ms - boot_ms
        assert abs(world.read() - before_ms - passed_ms) <= passed_ms * SLEW + ROUNDING_MS


@given(st.lists(WALL | PASS, max_size=20))
def test_a_wall_clock_that_the_broker_contradicts_is_not_followed(events):
    world = World()
    world.quiet(1_000.0)
    for event, first, second in events:
        # A step is one that slewing would not follow.
        first = first + STEP_MS + 20.0 if event == "wall" and first >= 0 else first  # noqa: PLW2901
        first = first - STEP_MS - 20.0 if event == "wall" and first < 0 else first  # noqa: PLW2901
        world.wall_shift_ms = world.broker_shift_ms
        world.happen(event, first, second)
        world.observe(2.0, 3.0)
        assert -1.0 - ROUNDING_MS <= world.ahead_ms() <= 2.0 + ROUNDING_MS


@given(st.floats(0, 0.5), st.lists(OBSERVED_STEP, max_size=20))
def test_a_step_that_the_broker_does_not_make_fires_nothing_early(lag_ms, events):
    """Not by a millisecond, though our time may lag by what two readings differ, and append times are rounded down."""
    world = World(-lag_ms)
    for step_ms, sign, passed_ms, there_ms, back_ms in events:
        world.observe(there_ms, back_ms)
        world.wall_shift_ms = world.broker_shift_ms + sign * step_ms
        world.read()
        world.boot_ms += passed_ms
        world.observe(there_ms, back_ms)
        assert world.ahead_ms() <= ROUNDING_MS


@given(st.floats(STEP_MS + 20, 3_600_000), st.sampled_from([-1, 1]))
def test_a_step_is_followed_at_the_first_observation_that_confirms_it(step_ms, sign):
    world = World()
    world.quiet(1_000.0)

    world.happen("both", sign * step_ms, 0.0)
    world.observe(2.0, 3.0)

    assert abs(world.ahead_ms()) <= 5.0


@given(STEPS, EVENTS)
def test_when_all_is_well_again_time_is_right_again(wall_off_ms, events):
    world = World(wall_off_ms)
    for event in events:
        world.happen(*event)
        world.read()

    world.wall_shift_ms = world.broker_shift_ms
    world.quiet(2 * RECOVERY_MS + STEP_MS / SLEW)

    assert abs(world.ahead_ms()) <= 5.0


@given(st.floats(200, 3_600_000), EVENTS)
def test_a_machine_that_is_ahead_for_good_keeps_the_brokers_time(ahead_ms, events):
    world = World()
    for event in events:
        world.happen(*event)
        world.read()

    world.wall_shift_ms = world.broker_shift_ms + ahead_ms
    world.quiet(2 * RECOVERY_MS + STEP_MS / SLEW)

    assert -6.0 <= world.ahead_ms() <= 2.0 + ROUNDING_MS


@given(st.floats(100, 60_000))
def test_the_slowest_of_several_brokers_rules(behind_ms):
    world = World()
    for _ in range(100):
        world.observe(2.0, 3.0)
        world.broker_shift_ms -= behind_ms
        world.observe(2.0, 3.0)
        assert world.ahead_ms() <= 2.0 + ROUNDING_MS
        world.broker_shift_ms += behind_ms
        world.boot_ms += 190.0
        assert world.ahead_ms() <= 2.0 - behind_ms + ROUNDING_MS
