"""The tables of the guide to sizes: the formula's terms, and what one load is reckoned to take."""

from typing import Final

from policies.duration import DAY_MS
from sidecar.doctor import sizing
from sidecar.doctor.sizing import Load, Term, shown, size
from sidecar.settings.settings import Settings
from tests.pages.text import code, table, with_parts
from tests.source import ROOT

GUIDE: Final = ROOT / "docs" / "how-to" / "size-it.md"
EXAMPLE: Final = Load(rate=200, delay_ms=30 * DAY_MS, pending=1_000_000)


def figure(term: Term) -> str:
    """A term's value with its unit."""
    match term.unit:
        case "B":
            return shown(term.value, "B")
        case "":
            return f"{term.value:.0%}"
        case "core s":
            return f"{term.value * 1e6:g} us"
        case unit:
            return f"{term.value:g} {unit}"


def terms() -> dict[str, Term]:
    """All terms by the names of their constants, in the order of the code."""
    return {name: term for name, term in vars(sizing).items() if isinstance(term, Term)}


def page() -> str:
    """The whole guide, with its tables as the code is now."""
    example = [
        (need.part, need.what, shown(need.amount, need.unit), need.formula) for need in size(EXAMPLE, Settings())
    ]
    measured = [(code(name), figure(term), term.what, code(f"--only {term.part}")) for name, term in terms().items()]
    parts = {
        "example": table(("part", "what", "need", "formula"), example),
        "terms": table(("term", "figure", "of what", "measured by"), measured),
    }
    return with_parts(GUIDE, parts)
