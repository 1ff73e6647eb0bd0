"""How many runs there are, from which seed on, and whether they met what they are for."""

import os
from collections import Counter
from typing import Final

import pytest

FIRST: Final = int(os.environ.get("TICKOVER_TEST_SIM_FIRST", "1"))
COUNT: Final = int(os.environ.get("TICKOVER_TEST_OPERATIONS_SEEDS", "100"))
SEEDS: Final = range(FIRST, FIRST + COUNT)
ENOUGH: Final = 100  # seeds, to meet all kinds of events


def check_met(seen: Counter[str], kinds: int) -> None:
    """Assert that events of so many kinds happened: what never happens proves nothing. Skips after too few runs."""
    if len(SEEDS) < ENOUGH:
        pytest.skip("too few runs to judge by")
    met = {what for what, count in seen.items() if count}
    assert len(met) == kinds, f"met only {sorted(met)}"
