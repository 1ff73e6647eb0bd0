"""Commands that the demo offers to try exist, and are said with their options."""

import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from sidecar.cli.app import app
from sidecar.demo.screen import SCENES, invitation
from sidecar.settings.settings import Settings

DEFAULT_PORT = Settings().api.port


def offered(port: int) -> list[list[str]]:
    """The words behind `tickover` of each command that is offered."""
    lines = [line.strip() for line in invitation(Settings(), port, "127.0.0.1:9092", "push")]
    return [shlex.split(line)[1:] for line in lines if line.startswith("tickover ")]


@pytest.mark.parametrize("port", [DEFAULT_PORT, DEFAULT_PORT + 1])
def test_what_is_offered_can_be_said(port: int) -> None:
    commands = offered(port)

    assert {tuple(words[:2]) for words in commands} >= {("messages", "send"), ("messages", "fire")}
    for words in commands:
        command, context, rest = get_command(app), None, words
        while hasattr(command, "commands"):
            context = command.make_context(rest[0], [], parent=context, resilient_parsing=True)
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(words[0], list(rest), parent=context)  # raises UsageError for what isn't an option


@pytest.mark.parametrize("port", [DEFAULT_PORT, DEFAULT_PORT + 1])
def test_another_port_is_named(port: int) -> None:
    named = {"--url" in words for words in offered(port)}
    assert named == {port != DEFAULT_PORT}


def test_what_the_console_shows_is_said_where_somebody_acts_in_the_demo(tmp_path: Path) -> None:
    """With tokens nobody does."""

    def text(**api: str) -> str:
        return "\n".join(invitation(Settings.model_validate({"api": api}), DEFAULT_PORT, "127.0.0.1:9092", "push"))

    tokens = tmp_path / "tokens.json"
    tokens.write_text("[]")
    assert SCENES[0] in text()
    assert SCENES[0] not in text(tokens_file=str(tokens))
