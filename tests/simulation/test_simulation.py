"""Random runs against everything that must hold, TICKOVER_TEST_SIM_SEEDS of them from TICKOVER_TEST_SIM_FIRST on."""

import os
from collections import Counter

import pytest

from sidecar.model.record import Outcome
from tests.simulation.fake_overflow import FakeOverflow, NewOverflow
from tests.simulation.interventions import EVENTS
from tests.simulation.world import World

SEEDS = int(os.environ.get("TICKOVER_TEST_SIM_SEEDS", "24"))
FIRST = int(os.environ.get("TICKOVER_TEST_SIM_FIRST", "1"))
SEEDS_MIN = 20
STEPS = 400
TRANSACTION_KINDS = 7
KINDS = 42  # of things that `World.seen` counts, and repeats: what 24 seeds meet; more seeds meet the rare ones too


def run(seed: int, exactly_once: bool = False, overflow: NewOverflow = FakeOverflow) -> World:
    """One run: users send, faults come and go, in the end all is well."""
    world = World(seed, exactly_once, overflow)
    rng = world.rng
    for _ in range(rng.choice((1, 2, 3, 3))):
        world.start()
    faults = [world.kill, world.kill, world.stop, world.expire, world.group.rebalance, world.change_policies]
    faults += [world.lose, world.lose, world.lose, world.step_clock]
    faults += [world.tidy, world.change_weather, world.change_weather, world.calm]
    for _ in range(STEPS):
        if rng.random() < 0.3:
            world.send(rng.choice((1, 2, 5, 20)))
        if rng.random() < 0.05:
            rng.choice(faults)()
        if rng.random() < 0.008:
            rng.choice(EVENTS)(world)
        if world.rare_events and world.rare.random() < 0.01:
            world.rare.choice(world.rare_events)(world)
        world.meddle()
        world.pausing.step()
        if rng.random() < 0.05:
            world.spread_policies()
        world.step(rng.choice((1, 3, 10, 50, 50, 200, 700)))
        if rng.random() < 0.1:
            world.check_marks()
    world.settle_down()
    return world


OUTCOMES = set(Outcome)
seen: Counter[str] = Counter()
outcomes: set[Outcome] = set()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_whatever_happens_every_record_is_settled_once(seed: int) -> None:
    print(f"seed {seed}: TICKOVER_TEST_SIM_FIRST={seed} TICKOVER_TEST_SIM_SEEDS=1 pytest tests/simulation")
    world = run(seed)
    seen.update({what: 1 for what, count in world.seen.items() if count})
    seen["repeated after a crash"] += any(count > 1 for count in world.oracle.emitted.values())
    outcomes.update(world.oracle.settled.values())


transactions: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_with_transactions_nothing_is_repeated(seed: int) -> None:
    print(f"seed {seed}: TICKOVER_TEST_SIM_FIRST={seed} TICKOVER_TEST_SIM_SEEDS=1 pytest tests/simulation -k nothing")
    world = run(seed, exactly_once=True)
    assert world.coordinator is not None
    assert set(world.oracle.emitted.values()) <= {1}
    transactions["committed"] += world.coordinator.committed
    transactions["aborted"] += world.coordinator.aborted
    transactions["fenced"] += world.coordinator.fenced
    transactions["a producer's successor"] += world.coordinator.succeeded
    transactions["died in a commit"] += world.seen["died in a commit"]
    transactions["started over"] += world.seen["starting over"]
    transactions["one by one"] += sum(bool(replica.emitter.redelivery.one_by_one) for replica in world.replicas)


@pytest.mark.slow
def test_the_runs_met_everything_that_they_are_for() -> None:
    """A simulation in which nothing happens proves nothing."""
    if SEEDS < SEEDS_MIN:
        pytest.skip("too few runs to judge by")
    assert outcomes == OUTCOMES
    met = {what for what, runs in seen.items() if runs}
    assert len(met) >= KINDS, f"met only {sorted(met)}"
    assert len(+transactions) == TRANSACTION_KINDS, f"met only {transactions}"
