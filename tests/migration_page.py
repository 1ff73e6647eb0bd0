"""The page about retry topics of one's own, as tests read it: its policy, its tables, its code."""

import re
from typing import Any, NamedTuple

import yaml

from tests.source import ROOT

PAGE = (ROOT / "docs" / "migrate" / "from-own-retry-topics.md").read_text(encoding="utf-8")


class Rung(NamedTuple):
    """A row of the table of carried counters."""

    topic: str
    failed: int
    carried: bytes  # in `tickover-attempt`
    wait: str
    next_attempt: int
    then: str  # `waits 10m`, or the reason of the dead letter


def code(language: str) -> list[str]:
    """Blocks of this language, in the page's order."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def policy_text() -> str:
    """The page's policy, as it stands."""
    [text] = code("yaml")
    return text


def policy() -> dict[str, Any]:
    """The page's policy."""
    document: dict[str, Any] = yaml.safe_load(policy_text())
    return document


def rungs() -> list[Rung]:
    """The table of carried counters, row by row."""
    rows = re.findall(r"^\| `(\S+)` \| (\d+) \| `(\d+)` \| (\S+) \| (\d+) \| (.+) \|$", PAGE, re.MULTILINE)
    return [
        Rung(topic, int(failed), carried.encode(), wait, int(following), then.strip("`"))
        for topic, failed, carried, wait, following, then in rows
    ]


class Programs(NamedTuple):
    """The page's Python: how a consumer forwards before and after, and what carries the ladder's records over."""

    before: str
    after: str
    carry: str


def programs() -> Programs:
    """The three blocks of Python."""
    return Programs(*code("python"))
