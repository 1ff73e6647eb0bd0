"""Each job is done once or aborted, whatever happens to replicas and to the topic of jobs, and all know which."""

import importlib
from collections import Counter

import pytest

from tests.operations.jobs import Operators
from tests.operations.seeds import SEEDS, check_met

seen: Counter[str] = Counter()
KINDS = 28  # of what `Operators.seen` counts


@pytest.mark.parametrize("seed", SEEDS)
def test_each_job_is_done_once_or_aborted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = Operators(seed)
    for module, stand_ins in operators.patches.items():
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(importlib.import_module(f"sidecar.operations.jobs.{module}"), name, stand_in)
    operators.run()
    seen.update(operators.seen)


def test_the_runs_met_everything_that_they_are_for() -> None:
    check_met(seen, KINDS)
