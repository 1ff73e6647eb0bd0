"""Parts of a page of the site that its Markdown has not: heads of columns at the cells, whole names, words explained.

table cell         data-head, which the style sheet shows where a row is a card
name in a table    class `name`, which is not cut in two
word of glossary   a link, where it first stands on the page
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

GLOSSARY: Final = "glossary.md"
NAME_LENGTH_MAX: Final = 48  # as code in a table on a narrow screen; what is longer may be cut
# So common in English that a link would explain what nobody asked.
UNLINKED: Final = frozenset({"attempt", "due", "held", "source", "target"})
# How much more than others a page counts in the search, by the begin of its place.
BOOSTS: Final[Mapping[str, float]] = {
    "how-to/": 4.0,
    "tutorial": 4.0,
    "migrate/": 2.0,
    "explanation/": 2.0,
    "glossary": 2.0,
    "decisions/": 0.02,
    "project/CHANGELOG": 0.02,
    "ARCHITECTURE": 0.2,
    "RELIABILITY": 0.2,
}
TEXT: Final = frozenset({"p", "li", "td", "em", "strong"})
LEFT_ALONE: Final = frozenset({"a", "code", "pre", "h1", "h2", "h3", "h4", "h5", "h6"})
# After inline marks have become elements, before mkdocs looks where links lead.
PRIORITY: Final = 5


class Words(Extension):  # type: ignore[misc]  # Markdown has no types
    """Extension of Markdown. `page` is the page that is converted next, below docs/; empty: link no words on it."""

    def __init__(self, glossary: Path) -> None:
        super().__init__()
        self.page = ""
        self.terms = terms(glossary.read_text(encoding="utf-8"))

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Markdown's name
        """Take part in each conversion."""
        md.treeprocessors.register(_Tree(self, md), "tickover-words", PRIORITY)


class _Tree(Treeprocessor):  # type: ignore[misc]
    def __init__(self, words: Words, md: Markdown) -> None:
        super().__init__(md)
        self._words = words

    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            complete(table)
        if self._words.page:
            place = posixpath.relpath(GLOSSARY, posixpath.dirname(self._words.page) or ".")
            link_words(root, self._words.terms, place)


def terms(glossary: str) -> dict[str, str]:
    """Anchor of each word that is linked, in small letters."""
    heads = re.findall(r"^## (.+)$", glossary, re.MULTILINE)
    words = {head.lower() for head in heads} - UNLINKED
    return {word: word.replace(" ", "-") for word in sorted(words)}


def complete(table: Element) -> None:
    """Give each cell its column's head, and names the class that keeps them whole."""
    heads = ["".join(head.itertext()).strip() for head in table.iter("th")]
    for row in table.iter("tr"):
        for cell, head in zip(row.findall("td"), heads, strict=False):
            cell.set("data-head", head)
    for code in table.iter("code"):
        text = "".join(code.itertext())
        if len(text) <= NAME_LENGTH_MAX and not re.search(r"\s", text):
            code.set("class", "name")


def link_words(root: Element, words: Mapping[str, str], glossary: str) -> None:
    """Make each word a link to the glossary where it first stands in a text: not in headings, links or code."""
    left = dict(words)
    for element in list(texts(root)):
        slot = 0  # 0: the element's own text; n: what follows its n-th part
        while slot <= len(element):
            text = (element[slot - 1].tail if slot else element.text) or ""
            if (found := first_of(left, text)) is not None:
                word, begin, end = found
                link = Element("a", {"class": "word", "href": f"{glossary}#{left.pop(word)}"})
                link.text, link.tail = text[begin:end], text[end:]
                if slot:
                    element[slot - 1].tail = text[:begin]
                else:
                    element.text = text[:begin]
                element.insert(slot, link)
            slot += 1


def texts(element: Element) -> Iterator[Element]:
    """Elements whose own text may have links."""
    if element.tag not in LEFT_ALONE:
        if element.tag in TEXT:
            yield element
        for part in element:
            yield from texts(part)


def first_of(words: Mapping[str, str], text: str) -> tuple[str, int, int] | None:
    """The word that comes first in a text, with begin and end; None: none of them is there."""
    found = [(match.start(), match.end(), word) for word in words if (match := word_in(word).search(text))]
    if not found:
        return None
    begin, end, word = min(found)
    return word, begin, end


@cache
def word_in(word: str) -> re.Pattern[str]:
    """The word, also in the plural, with nothing of a longer one around."""
    stem, plural = (word[:-1], "(?:y|ies)") if word.endswith("y") else (word, "s?")
    return re.compile(rf"(?<![\w-]){re.escape(stem)}{plural}(?![\w-])", re.IGNORECASE)


def boost_of(page: str) -> float:
    """How much more than others a page counts in the search: what somebody wants to do comes first, reasons last."""
    for place, boost in BOOSTS.items():
        if page.startswith(place):
            return boost
    return 1.0
