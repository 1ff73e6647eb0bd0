"""The page of the command line, from typer's application."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any
from unittest.mock import patch

from typer.main import get_command

from sidecar.cli.app import app
from tests.pages.text import head

WORDS = """\
What `--help` says, of every command. Data goes to stdout, words to stderr. `-o table|json|yaml` stands before or after
a command. Exit status: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict.
"""


def page() -> str:
    """The whole text."""
    parts = [head("Command line", "the commands in sidecar/cli", WORDS)]
    tickover = get_command(app)
    for path, name in paths(tickover):
        said = StringIO()
        with patch.dict("os.environ", {"COLUMNS": "80"}), redirect_stdout(said):
            tickover.main([*path, "--help"], prog_name="tickover", standalone_mode=False)
        level = "##" if len(path) < 2 else "###"
        parts.append(f"\n{level} {name}\n\n```text\n{said.getvalue().strip()}\n```\n")
    return "".join(parts)


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """All commands and groups of commands in the order of the help."""
    yield path, " ".join(("tickover", *path))
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, (*path, name))


def leaves(command: Any, path: str = "") -> Iterator[str]:
    """All commands that can be called as they are, by their words."""
    if path and getattr(command, "invoke_without_command", False):
        yield path
    for name, child in getattr(command, "commands", {"": None}).items():
        yield from leaves(child, f"{path} {name}".strip()) if name else [path]
