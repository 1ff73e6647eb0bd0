"""`tickover pauses` and `tickover targets`, against the API."""

import json

import pytest

from sidecar.model.condition import Pausable, PauseKind
from sidecar.model.stats import TargetFlow
from tests.unit.api_world import NOW_MS
from tests.unit.cli.test_cli_rest import Terminal, tickover

__all__ = ["tickover"]

OK, FAILED, USAGE, NOT_FOUND = range(4)
MAIL = Pausable(PauseKind.TARGET, "mail")


@pytest.fixture(autouse=True)
def mail(tickover: Terminal) -> None:
    tickover.there.sender.topics["mail"] = 1


def test_a_pause_is_made_seen_and_ended(tickover: Terminal) -> None:
    result = tickover("pauses", "add", "target", "mail", "--reason", "a release", "--until", str(NOW_MS + 60_000))
    assert result.exit_code == OK
    assert "target mail paused" in result.stderr
    [item] = tickover.data("pauses", "list")
    assert (item["kind"], item["name"], item["until"]) == ("target", "mail", NOW_MS + 60_000)
    table = tickover("pauses", "list").stdout
    assert "a release" in table
    assert tickover("pauses", "remove", "target", "mail").exit_code == OK
    assert tickover.data("pauses", "list") == []
    assert tickover("pauses", "remove", "target", "mail").exit_code == NOT_FOUND


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["policy", "none", "--reason", "x"], NOT_FOUND),
        (["target", "none", "--reason", "x"], FAILED),
        (["target", "mail"], USAGE),
        (["topic", "mail", "--reason", "x"], USAGE),
        (["target", "mail", "--reason", "x", "--until", "soon"], USAGE),
    ],
)
def test_what_can_not_be_paused_is_refused(tickover: Terminal, arguments: list[str], status: int) -> None:
    assert tickover("pauses", "add", *arguments).exit_code == status
    assert tickover.there.pauses.records == []


@pytest.mark.parametrize(
    ("command", "words", "to"),
    [
        ("close-breaker", "closed: a few retries go as probes", "closed"),
        ("open-breaker", "opened: retries wait, and after its time a few go as probes", "open"),
    ],
)
def test_a_breaker_is_switched_by_hand(tickover: Terminal, command: str, words: str, to: str) -> None:
    refused = tickover("targets", command, "mail")
    assert (refused.exit_code, "pause it" in refused.stderr) == (NOT_FOUND, True)
    tickover.there.change_stats(targets={"mail": TargetFlow(3, 2.5, "closed")})
    result = tickover("targets", command, "mail")
    assert (result.exit_code, words in result.stderr) == (OK, True)
    [(key, value)] = tickover.there.pauses.records
    assert (key, json.loads(value or b"")["to"]) == (b"breaker/mail", to)


def test_targets_are_listed_with_what_keeps_messages_from_them(tickover: Terminal) -> None:
    tickover("pauses", "add", "target", "mail", "--reason", "a release")
    tickover.there.change_stats(targets={"mail": TargetFlow(3, 2.5, "open")}, paused={MAIL: 4})
    [item] = tickover.data("targets", "list")
    assert (item["name"], item["waiting"], item["breaker"]) == ("mail", 7, "open")
    table = tickover("targets", "list").stdout
    assert "a release" in table
    assert "open" in table
