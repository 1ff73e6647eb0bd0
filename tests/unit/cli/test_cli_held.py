"""`tickover messages list|get` and `tickover forecast`, against the real REST interface over fakes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sidecar.conditions.attribution import Cause, Span
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.condition import CAUSES, Kind, Subject
from sidecar.model.record import Outcome, TopicPartition
from tests.unit.api.routes.test_api_held import row
from tests.unit.api_world import NOW_MS, world
from tests.unit.cli.test_cli_rest import Terminal
from tests.unit.lookup.test_receipts import block

OK, FAILED, USAGE, NOT_FOUND, CONFLICT = range(5)


@pytest.fixture
def tickover(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)
    monkeypatch.setattr("api.routes.held.AGAIN_S", ())
    with world() as there:
        yield Terminal(there)


def test_a_list_goes_over_pages_up_to_its_limit(tickover: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.cli.messages.held.PAGE_LIMIT", 2)
    tickover.there.held.rows = [row(offset) for offset in range(7)]
    items = tickover.data("messages", "list", "--limit", "5")
    assert [item["id"] for item in items] == [f"id-{n}" for n in range(5)]
    assert tickover("messages", "list", "--limit", "7").stderr == ""
    assert len(tickover.data("messages", "list")) == 7


def test_a_list_says_how_to_go_on(tickover: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.cli.messages.held.PAGE_LIMIT", 2)
    tickover.there.held.rows = [row(offset) for offset in range(7)]
    said = tickover("messages", "list", "--limit", "3").stderr
    assert "--all" in said
    [cursor] = re.findall(r"--cursor (\S+),", said)
    rest = tickover("messages", "list", "--limit", "4", "--cursor", cursor, "-o", "jsonl")
    assert [json.loads(line)["id"] for line in rest.stdout.splitlines()] == ["id-3", "id-4", "id-5", "id-6"]
    assert rest.stderr == ""
    assert tickover("messages", "list", "--cursor", "x").exit_code == FAILED


@pytest.mark.parametrize("form", ["json", "jsonl", "yaml", "table"])
def test_all_are_listed_whatever_the_limit_of_a_page(
    tickover: Terminal, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("sidecar.cli.messages.held.PAGE_LIMIT", 50)
    tickover.there.held.rows = [row(offset) for offset in range(220)]
    result = tickover("messages", "list", "--all", "-o", form)
    assert (result.exit_code, result.stderr) == (OK, "")
    assert all(f"id-{offset}" in result.stdout for offset in range(220))
    assert result.stdout.count("PLACE") == (form == "table"), "one heading, however many pages"
    assert tickover("messages", "list", "--all", "--limit", "7").exit_code == USAGE


@pytest.mark.parametrize("option", ["--source", "--topic"])
def test_a_list_as_a_table_with_filters(tickover: Terminal, option: str) -> None:
    tickover.there.held.rows = [row(5, target="mail")]
    result = tickover("messages", "list", option, "reminders", "--policy", "p@1", "--due-from", "2026-01-01T00:00:00Z")
    assert result.exit_code == OK
    assert result.stdout.split() == [
        "ID", "SOURCE", "PLACE", "DUE", "TIER", "TARGET", "POLICY", "ATTEMPT",
        "id-5", "reminders", "3/5", "2027-01-15T08:00:00.005Z", "wheel", "mail", "-", "-",
    ]  # fmt: skip
    [query] = tickover.there.held.asked
    assert (query.topic, query.policy, query.due_from_ms) == ("reminders", "p@1", 1_767_225_600_000)


def test_one_message_with_its_way(tickover: Terminal) -> None:
    tickover.there.receipts.add(LedgerPlace(1, 8), block({8: Outcome.DEAD}, {8: "order/1"}))
    document = tickover.data("messages", "get", "order/1")
    assert (document["state"], document["reason"], document["position"]["offset"]) == ("dead", "expired", 8)
    assert "missing" not in document
    told = tickover("messages", "get", "order/1")
    assert told.stdout.startswith("id: order/1\n")
    assert yaml.safe_load(told.stdout)["due"] == document["due_utc"]


@pytest.mark.parametrize(
    ("outcome", "command"),
    [(Outcome.QUARANTINED, True), (Outcome.DEAD, True), (Outcome.EMITTED, False), (Outcome.CANCELLED, False)],
)
def test_of_a_message_that_left_as_a_letter_it_says_where_the_detail_is(
    tickover: Terminal, outcome: Outcome, command: bool
) -> None:
    tickover.there.receipts.add(LedgerPlace(1, 8), block({8: outcome}, {8: "order/1"}))
    document = tickover.data("messages", "get", "order/1")
    [*words] = tickover("messages", "get", "order/1").stderr.splitlines()
    about = f"--topic {document['target']} --reason {document['reason']}"
    assert words == ([f"the letter has the detail: tickover dead-letters list {about}"] if command else [])


def test_why_a_message_was_late(tickover: Terminal) -> None:
    tickover.there.receipts.add(LedgerPlace(1, 8, 5_030), block({8: Outcome.EMITTED}, {8: "reminders/3/9"}))
    here, mail = Subject(Kind.RUNNING, "reminders", 3), Subject(Kind.SUSPENDED, "mail")
    tickover.there.conditions.spans = [Span(here, 0, 9_000, "r", "one"), Span(mail, 4_000, 5_000, "r", "one")]
    for message in ("reminders/3/8", "reminders/3/9"):  # a place, and an id that looks like one
        result = tickover("messages", "why", message)
        assert result.exit_code == OK
        assert "emitted 1970-01-01T00:00:05.030Z: 1.022 s late" in result.stderr
        [_, suspended, settle] = result.stdout.splitlines()
        assert suspended.split()[2:4] + suspended.split()[-1:] == ["0.992", "suspended", "one"]
        assert "its target did not acknowledge" in suspended
        assert settle.split()[2:4] == ["0.030", "settle"]
        document = tickover.data("messages", "why", message)
        assert document["by_cause"] == {"suspended": 992, "settle": 30}
    assert tickover("messages", "why", "nobody").exit_code == NOT_FOUND
    nothing_there = tickover("messages", "why", "reminders/3/7")
    assert nothing_there.exit_code == NOT_FOUND
    assert "No overdue message is held there" in nothing_there.stderr
    assert "this id" not in nothing_there.stderr, "it was asked about a place"


def test_every_cause_has_its_words() -> None:
    assert list(CAUSES) == list(Cause)


def test_exit_statuses(tickover: Terminal) -> None:
    tickover.there.held.rows = [row(8, id="a"), row(9, id="a", position={"partition": 1})]
    assert tickover("messages", "get", "nobody").exit_code == NOT_FOUND
    assert tickover("messages", "get", "a").exit_code == CONFLICT
    assert tickover("messages", "get", "a", "--partition", "1").exit_code == OK
    assert tickover("messages", "list", "--due-to", "tomorrow").exit_code == USAGE
    assert tickover("messages", "list", "--limit", "0").exit_code == USAGE
    assert tickover("messages", "list", "--colour", "red").exit_code == USAGE
    assert (
        tickover("messages", "list", "--due-from", "2030-01-01T00:00Z", "--due-to", "2030-01-01T00:00Z").exit_code
        == FAILED
    )
    tickover.there.held.down = "Redis does not answer"
    assert tickover("messages", "list").exit_code == FAILED


def test_what_is_missing_is_said_beside_the_data(tickover: Terminal) -> None:
    tickover.there.held.rows = [row(8, id="a")]
    tickover.there.held.missing = [TopicPartition("gold", 2)]
    for command in (("messages", "list"), ("messages", "get", "a"), ("forecast",)):
        result = tickover(*command, "-o", "json")
        assert "missing: gold/2" in result.stderr
        json.loads(result.stdout)


def test_the_forecast_shows_what_there_is(tickover: Terminal) -> None:
    tickover.there.held.minutes = {NOW_MS // 60_000 + 1: 7, -1: 100}
    words = tickover("forecast", "--minutes", "5").stdout.split()
    assert words == ["MINUTE", "HELD", "before", "0", "2027-01-15T08:01:00.000Z", "7", "later", "100"]
    assert len(tickover.data("forecast", "--minutes", "5")["items"]) == 5
    assert tickover("forecast", "--minutes", "0").exit_code == USAGE


def test_a_list_by_id_and_header_and_how_many_there_are(tickover: Terminal) -> None:
    tickover.there.held.rows = [row(offset) for offset in range(3)]
    assert [item["id"] for item in tickover.data("messages", "list", "--id", "id-1")] == ["id-1"]
    tickover.there.held.minutes = {-1: 3}
    assert tickover("messages", "list", "--count", "--limit", "1").stderr.startswith("in all: 3\n")
    said = tickover("messages", "list", "--count", "--limit", "1", "--header", "h=x").stderr
    assert "not known without a search" in said
    assert tickover.there.held.asked[-1].header == "h=x"


def test_a_message_with_its_payload(tickover: Terminal) -> None:
    tickover.there.letters.add("reminders", [("tickover-id", b"id-0")], partition=3, value=b"hi")
    tickover.there.held.rows = [row(0), row(5)]
    shown = tickover("messages", "get", "id-0", "--payload")
    assert yaml.safe_load(shown.stdout)["payload"]["value"] == "hi"
    assert shown.stderr == ""
    gone = tickover("messages", "get", "id-5", "--payload")
    assert gone.exit_code == OK
    assert "its payload is not known" in gone.stderr


def test_a_change_of_the_ids_in_a_file(tickover: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("a\r\n\nb c\n", encoding="utf-8")
    planned = tickover.data("changes", "plan", "cancel", "--ids", str(file))
    assert planned["filter"] == {"ids": 2}
    assert tickover.there.changing.jobs.changes[planned["id"]].plan.selection.ids == ("a", "b c")
    file.write_text("\n")
    assert tickover("changes", "plan", "cancel", "--ids", str(file)).exit_code == USAGE
    assert tickover("changes", "plan", "cancel", "--ids", str(tmp_path / "none")).exit_code == USAGE
    file.write_bytes(b"\xff")
    assert tickover("changes", "plan", "cancel", "--ids", str(file)).exit_code == USAGE
