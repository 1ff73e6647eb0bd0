"""Writes the pages that are made from the code, parts of pages that are, and examples of what the API answers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.pages import (
    alerts,
    answers,
    commands,
    configuration,
    headers,
    metrics,
    policy,
    problems,
    rest,
    roles,
    sizing,
)
from tests.source import ROOT

DOCS: Final = ROOT / "docs"
PAGES: Final[Mapping[Path, Callable[[], str]]] = {
    ROOT / "api" / "problems.json": problems.types,  # first: an answer shows one of them
    ROOT / "api" / "answers.json": answers.page,  # then: the page of REST shows it
    DOCS / "configuration.md": configuration.page,
    alerts.GUIDE: alerts.page,
    sizing.GUIDE: sizing.page,
    **{
        DOCS / "reference" / f"{module.__name__.rpartition('.')[2]}.md": module.page
        for module in (commands, headers, metrics, policy, problems, rest, roles)
    },
}

if __name__ == "__main__":
    for place, page in PAGES.items():
        place.parent.mkdir(exist_ok=True)
        place.write_text(page(), encoding="utf-8")
