"""The two tables of a ledger block: what was settled, and what is held from here on as it was decided."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

# Values of `Settled.in_overflow`.
PROMOTED: Final = 1  # taken from the overflow, or on its way there when it fell due
STRUCK: Final = 2  # ahead of the cursor: the overflow strikes its copy out, with this block's change

_NONE: Final[Mapping[int, int]] = {}


class Settled(NamedTuple):
    """Parallel columns: one place per record settled in this block, sorted by offset.

    `in_overflow` is PROMOTED or STRUCK where the overflow has an entry for the record. `ids`, `reasons` and `related`
    are by offset, and only for records that have one. The time of settling is the block's `written_ms`, one for all.

    `related`, by outcome: APPLIED: the record that the control record hit, none when it hit nothing; MOVED: the control
    record under whose offset the record goes on; CANCELLED and REPLACED: what did it; others: the offset under which
    the record came, when it was moved since.
    """

    offsets: Sequence[int]
    dues_ms: Sequence[int]
    outcomes: Sequence[int]
    in_overflow: Sequence[int]
    policies: Sequence[str]
    targets: Sequence[str]
    attempts: Sequence[int]
    ids: Mapping[int, str]
    reasons: Mapping[int, str]
    related: Mapping[int, int] = _NONE


class Entries(NamedTuple):
    """Parallel columns: one place per record that this block moves to the overflow, or holds anew, sorted by offset.

    Enough to redo the decision of a `Held` without deciding again; `ids` by offset, where there is one. `sources`:
    the offset where the record with the payload is, for one that was moved and goes by its control record's offset.
    """

    offsets: Sequence[int]
    dues_ms: Sequence[int]
    policies: Sequence[str]
    targets: Sequence[str]
    target_partitions: Sequence[int]
    attempts: Sequence[int]
    first_failures_ms: Sequence[int]
    expires_ms: Sequence[int]
    dead_letters: Sequence[str]
    ids: Mapping[int, str]
    sources: Mapping[int, int] = _NONE


NOTHING_SETTLED: Final = Settled((), (), (), (), (), (), (), {}, {})
NO_ENTRIES: Final = Entries((), (), (), (), (), (), (), (), (), {})
