"""Findings of an inspection of the surroundings."""

from enum import Enum
from typing import NamedTuple


class Severity(Enum):
    """An error keeps tickover from working, a warning takes something from its promises."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """One thing looked at. `fix` is a line that mends it, a command where there is one; else empty."""

    severity: Severity
    part: str
    what: str
    fix: str = ""
