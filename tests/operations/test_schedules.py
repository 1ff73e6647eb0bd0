"""Each occurrence that is meant is written, once, and no other, whatever operators do to schedules."""

from collections import Counter

import pytest

from tests.operations.schedules import Operators
from tests.operations.seeds import SEEDS, check_met

pytestmark = pytest.mark.slow

FOUND = (623, 5_050)  # seeds that have found something
seen: Counter[str] = Counter()
KINDS = 11  # of what `Operators.seen` counts


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for another writer: it has written."""
    monkeypatch.setattr("sidecar.operations.schedules.store.PAUSE_S", 0.0)


@pytest.mark.parametrize("seed", [*FOUND, *SEEDS])
def test_each_occurrence_that_is_meant_is_written_once(seed: int) -> None:
    operators = Operators(seed)
    operators.run()
    seen.update(operators.seen)


def test_the_runs_met_everything_that_they_are_for() -> None:
    check_met(seen, KINDS)
