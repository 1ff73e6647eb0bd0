"""Each dead letter is sent or discarded once and marked then, whatever operators plan; none is passed over."""

from collections import Counter

import pytest

from sidecar.operations.dead_letters import redrive_run
from tests.operations.redrives import Operators
from tests.operations.seeds import SEEDS, check_met

seen: Counter[str] = Counter()
KINDS = 16  # of what `Operators.seen` counts


@pytest.mark.parametrize("seed", SEEDS)
def test_each_letter_is_sent_or_discarded_once_and_marked(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = Operators(seed)
    for name, stand_in in operators.patches.items():
        monkeypatch.setattr(redrive_run, name, stand_in)
    operators.run()
    seen.update(operators.seen)


def test_the_runs_met_everything_that_they_are_for() -> None:
    check_met(seen, KINDS)
