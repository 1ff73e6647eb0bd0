"""`tickover quarantine` against the real REST interface."""

from pathlib import Path

import pytest

from sidecar.cli.about import quarantine as command
from tests.unit.api.routes.about.test_api_quarantine import aside
from tests.unit.api_world import REMINDERS
from tests.unit.cli.test_cli_rest import Terminal, tickover

__all__ = ["tickover"]


def test_list_and_get(tickover: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAGE_LIMIT", 2)
    for reason in ("bad_header", "no_policy", "bad_header", "too_far", "bad_header"):
        aside(tickover.there, reason=reason, value=b'{"secret": 1}')
    assert [item["offset"] for item in tickover.data("quarantine", "list")] == [0, 1, 2, 3, 4]
    assert [item["offset"] for item in tickover.data("quarantine", "list", "--limit", "3")] == [0, 1, 2]
    assert [item["offset"] for item in tickover.data("quarantine", "list", "--reason", "bad_header")] == [0, 2, 4]
    table = tickover("quarantine", "list", "--reason", "too_far").stdout
    assert "0/3\t" in table
    assert "tickover-delay is no duration" in table
    assert tickover.data("quarantine", "get", "0/3")["reason"] == "too_far"
    shown = tickover.data("quarantine", "get", "tickover.quarantine/0/3", "--payload")
    assert shown["payload"]["value"] == {"secret": "***"}
    assert tickover("quarantine", "get", "0/9").exit_code == 3
    for place in ("3", "a/b", "x/y/0/3", "0/-3"):
        assert tickover("quarantine", "get", place).exit_code == 2


def test_send(tickover: Terminal, tmp_path: Path) -> None:
    tickover.there.add(REMINDERS)
    tickover.there.sender.topics["push"] = 1
    for _ in range(2):
        aside(tickover.there)
    result = tickover("quarantine", "send", "0/0", "--header", "tickover-delay=10m", "--without", "trace", "--key", "k")
    assert result.exit_code == 0, result.stderr
    assert "sent to reminders, due 2027-01-15T08:10:00.000Z at push" in result.stderr
    [record] = tickover.there.resent
    assert (record.key, record.value) == (b"k", b"v")
    assert record.headers[0] == ("tickover-delay", b"10m")
    again = tickover("quarantine", "send", "0/0", "--header", "tickover-delay=10m")
    assert again.exit_code == 4
    assert "already" in again.stderr
    value = tmp_path / "value"
    value.write_bytes(b"\xff")
    tickover.data("quarantine", "send", "0/1", "--header", "tickover-delay=10m", "--value-file", str(value))
    assert tickover.there.resent[1].value == b"\xff"
    assert tickover("quarantine", "send", "0/1", "--value", "x", "--value-file", str(value)).exit_code == 2
    assert tickover.data("quarantine", "list", "--open") == []
