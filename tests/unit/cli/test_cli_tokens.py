"""`tickover tokens` on a file, and the API that reads it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.access.auth import load_tokens
from sidecar.cli.app import app


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TICKOVER_CONFIG", raising=False)
    monkeypatch.setenv("TICKOVER_API__TOKENS_FILE", str(tmp_path / "tokens.yaml"))
    return tmp_path / "tokens.yaml"


def tickover(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tokens", *arguments], prog_name="tickover")


def test_a_token_is_shown_once_and_is_good_until_it_is_revoked(path: Path) -> None:
    shown = tickover("new", "night", "--role", "read")
    token = shown.stdout.strip()
    assert token.startswith("tko_")
    assert token not in shown.stderr + path.read_text()
    tokens = load_tokens(path)
    caller = tokens.caller(token)
    assert caller is not None
    assert (caller.name, str(caller.role)) == ("night", "1")
    told = json.loads(tickover("new", "ci", "--role", "admin", "--expires", "2027-01-31T00:00Z", "-o", "json").stdout)
    assert (told["name"], told["role"]) == ("ci", "admin")
    assert tickover("revoke", "night").exit_code == 0
    assert tokens.file.look() is True
    assert tokens.caller(token) is None
    assert load_tokens(path).caller(told["token"]) is not None


def test_the_list_has_names_and_roles_and_nothing_by_which_a_token_is_known(path: Path) -> None:
    token = tickover("new", "night", "--role", "read").stdout.strip()
    tickover("new", "ci", "--role", "admin", "--expires", "2027-01-31T00:00:00+01:00")
    listed = json.loads(tickover("list", "-o", "json").stdout)
    assert listed == [
        {"name": "night", "role": "read", "expires": None},
        {"name": "ci", "role": "admin", "expires": "2027-01-30T23:00:00.000Z"},
    ]
    everything = tickover("list").stdout + json.dumps(listed)
    assert token not in everything
    assert "sha256" not in everything


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["new", "night", "--role", "read"], 4, "revoke it first"),
        (["new", "x", "--role", "reader"], 2, "reader"),
        (["new", "x"], 2, "--role"),
        (["new", "oidc:x", "--role", "read"], 1, "provider"),
        (["new", "x", "--role", "read", "--expires", "soon"], 1, "ISO 8601"),
        (["revoke", "nobody"], 3, "nobody"),
        (["revoke", "night"], 1, "last token"),
        (["list", "--file", "/nowhere/tokens.yaml"], 1, "No such file"),
        (["new", "x", "--role", "read", "--file", "/nowhere/tokens.yaml"], 1, "No such file"),
    ],
)
def test_slips_change_nothing(path: Path, arguments: list[str], status: int, says: str) -> None:
    tickover("new", "night", "--role", "read")
    before = path.read_text()
    result = tickover(*arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert says in result.stderr
    assert "sha256" not in result.stderr
    assert path.read_text() == before


def test_without_a_file_it_asks_which(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.delenv("TICKOVER_API__TOKENS_FILE")
    result = tickover("list")
    assert result.exit_code == 2
    assert "api.tokens_file" in result.stderr
    path.write_bytes(b"\xff")
    assert "not UTF-8" in tickover("list", "--file", str(path)).stderr
