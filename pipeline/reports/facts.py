"""A record as decisions see it: headers sorted as the sidecar's engine sorts them.

The engine's own sorting is in the sidecar, which the pipeline doesn't import; a test holds the two equal.
"""

from collections.abc import Iterable
from typing import Final

from policies.decision import REPEATED, Control, Facts
from policies.headers import COUNTED, FAILURE, ID, INSTRUCTIONS, ORIGIN, POLICY, WRITTEN

_READ: Final = INSTRUCTIONS | COUNTED | {ID}


def facts_of(place: tuple[str, int, int], timestamp_ms: int, headers: Iterable[tuple[str, bytes | None]]) -> Facts:
    """Facts of a record that a decision depends on. `place`: topic, partition, offset; `timestamp_ms` -1: none."""
    own: list[tuple[str, bytes | None]] = []
    controls: dict[str, Control] = {}
    for name, value in headers:
        if name in FAILURE or name == POLICY:
            controls[name] = value  # the last one counts
        elif name == ORIGIN:
            controls[name] = value or controls.get(name)
        elif name in _READ:
            controls[name] = value if name not in controls else REPEATED
        elif name not in WRITTEN:
            own.append((name, value))
    return Facts(*place, timestamp_ms, own, controls)
