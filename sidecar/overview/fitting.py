"""Whether what is due fits through a rate: how late the last of a peak will be, and the spread that would fit. Pure.

Records are counted by minute, and leave at the rate. What doesn't fit into its minute waits for the next ones.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
HOUR_MINUTES: Final = 60
SPREAD_MINUTES_MAX: Final = 24 * HOUR_MINUTES


class Fit(NamedTuple):
    """`late_ms`: how late the last record of the worst peak leaves, 0 where all fits; `since` and `until`: the first
    minute that doesn't fit, and the first one after which nothing waits, by their place (-1: none, or not in these);
    `spread_ms`: the least spread of full minutes with which all would fit, 0: none is needed, -1: none would do.
    """

    late_ms: int
    since: int
    until: int
    spread_ms: int


def fit(held: Sequence[int], overdue: int, per_hour: int) -> Fit:
    """How records that are due in each minute, and those that are overdue, go through a rate of so many an hour."""
    waiting = overdue * HOUR_MINUTES  # in sixtieths of a record: so a minute's share of the rate is whole
    worst, since, until = 0, -1, -1
    for place, count in enumerate(held):
        waiting += count * HOUR_MINUTES
        had = waiting > per_hour
        waiting = max(waiting - per_hour, 0)
        if had and since < 0:
            since = place
        if had:
            until = -1
        elif since >= 0 and until < 0:
            until = place
        worst = max(worst, waiting)
    late_ms = -(-worst * MINUTE_MS // per_hour)
    return Fit(late_ms, since, until, 0 if not worst else _spread_ms(held, per_hour))


def _spread_ms(held: Sequence[int], per_hour: int) -> int:
    """The least spread at which no minute has more than its share: a record is due at random within it."""
    for minutes in range(1, SPREAD_MINUTES_MAX):
        if _is_fitting(held, minutes, per_hour):
            return minutes * MINUTE_MS
    return -1


def _is_fitting(held: Sequence[int], minutes: int, per_hour: int) -> bool:
    """The mean of this minute and those before it within the spread is no more than a minute's share of the rate."""
    width = minutes + 1
    inside = 0
    for place, count in enumerate(held):
        inside += count
        if place >= width:
            inside -= held[place - width]
        if inside * HOUR_MINUTES > per_hour * width:
            return False
    return True
