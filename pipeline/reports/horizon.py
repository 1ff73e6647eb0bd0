"""The times that reports are about: an argument, so that a report of any moment can be made again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Horizon:
    """Now, and how far a report looks back and ahead."""

    now_ms: int
    since_ms: int  # failures first seen since then are new
    hours: int  # so far a forecast looks
    capacity: int  # records a minute that a target can take
