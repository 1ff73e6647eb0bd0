"""Commands, policies and schedules in the tutorial and the guides are ones that tickover takes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from policies.model import Policy
from sidecar.cli.app import app
from sidecar.operations.schedules.schedule import Schedule
from tests.source import ROOT

DOCS = ROOT / "docs"
ATTEMPTS = (
    "`attempts` counts the deliveries after the first failure, so a record is delivered `attempts` + 1 times at most"
)
PAGES = [DOCS / "tutorial.md", *sorted(path for name in ("how-to", "migrate") for path in (DOCS / name).glob("*.md"))]
CALL = re.compile(r"(?:^|[\s(;|])(?:\.venv/bin/)?tickover((?: [^|<>&;()\n]+))")


def blocks(path: Path, language: str) -> Iterator[str]:
    """Code of one language on a page; what a script writes into a file is of no language."""
    for code in re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield re.sub(r"<<'(\w+)'\n.*?^\1$", "", code, flags=re.MULTILINE | re.DOTALL)


def calls(path: Path) -> list[list[str]]:
    """The words behind `tickover` of every command on the page."""
    lines = [line for block in blocks(path, "sh") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(found, comments=True) for line in lines for found in CALL.findall(line)]


def unknown(words: list[str]) -> str:
    """Words of a call that the command line wouldn't understand; empty when all is well."""
    command: Any = get_command(app)
    options = {"-o", "--output"}
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        words = words[1:]
    if getattr(command, "commands", {}) and not getattr(command, "invoke_without_command", False):
        return f"no such command: {' '.join(words)}"
    options |= {option for parameter in command.params for option in parameter.opts}
    return " ".join(word for word in words if word.startswith("-") and word.partition("=")[0] not in options)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_are_understood(path: Path) -> None:
    assert {" ".join(call): fault for call in calls(path) if (fault := unknown(call))} == {}


def test_commands_are_found() -> None:
    assert sum(len(calls(path)) for path in PAGES) > 30
    assert unknown(["messages", "send", "--dealy", "5s"]) == "--dealy"
    assert unknown(["mesages", "list"])


def test_attempts_are_explained_wherever_they_are_first_met_and_in_the_same_words() -> None:
    """Whether the first delivery counts is what everybody asks, and other tools count it."""
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *PAGES, *(ROOT / "examples").rglob("*.yaml")]
    using = [path for path in pages if re.search(r"\battempts: \d|`attempts`", path.read_text(encoding="utf-8"))]
    assert len(using) > 10
    words = {
        path: " ".join(re.sub(r"^ *# ", "", path.read_text(encoding="utf-8"), flags=re.M).split()) for path in using
    }
    assert [path.relative_to(ROOT).as_posix() for path, text in words.items() if ATTEMPTS not in text] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_is_python(path: Path) -> None:
    for block in blocks(path, "python"):
        compile(block, path.name, "exec")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_policies_and_schedules_are_valid(path: Path) -> None:
    for block in blocks(path, "yaml"):
        for document in yaml.safe_load_all(block):
            if "match" in document:
                Policy.model_validate(document)
            elif "cron" in document:
                Schedule.model_validate(document)


def test_every_example_finds_the_same_broker_where_no_variable_names_one() -> None:
    kinds = ("*.py", "go/*/*.go", "java/*.java", "node/*.js")
    sources = [path for kind in kinds for path in (ROOT / "examples").glob(kind)]
    asking = {path.name: text for path in sources if "KAFKA__BOOTSTRAP_SERVERS" in (text := path.read_text())}
    assert len(asking) >= len(kinds)
    assert [name for name, text in asking.items() if "localhost:9092" not in text] == []
