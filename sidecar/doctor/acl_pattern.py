"""Names as Kafka's access control knows them: one name, or all that begin alike."""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from policies.glob import is_exact

EVERY: Final = "*"  # a literal of this name stands for all
_WILD: Final = re.compile(r"[*?\[]")


class Pattern(NamedTuple):
    """A literal name (`*`: every name), or with `prefixed` the beginning of names."""

    kind: Literal["literal", "prefixed"]
    name: str

    @property
    def is_one(self) -> bool:
        """Whether it stands for one name only."""
        return self.kind == "literal" and self.name != EVERY

    @property
    def stem(self) -> str:
        """Beginning that all its names share; empty where every name is meant."""
        return "" if self.name == EVERY else self.name

    def covers(self, other: "Pattern") -> bool:
        """Whether whatever `other` means is meant by this one too."""
        if self.kind == "prefixed":
            return other.name.startswith(self.name)
        return self.name == EVERY or self == other

    def narrowed(self, glob: str) -> "Pattern | None":
        """Pattern of those names that the glob may match; None: no name. Wider where Kafka has no such pattern."""
        if self.is_one:
            return self if fnmatchcase(self.name, glob) else None
        stem = beginning(glob)
        if is_exact(glob):
            return literal(glob) if glob.startswith(self.stem) else None
        if self.stem.startswith(stem) or stem.startswith(self.stem):
            return beginning_with(max(self.stem, stem, key=len))
        return None


def literal(name: str) -> Pattern:
    """One name."""
    return Pattern("literal", name)


def beginning_with(stem: str) -> Pattern:
    """All names that begin so; every name for an empty one."""
    return Pattern("prefixed", stem) if stem else literal(EVERY)


def beginning(glob: str) -> str:
    """Beginning of a glob, up to its first wildcard."""
    found = _WILD.search(glob)
    return glob if found is None or is_exact(glob) else glob[: found.start()]


def of_glob(glob: str, topics: Iterable[str]) -> list[Pattern] | None:
    """The patterns for a glob; where Kafka has none for it, the names of `topics` that match, None without any."""
    if is_exact(glob):
        return [literal(glob)]
    stem = beginning(glob)
    if glob == stem + "*":
        return [beginning_with(stem)]
    return [literal(topic) for topic in topics if fnmatchcase(topic, glob)] or None


def without_covered(patterns: Iterable[Pattern]) -> Iterator[Pattern]:
    """Each pattern that no other one covers, once."""
    distinct = list(dict.fromkeys(patterns))
    for pattern in distinct:
        if not any(other != pattern and other.covers(pattern) for other in distinct):
            yield pattern
