"""Conditions of a policy on a record's headers."""

from collections.abc import Sequence
from typing import Final

from policies.glob import Matcher, compile_globs
from policies.model import Match

HEADER_VALUE_BYTES_MAX: Final = 4_096  # of a header value, this much is compared with a condition's glob

Conditions = tuple[tuple[str, Matcher], ...]


def conditions_of(match: Match) -> Conditions:
    """Each header's name, and what one of its values must match."""
    return tuple((name, matcher) for name, glob in match.headers.items() if (matcher := compile_globs((glob,))))


def holds(conditions: Conditions, headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether for every condition some header of its name has a value that matches; null never does."""
    return all(
        any(name == wanted and value is not None and matcher.matches(_text(value)) for name, value in headers)
        for wanted, matcher in conditions
    )


def _text(value: bytes) -> str:
    return value[:HEADER_VALUE_BYTES_MAX].decode(errors="replace")
