"""Markdown that all generated pages share."""

from collections.abc import Iterable, Sequence


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
