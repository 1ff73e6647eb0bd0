"""A record as decisions see it: headers sorted as the sidecar's engine sorts them.

The engine's own sorting is in the sidecar, which the pipeline doesn't import; a test holds the two equal.
"""

from collections.abc import Iterable
from typing import Final

from policies.decision import REPEATED, Control, Facts
from sidecar.record import (
    ACTION,
    ATTEMPT,
    DELAY,
    DELIVER_AT,
    DETAIL,
    DUE,
    ERROR_CLASS,
    ERROR_MESSAGE,
    EXPIRES_AT,
    FIRST_FAILURE,
    ID,
    IF_OFFSET,
    ORIGIN,
    POLICY,
    REASON,
    SOURCE,
    TARGET,
    TARGET_PARTITION,
)

READ: Final = frozenset(
    {DELIVER_AT, DELAY, TARGET, TARGET_PARTITION, ACTION, IF_OFFSET, EXPIRES_AT}
    | {ERROR_CLASS, ERROR_MESSAGE, ID, ATTEMPT, FIRST_FAILURE}
)
WRITTEN: Final = frozenset({ORIGIN, DUE, POLICY, REASON, SOURCE, DETAIL})


def facts_of(place: tuple[str, int, int], timestamp_ms: int, headers: Iterable[tuple[str, bytes | None]]) -> Facts:
    """What a decision about this record depends on. `place`: topic, partition, offset; timestamp -1: none."""
    own: list[tuple[str, bytes | None]] = []
    controls: dict[str, Control] = {}
    for name, value in headers:
        if name in READ:
            controls[name] = value if name not in controls else REPEATED
        elif name not in WRITTEN:
            own.append((name, value))
    return Facts(*place, timestamp_ms, own, controls)
