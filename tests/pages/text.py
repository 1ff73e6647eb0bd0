"""Markdown that all generated pages share."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path


def head(title: str, source: str, words: str = "") -> str:
    """The begin of a page. `source` says what it is made from; `words` stand below its title."""
    return f"<!-- Made from {source} by `make pages`. -->\n# {title}\n\n{words}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold code."""
    lines = [heads, ["---"] * len(heads), *(list(map(cell, row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(text: str) -> str:
    """One line that ends no column and begins no tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def code(text: object) -> str:
    """As code; nothing for nothing."""
    return f"`{text}`" if text not in ("", None) else ""


def with_parts(place: Path, parts: Mapping[str, str]) -> str:
    """A page that people write, with its parts made anew. A part stands between two lines of its own,
    `<!-- NAME: made ... -->` and `<!-- end of NAME -->`. Raises ValueError where one isn't there once.
    """
    text = place.read_text(encoding="utf-8")
    for name, made in parts.items():
        part = re.compile(rf"(^<!-- {name}: made [^\n]* -->\n).*?(^<!-- end of {name} -->$)", re.MULTILINE | re.DOTALL)
        text, found = part.subn(partial(_between, made), text)
        if found != 1:
            raise ValueError(f"{place.name} has {found} parts {name}, expected one")
    return text


def _between(made: str, lines: re.Match[str]) -> str:
    return f"{lines[1]}\n{made}\n{lines[2]}"
