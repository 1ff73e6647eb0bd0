"""Durations as people read them."""

import pytest

from sidecar.model.times import duration


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (61_000, "1 min 1 s"), (7_800_000, "2 h 10 min"),
     (86_400_000, "1 d"), (90_061_000, "1 d 1 h"), (86_460_000, "1 d"), (-5_000, "5 s"), (None, "–")],
)  # fmt: skip
def test_durations(ms: int | None, text: str) -> None:
    assert duration(ms) == text
