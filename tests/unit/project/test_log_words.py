"""Log lines are for operators: they have the contract's words, none of the engine's own."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.source import python_files

pytestmark = pytest.mark.slow

# The contract has partition, memory, overflow; what the engine calls its parts stands in the glossary of ARCHITECTURE.
OWN_WORDS = re.compile(
    r"\b(lanes?|hw|cursor|watermark|wheel|chunks?|overtak\w+|promot\w+|parcel|seal)\b", re.IGNORECASE
)
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


def lines() -> Iterator[tuple[str, str]]:
    """Place and text of each log line: its words, and the names of what it carries."""
    for source in python_files():
        if not source.is_product or not source.place.startswith(("api/", "policies/", "sidecar/")):
            continue
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level)) if level in LEVELS:
                    yield f"{source.place}:{node.lineno}", " ".join(texts(node))


def texts(call: ast.Call) -> Iterator[str]:
    """Texts of the message, and the keys of `extra`."""
    for part in ast.walk(call.args[0]):
        if isinstance(part, ast.Constant):
            yield str(part.value)
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Dict):
            yield from (str(key.value) for key in keyword.value.keys if isinstance(key, ast.Constant))


def test_no_log_line_has_a_word_of_the_engines_own() -> None:
    found = dict(lines())
    assert len(found) > 100
    assert {place: text for place, text in found.items() if OWN_WORDS.search(text)} == {}
