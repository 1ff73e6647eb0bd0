"""Any order of registration, events, expiry, cancels and purges, also in the middle of an operation's own check: each
operation completes exactly once, and none that could complete stays parked. The seed names the run."""

import random

import pytest

from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.operation.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.timer.system_timer import SystemTimer
from tests.unit.purgatory_tasks import VERSIONS, Clock

pytestmark = pytest.mark.slow

KEYS = 4
STEPS = 120
SEEDS = 60


class Counting(DelayedOperation):
    """Waits until its keys have counted up to their goals. Things may happen right after it has looked."""

    def __init__(self, world, delay_ms, goals, between):
        super().__init__(delay_ms, version=world.version)
        self.world, self.goals, self.between = world, goals, between
        self.latest_ms = None  # set once it is on the timer
        self.completions = self.expirations = 0

    def is_satisfied(self):
        return all(self.world.counts[key] >= goal for key, goal in self.goals.items())

    def try_complete(self):
        satisfied = self.is_satisfied()
        if self.between:
            self.between.pop()()
        return satisfied and self.force_complete()

    def on_complete(self):
        self.completions += 1

    def on_expiration(self):
        self.expirations += 1


class World:
    def __init__(self, seed, version):
        self.chance = random.Random(seed)
        self.version = version
        self.clock = Clock()
        self.purgatory: DelayedOperationPurgatory[Counting] = DelayedOperationPurgatory(
            "test", SystemTimer(self.clock), 5, version=version
        )
        self.counts = [0] * KEYS
        self.operations = []
        self.cancelled = set()

    def register(self):
        keys = self.chance.sample(range(KEYS), self.chance.randint(1, 3))
        goals = {key: self.counts[key] + self.chance.randint(0, 3) for key in keys}
        between = self.chance.choices((self.event, self.time, self.force, self.register_no_more), k=2)
        operation = Counting(self, self.chance.choice((0, 1, 5, 40, 500)), goals, between)
        self.operations.append(operation)
        self.purgatory.try_complete_else_watch(operation, keys)
        operation.latest_ms = self.clock.now_ms + operation.delay_ms

    def register_no_more(self):
        """Nothing happens in the middle."""

    def event(self):
        key = self.chance.randrange(KEYS)
        self.counts[key] += 1
        self.purgatory.check_and_complete(key)

    def time(self):
        self.clock.now_ms += self.chance.choice((0, 1, 3, 25))
        self.purgatory.advance_clock(self.clock.now_ms)
        for operation in self.waiting():
            assert operation.latest_ms is None or operation.latest_ms > self.clock.now_ms

    def force(self):
        if self.operations:
            self.chance.choice(self.operations).force_complete()

    def cancel(self):
        cancelled = self.purgatory.cancel_for_key(self.chance.randrange(KEYS))
        self.cancelled.update(operation for operation in cancelled if not operation.is_completed())

    def waiting(self):
        return [one for one in self.operations if not one.is_completed() and one not in self.cancelled]

    def check(self):
        for operation in self.operations:
            assert operation.completions == operation.is_completed() <= 1
            assert operation.expirations <= operation.completions
        for operation in self.waiting():
            assert not operation.is_satisfied()


@VERSIONS
def test_whatever_comes_first_each_operation_completes_once_and_none_waits_in_vain(version):
    ends = {"event": 0, "expiry": 0, "cancel": 0}
    for seed in range(SEEDS):
        world = World(seed, version)
        try:
            for _ in range(STEPS):
                step = world.chance.choices(
                    (world.register, world.event, world.time, world.force, world.cancel), (8, 8, 4, 2, 1)
                )[0]
                step()
                world.check()
            world.clock.now_ms += 1000
            world.purgatory.advance_clock(world.clock.now_ms)
            world.check()
            assert world.waiting() == []
            assert world.purgatory.num_delayed == 0
            for key in range(KEYS):
                world.purgatory.check_and_complete(key)
            assert world.purgatory.watched <= 3 * len(world.cancelled)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for operation in world.operations:
            ends["cancel"] += not operation.completions
            ends["expiry"] += operation.expirations
            ends["event"] += operation.completions - operation.expirations
    assert all(count > 30 for count in ends.values()), ends  # the runs do meet every end
