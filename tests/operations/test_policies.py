"""Each topic of which the group has something is consumed until it is empty, whatever operators do to policies."""

from collections import Counter

import pytest

from tests.operations.policies import Operators
from tests.operations.seeds import SEEDS, check_met

seen: Counter[str] = Counter()
KINDS = 6  # of what `Operators.seen` counts


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_left_behind(seed: int) -> None:
    operators = Operators(seed)
    operators.run()
    seen.update(operators.seen)


def test_the_runs_met_everything_that_they_are_for() -> None:
    check_met(seen, KINDS)
