"""Globs (`*`, `?`, `[a-z]`, `[!a-z]`; case matters) over topics, header values and error classes."""

import fnmatch
import re
from collections.abc import Iterable
from typing import Final

_WILD: Final = re.compile(r"\*|\?|\[!?\]?[^\]]*\]")


def is_exact(glob: str) -> bool:
    """Whether the glob has no wildcard and so matches only itself."""
    return _WILD.search(glob) is None


def literal_length(glob: str) -> int:
    """Characters outside wildcards: of two globs that match, the one with more of them knows better."""
    return len(_WILD.sub("", glob))


def compile_globs(globs: Iterable[str]) -> re.Pattern[str] | None:
    """One pattern that matches what any of the globs matches; None for no globs."""
    patterns = [fnmatch.translate(glob) for glob in globs]
    return re.compile("|".join(patterns)) if patterns else None
