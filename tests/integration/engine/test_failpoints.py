"""Killed at every step of a record's journey: nothing is lost, early or changed, and in exactly_once not repeated."""

import random

import pytest

from tests.faults.dying import die_at, points
from tests.faults.failpoints import EXACTLY_ONCE, POINTS
from tests.integration.conftest import SOAK, NewSite
from tests.services.oracle import Traffic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

POINTS_MIN = 16
RATE = 500
SEEDS = (1, 2, 3) if SOAK else (1,)
# The soak takes every point; the fast run some.
STRIDE = 1 if SOAK else 5


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_every_point_nothing_is_lost(new_site: NewSite, each_guarantee: str, seed: int) -> None:
    site = new_site()
    Traffic.prepare(site, partitions=2)
    traffic = Traffic(site, partitions=2, rate=RATE, seed=seed)
    chance = random.Random(seed)
    sidecar = site.sidecar("only", GUARANTEE=each_guarantee)
    traffic.start()
    for name in points(each_guarantee, slow=SOAK)[::STRIDE]:
        repeated = traffic.repeated
        nth = die_at(name, site, sidecar, traffic, chance)
        print(f"killed {name}, call {nth}; repeated since the last: {traffic.repeated - repeated}")
    sidecar.start()
    traffic.quieten()
    imbalance = sidecar.stats()["ledger_imbalance"]
    assert sidecar.stop() == 0, sidecar.last_words()
    verdict = traffic.verdict()
    print(f"{each_guarantee}, seed {seed}: {verdict}")
    assert (verdict.lost, verdict.early, verdict.changed) == (0, 0, 0), "\n".join(verdict.faults)
    assert verdict.repeated == 0 or each_guarantee != EXACTLY_ONCE
    assert imbalance == 0
    assert sidecar.messages("critical") == []


def test_there_are_points_enough(each_guarantee: str) -> None:
    assert len(points(each_guarantee, slow=False)) >= POINTS_MIN
    assert set(points(each_guarantee, slow=True)) <= set(POINTS)
