"""Spreading herds: records that would fall due at one instant move apart, each later by a part of its tolerance.

    due asked for   |<---------- tolerance ---------->|
    due decided           ^ by a hash of the record's identity: never earlier, the same whenever it is decided again

The tolerance ends where a record would be too far, time out or expire: spreading costs no record its delivery.
"""

from typing import Final, NamedTuple

from policies.backoff import hash_of
from policies.model import Delay, Retry

_PURPOSE: Final = b"spread"  # another number than jitter's, else both would move a record the same way


class Spread(NamedTuple):
    """How far a policy lets records be moved, in milliseconds."""

    usual_ms: int  # of a record that says nothing
    max_ms: int  # of one that says how far it may be moved


def spread_of(part: Retry | Delay) -> Spread:
    """Spread that this part of a policy allows."""
    usual_ms = part.spread or 0
    return Spread(usual_ms, usual_ms if part.spread_max is None else part.spread_max)


def spread_due_ms(due_ms: int, spread: Spread, asked_ms: int, latest_ms: int, identity: tuple[str, int, int]) -> int:
    """When the record (topic, partition, offset) is due, spread; `asked_ms` is its own tolerance, -1: none given."""
    tolerance_ms = min(spread.usual_ms if asked_ms < 0 else asked_ms, spread.max_ms, latest_ms - due_ms)
    if tolerance_ms <= 0:
        return due_ms
    return due_ms + ((hash_of(identity, _PURPOSE) * (tolerance_ms + 1)) >> 64)
