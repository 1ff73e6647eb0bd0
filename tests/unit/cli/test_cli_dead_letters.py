"""`tickover dead-letters` against the real REST interface over letters in memory."""

from typing import Any

import pytest

from sidecar.cli.rest_client import PAGE_LIMIT
from sidecar.model.record import Place
from sidecar.model.times import rfc_3339
from sidecar.operations.dead_letters.groups.group import added_up
from tests.unit.cli.test_cli_rest import Terminal, tickover
from tests.unit.letter_world import dead

__all__ = ["tickover"]


def test_list_groups_and_show(tickover: Terminal) -> None:
    letters = tickover.there.letters
    letters.batch = 200
    for n in range(PAGE_LIMIT + 100):
        letters.add("orders-dlq", dead(error_class="IO", error_message=f"port {n}"), value=b'{"secret": 1}')
    letters.add("orders-dlq", dead("expired"), partition=1)
    assert len(tickover.data("dead-letters", "list")) == 100
    listed = tickover.data("dead-letters", "list", "--limit", "100000")
    assert len({item["position"] for item in listed}) == PAGE_LIMIT + 101
    assert [item["reason"] for item in tickover.data("dead-letters", "list", "--reason", "expired")] == ["expired"]
    most, least = tickover.data("dead-letters", "groups", "--topic", "orders-dlq")
    assert (most["first_seen_utc"], most["last_seen_utc"]) == (
        rfc_3339(most["first_seen"]),
        rfc_3339(most["last_seen"]),
    )
    assert (most["count"], least["count"]) == (PAGE_LIMIT + 100, 1)
    assert most["first_seen"] < most["last_seen"]
    assert len(tickover.data("dead-letters", "list", "--fingerprint", least["fingerprint"])) == 1
    table = tickover("dead-letters", "list", "--limit", "1").stdout
    assert "port 0" in table
    assert "2027-01-15T08:00:00.000Z" in table
    assert tickover.data("dead-letters", "show", "orders-dlq/0/3")["offset"] == 3
    assert tickover.data("dead-letters", "show", "orders-dlq/0/3", "--payload")["payload"]["value"] == {"secret": "***"}
    assert tickover.data("dead-letters", "list", "--limit", "1", "--payload")[0]["payload"]["key"] == "k"


def test_searches(tickover: Terminal) -> None:
    for n in range(4):
        headers = [
            *dead(id=f"m-{n}", error_class="IO", error_message=f"port {n} at mq.prod.internal"),
            ("n", b"%d" % n),
        ]
        tickover.there.letters.add("orders-dlq", headers, key=b"c-%d" % n)
    tickover.there.letters.add("tickover.quarantine", dead("no_policy", detail="none for '$(reboot)'", id="q"))
    tickover.there.letters.add("tickover.quarantine", dead("no_policy", detail="none for 'x'"))
    for found, *options in (
        ([1], "--error", "PORT 1"),
        ([], "--error", "mq.prod"),
        ([2], "--error", "mq.prod", "--payload", "--id", "m-2"),
        ([3], "--id", "m-3"),
        ([0], "--key-prefix", "c-0"),
        ([2], "--header", "n=2", "--error", "io"),
    ):
        listed = tickover.data("dead-letters", "list", "--topic", "orders-dlq", *options)
        assert [item["offset"] for item in listed] == found, options
    [group] = tickover.data("dead-letters", "groups", "--error", "port 1")
    assert group["count"] == 1
    assert [one["id"] for one in tickover.data("quarantine", "list", "--error", "$(REBOOT)")] == ["q"]


def test_what_letters_died_of_is_cut_on_a_terminal_unless_it_is_to_be_full(
    tickover: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, message = tickover.there.letters, " ".join(f"order-{n}" for n in range(100))
    there.add("orders-dlq", dead(error_message=message))
    there.add("tickover.quarantine", dead("bad_header", detail="tickover-delay is 4711x"))
    assert "tickover-delay is 4711x" in tickover("dead-letters", "list").stdout
    assert "tickover-delay is 4711x" in tickover("dead-letters", "show", "tickover.quarantine/0/0").stdout
    for command in (["list", "--topic", "orders-dlq"], ["show", "orders-dlq/0/0"]):
        assert "order-99" in tickover("dead-letters", *command).stdout, "in a pipe cells are whole"
        with monkeypatch.context() as on_a_terminal:
            on_a_terminal.setattr("sidecar.cli.output.is_terminal", lambda: True)
            on_a_terminal.setenv("COLUMNS", "2000")
            cut, whole = (tickover("dead-letters", *command, *more).stdout for more in ([], ["--full"]))
        assert "order-10 " in cut
        assert "order-99" not in cut
        assert "order-99" in whole
        assert "order-<n>" not in cut + whole  # the name of the group
        data = tickover.data("dead-letters", *command)
        assert (data[0] if isinstance(data, list) else data)["error_message"] == message


def test_open_letters(tickover: Terminal) -> None:
    for _ in range(3):
        tickover.there.letters.add("orders-dlq", dead())
    tickover.there.redriven.write("3f9a0c", [Place("orders-dlq", 0, 1)])
    assert [item["offset"] for item in tickover.data("dead-letters", "list", "--open")] == [0, 2]
    assert "3f9a0c" in tickover("dead-letters", "list").stdout
    [group] = tickover.data("dead-letters", "groups")
    assert (group["count"], group["redriven"], group["open"]) == (3, 1, 2)
    assert tickover.data("dead-letters", "show", "orders-dlq/0/1")["redriven"]["plan"] == "3f9a0c"


def test_words_about_a_group_and_its_trend(tickover: Terminal) -> None:
    for n in range(3):
        tickover.there.letters.add("orders-dlq", dead(error_class="IO"), partition=n % 2)
    [group] = tickover.data("dead-letters", "groups", "--trend")
    assert (sum(group["trend"]["minutes"]), sum(group["trend"]["hours"])) == (3, 3)
    said = ["--topic", "orders-dlq", "--state", "resolved", "--note", "mended"]
    assert tickover.data("dead-letters", "group", group["fingerprint"], *said)["state"] == "resolved"
    assert "mended" in tickover("dead-letters", "groups").stdout
    tickover.there.letters.add("orders-dlq", dead(error_class="IO"), partition=1)
    assert [group["state"] for group in tickover.data("dead-letters", "groups")] == ["back_again"]


def test_groups_of_many_pages_are_added_up() -> None:
    one = {"topic": "a-dlq", "reason": "x", "fingerprint": "f", "first_seen": 5, "last_seen": 6, "state": "resolved"}
    counts = {"count": 2, "open": 1, "redriven": 1, "discarded": 0}
    pieces: list[dict[str, Any]] = [
        {**one, **counts, "trend": {"minutes": [1, 0], "hours": [2]}},
        {**one, **counts, "first_seen": 1, "state": "back_again", "trend": {"minutes": [1, 1], "hours": [0]}},
    ]
    [group] = added_up(pieces)
    assert (group["count"], group["open"], group["redriven"], group["discarded"]) == (4, 2, 2, 0)
    assert (group["state"], group["trend"]) == ("back_again", {"minutes": [2, 1], "hours": [2]})
    assert (group["first_seen"], group["last_seen"]) == (1, 6)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["show", "orders-dlq/0/3"], 3, "no topic of dead letters"),
        (["show", "orders-dlq"], 2, "topic/partition/offset"),
        (["list", "--topic", "nowhere"], 3, "nowhere"),
        (["list", "--since", "yesterday"], 2, "--since"),
        (["list", "--since", "10"], 2, "looks like epoch seconds"),
        (["list", "--since", "1.5"], 2, "--since"),
        (["list", "--limit", "0"], 2, "limit"),
        (["list", "--header", "trace"], 1, "header"),
        (["groups", "--until", "2026-01-01T00:00:00"], 2, "needs its zone"),
    ],
)
def test_slips(tickover: Terminal, arguments: list[str], status: int, says: str) -> None:
    result = tickover("dead-letters", *arguments)
    assert result.exit_code == status
    assert says in result.stderr


def test_times(tickover: Terminal) -> None:
    tickover.there.letters.add("orders-dlq", dead())  # of 2027
    assert len(tickover.data("dead-letters", "list", "--since", "2h")) == 1
    assert len(tickover.data("dead-letters", "list", "--since", "0")) == 1  # the epoch, not now
    assert len(tickover.data("dead-letters", "list", "--until", "0")) == 0
    assert len(tickover.data("dead-letters", "list", "--until", "2026-01-01T00:00:00Z")) == 0
    assert len(tickover.data("dead-letters", "list", "--since", "1800000000001")) == 0
