"""Two versions of a policy beside each other: what was taken away and what was added, line by line, as YAML."""

from collections.abc import Mapping, Sequence
from difflib import unified_diff
from typing import Any, Final

import yaml

WHOLE: Final = 1 << 16  # lines of context: a policy is short, and is shown whole


def text_of(document: Mapping[str, Any] | None) -> str:
    """A policy as YAML, in the order of its fields; None, a deletion, is empty."""
    return "" if document is None else yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Sequence[str]:
    """All lines of both, each behind `-`, `+` or a space. Empty: the two are equal."""
    lines = list(unified_diff(text_of(before).splitlines(), text_of(after).splitlines(), n=WHOLE, lineterm=""))
    return lines[3:]  # behind names and place
