"""`tickover audit` against the real REST interface."""

import time

import pytest

from sidecar.cli.about import audit as command
from tests.unit.api.routes.about.test_api_audit_list import add
from tests.unit.api_world import NOW_MS
from tests.unit.cli.test_cli_rest import Terminal, tickover

__all__ = ["tickover"]


def test_the_newest_first_over_pages(tickover: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAGE_LIMIT", 2)
    for second in range(5):
        add(tickover.there, second, subject={"name": f"policy-{second}"}, actor="ann")
    items = tickover.data("audit", "--caller", "ann", "--limit", "4")
    assert [item["subject"]["name"] for item in items] == ["policy-4", "policy-3", "policy-2", "policy-1"]
    assert len(tickover.data("audit", "--caller", "ann")) == 5
    result = tickover("audit", "--caller", "ann", "--limit", "1")
    assert "2027-01-15T08:00:04.000Z\tann\tput_policy\tdone\t-\tname=policy-4" in result.stdout
    assert "there may be more" in result.stderr


def test_times_are_durations_ago_or_as_the_sidecar_reads_them(
    tickover: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_MS / 1_000 + 10_000)
    add(tickover.there, 0)
    add(tickover.there, 9_950, actor="bob")
    assert [item["actor"] for item in tickover.data("audit", "--since", "2m", "--action", "put_*")] == ["bob"]
    assert [item["actor"] for item in tickover.data("audit", "--until", "2m", "--action", "put_*")] == ["ann"]
    since = ("--since", "2027-01-15T08:00:01Z", "--action", "put_*")
    assert [item["actor"] for item in tickover.data("audit", *since)] == ["bob"]
    assert tickover("audit", "--since", "soon").exit_code == 1
