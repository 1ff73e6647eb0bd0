"""`tickover redrive` against the real REST interface over plans and legs in memory."""

from pathlib import Path

import pytest

from sidecar.operations.dead_letters.edit import Edit
from sidecar.operations.dead_letters.masking import Search
from sidecar.operations.jobs.job import State
from tests.unit.cli.test_cli_rest import Terminal, tickover
from tests.unit.letter_world import dead

__all__ = ["tickover"]


def plan(tickover: Terminal, *arguments: str) -> str:
    tickover.there.letters.add("orders-dlq", dead())
    tickover.there.letters.add("orders", [])
    document = tickover.data("redrive", "plan", "--topic", "orders-dlq", "--reason", "attempts_exhausted", *arguments)
    assert document["state"] == "planned"
    return str(document["id"])


def test_from_plan_to_end(tickover: Terminal) -> None:
    id = plan(tickover, "--rate", "5", "--ramp", "1m", "--stop-share", "0.5", "--watch", "0", "--target", "orders")
    document = tickover.data("redrive", "status", id)
    assert document["limits"] == {"rate": 5, "ramp_ms": 60_000, "stop_share": 0.5, "watch_ms": 0}
    assert document["filter"] == {"reason": "attempts_exhausted"}
    assert not document["again"]
    assert tickover.data("redrive", "plan", "--topic", "orders-dlq", "--all", "--again")["again"]
    assert tickover.data("redrive", "canary", id, "-n", "2", "--no-wait")["state"] == "canary"
    assert tickover("redrive", "run", id).exit_code == 4
    tickover.there.redriving.finish(state=State.CANARIED)
    assert tickover.data("redrive", "run", id, "--no-wait")["state"] == "running"
    tickover.there.redriving.finish(state=State.DONE)
    assert tickover("redrive", "run", id).exit_code == 4
    assert "done" in tickover("redrive", "status").stdout
    assert "2027-01-15T08:00:00.000Z" in tickover("redrive", "status", id).stdout
    assert id in [item["id"] for item in tickover.data("redrive", "status")]


@pytest.mark.parametrize(("arguments", "letters"), [((), 10), (("-n", "2"), 2)])
def test_a_canary_sends_ten_letters_unless_told(tickover: Terminal, arguments: tuple[str, ...], letters: int) -> None:
    id = plan(tickover)
    assert tickover.data("redrive", "canary", id, "--no-wait", *arguments)["state"] == "canary"
    assert tickover.there.redriving.plans.all()[id].progress.left == letters


def test_a_redrive_that_stops_by_itself_is_a_failure(tickover: Terminal) -> None:
    id = plan(tickover)
    there = tickover.there.redriving
    there.ending = {"state": State.STOPPED, "reason": "3 of 9 failed again"}
    result = tickover("redrive", "run", id)
    assert result.exit_code == 1
    assert "stopped: 3 of 9 failed again" in result.stderr


def test_letters_that_are_named_and_discarded(tickover: Terminal) -> None:
    plan(tickover)
    named = ["--letter", "orders-dlq/0/0", "--discard"]
    document = tickover.data("redrive", "plan", "--topic", "orders-dlq", *named)
    assert (document["action"], document["letters"]) == ("discard", ["orders-dlq/0/0"])
    assert "discard" in tickover("redrive", "status").stdout


def test_letters_that_a_search_finds_are_a_plan(tickover: Terminal) -> None:
    words = ["--error", "was declined", "--id", "i-7", "--key-prefix", "k", "--header", "tenant=gold"]
    id = plan(tickover, *words)
    kept = tickover.there.redriving.plans.all()[id].plan.selection
    assert kept.search == Search("was declined", "i-7", "k", "tenant=gold")
    hidden, shown = (tickover.data("redrive", "status", id, *more)["filter"] for more in ((), ("--payload",)))
    assert [(told["key_prefix"], told["header"]) for told in (hidden, shown)] == [("***", "***"), ("k", "tenant=gold")]
    assert tickover.there.audited[-1]["notes"]["payload"]
    assert tickover.data("redrive", "plan", "--topic", "orders-dlq", "--error", "x")["filter"] == {"error": "x"}


def test_an_edit_comes_from_a_file(tickover: Terminal, tmp_path: Path) -> None:
    edit = tmp_path / "edit.json"
    edit.write_text('{"merge": {"amount": 3}, "headers": {"draft": null}}', encoding="utf-8")
    id = plan(tickover, "--edit", str(edit))
    kept = tickover.there.redriving.plans.all()[id].plan.edit
    assert kept == Edit(merge={"amount": 3}, headers={"draft": None})
    refused = ("{", 2, "--edit"), ("[]", 2, "JSON object"), ('{"merge": {"a": "***"}}', 1, "masked")
    for text, status, says in refused:
        edit.write_text(text, encoding="utf-8")
        result = tickover("redrive", "plan", "--topic", "orders-dlq", "--all", "--edit", str(edit))
        assert (result.exit_code, says in result.stderr) == (status, True), result.stderr


def test_abort(tickover: Terminal) -> None:
    id = plan(tickover)
    assert tickover.data("redrive", "abort", id)["state"] == "aborted"
    assert tickover("redrive", "abort", id).exit_code == 4


def test_an_abort_waits_until_no_more_is_sent(tickover: Terminal) -> None:
    id = plan(tickover)
    there = tickover.there.redriving
    tickover.data("redrive", "run", id, "--no-wait")
    assert tickover.data("redrive", "abort", id, "--no-wait")["state"] == "aborting"
    there.finish(state=State.ABORTED)
    assert tickover.data("redrive", "status", id)["state"] == "aborted"


@pytest.mark.parametrize("end", [State.ABORTED, State.DONE])
def test_an_abort_says_how_it_ended(tickover: Terminal, monkeypatch: pytest.MonkeyPatch, end: State) -> None:
    id = plan(tickover)
    there = tickover.there.redriving
    tickover.data("redrive", "run", id, "--no-wait")
    monkeypatch.setattr("sidecar.cli.jobs.time.sleep", lambda _: there.finish(state=end))
    result = tickover("redrive", "abort", id)
    assert (result.exit_code, "came too late" in result.stderr) == ((0, False) if end is State.ABORTED else (1, True))


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["plan", "--topic", "orders-dlq"], 2, "--all"),
        (["plan", "--topic", "nowhere", "--all"], 3, "nowhere"),
        (["plan", "--topic", "orders-dlq", "--all", "--since", "x"], 2, "--since"),
        (["plan", "--topic", "orders-dlq", "--all", "--ramp", "5"], 2, "5s? 5ms?"),
        (["plan", "--topic", "orders-dlq", "--all", "--watch", "5"], 2, "--watch"),
        (["plan", "--all"], 2, "--topic"),
        (["run", "nobody"], 3, "no redrive"),
        (["status", "nobody"], 3, "no redrive"),
        (["status", "--payload"], 2, "say which"),
        (["canary", "nobody", "-n", "0"], 2, "-n"),
    ],
)
def test_slips(tickover: Terminal, arguments: list[str], status: int, says: str) -> None:
    tickover.there.letters.add("orders-dlq", dead())
    result = tickover("redrive", *arguments)
    assert result.exit_code == status
    assert says in result.stderr
