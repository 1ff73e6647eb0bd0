"""Each message is changed by its plan or left alone, whatever operators plan and run, and the receipts say which."""

from collections import Counter

import pytest

from tests.operations.changes import Operators
from tests.operations.seeds import SEEDS, check_met

seen: Counter[str] = Counter()
KINDS = 20  # of what `Operators.seen` counts


@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_is_changed_as_planned_or_left_alone(seed: int) -> None:
    operators = Operators(seed)
    operators.run()
    seen.update(operators.seen)


def test_the_runs_met_everything_that_they_are_for() -> None:
    check_met(seen, KINDS)
