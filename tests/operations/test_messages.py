"""An accepted message is emitted once however often it is sent, or cancelled, and nobody is told that it is unknown."""

import asyncio
from collections import Counter

import pytest

from tests.operations.messages import new_operators
from tests.operations.seeds import SEEDS, check_met

pytestmark = pytest.mark.slow

seen: Counter[str] = Counter()
KINDS = 10  # of what `Operators.seen` counts


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits: what happens meanwhile is the simulation's."""
    monkeypatch.setattr("api.routes.actions.AGAIN_S", (0.0,))
    monkeypatch.setattr("api.routes.actions.RECEIPT_TIMEOUT_S", 0.0)
    monkeypatch.setattr("api.routes.held.AGAIN_S", (0.0,))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_accepted_is_emitted_once_or_cancelled(seed: int) -> None:
    with asyncio.Runner() as runner:
        operators = new_operators(seed, runner=runner)
        operators.run()
    seen.update(operators.seen)


def test_the_runs_met_everything_that_they_are_for() -> None:
    check_met(seen, KINDS)
