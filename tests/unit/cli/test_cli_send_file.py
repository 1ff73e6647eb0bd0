"""`tickover messages send --file`: CSV and JSON lines, against the real REST interface over fakes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.message import BATCH_MAX as REST_BATCH_MAX
from api.ports import SenderUnavailable
from sidecar.model import message_file
from sidecar.model.message_file import BATCH_MAX, Line, MessageFileError, batches, messages_in
from tests.unit.api_world import NOW_MS, REMINDERS, world
from tests.unit.cli.test_cli_rest import Terminal

OK, FAILED, USAGE = range(3)
CSV = 'target,key,value,delay,header.tenant,id,target_partition\npush,k,"a, ""b""\nc",1m,gold,m-1,3\n,,,2m,,m-2,\n'


@pytest.fixture
def tickover(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)
    with world() as there:
        there.add(REMINDERS)
        yield Terminal(there)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "messages.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def test_a_csv_with_a_default_for_what_it_leaves_out(tickover: Terminal, file: Path) -> None:
    answer = tickover("messages", "send", "--file", str(file), "--target", "mail-x", "-o", "jsonl")
    assert (answer.exit_code, answer.stderr) == (OK, "2 sent, 0 refused\n")
    first, second = map(json.loads, answer.stdout.splitlines())
    assert (first["line"], first["id"], first["due"]) == (3, "m-1", NOW_MS + 60_000)
    assert (second["line"], second["id"]) == (4, "m-2")
    one, other = tickover.there.sender.sent
    assert (one.key, one.value) == (b"k", b'a, "b"\nc')
    assert dict(one.headers) == {
        "tenant": b"gold", "tickover-delay": b"1m", "tickover-target": b"push", "tickover-id": b"m-1",
        "tickover-target-partition": b"3",
    }  # fmt: skip
    assert (other.key, other.value, dict(other.headers)["tickover-target"]) == (None, None, b"mail-x")


def test_json_lines_from_stdin_and_what_is_refused(tickover: Terminal) -> None:
    lines = ['{"target": "push", "id": "a"}', "", '{"target": "push", "delay": "401d", "id": "b"}']
    answer = tickover("messages", "send", "--file", "-", stdin="\n".join(lines))
    assert answer.exit_code == FAILED
    assert "1 sent, 1 refused" in answer.stderr
    rows = [line.split("\t") for line in answer.stdout.splitlines()]
    assert [row[:3] for row in rows] == [["LINE", "STATUS", "ID"], ["1", "202", "a"], ["3", "422", "b"]]
    assert rows[2][5]


def test_a_dry_run_sends_nothing(tickover: Terminal, file: Path) -> None:
    answer = tickover("messages", "send", "--file", str(file), "--target", "push", "--dry-run")
    assert (answer.exit_code, answer.stderr) == (OK, "2 would be sent, 0 refused\n")
    assert "m-1" in answer.stdout
    assert tickover.there.sender.sent == []


def test_a_file_that_is_sent_again_under_its_key_is_sent_once(
    tickover: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_file, "BATCH_MAX", 2)
    file = tmp_path / "messages.jsonl"
    file.write_text("".join(f'{{"target": "push", "value": "{number}"}}\n' for number in range(5)))
    arguments = ("messages", "send", "--file", str(file), "--idempotency-key", "k", "-o", "jsonl")
    first = tickover(*arguments)
    assert first.exit_code == OK
    assert tickover(*arguments).stdout == first.stdout
    assert [record.value for record in tickover.there.sender.sent] == [b"0", b"1", b"2", b"3", b"4"]


def test_how_far_it_came_is_said_when_it_ends_early(
    tickover: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_file, "BATCH_MAX", 1)
    file = tmp_path / "messages.jsonl"
    file.write_text('{"target": "push"}\n{"target": "push"}\nx\n')
    answer = tickover("messages", "send", "--file", str(file))
    assert answer.exit_code == USAGE
    assert "line 3: not JSON; 1 sent before" in answer.stderr
    tickover.there.sender.failures = [SenderUnavailable("timed out")]
    assert tickover("messages", "send", "--file", str(file)).exit_code == USAGE
    tickover.there.idempotency.down = True
    answer = tickover("messages", "send", "--file", str(file), "--idempotency-key", "k")
    assert answer.exit_code == FAILED
    assert "0 sent before" in answer.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no heading"),
        ("target,colour\n", "no column 'colour'"),
        ("target,target\n", "stands twice"),
        ("target,header.\n", "no column"),
        ("target,key\npush\n", "line 2: 1 cells, and 2"),
        ('target\n"push\n', "line 2"),
        ("target,target_partition\npush,x\n", "line 2: target_partition"),
        ('{"target": 1}\n[]\n', "line 2: not a JSON object"),
        ("{\n", "line 1: not JSON"),
    ],
)
def test_what_is_no_file_of_messages(text: str, problem: str) -> None:
    with pytest.raises(MessageFileError, match=problem):
        list(messages_in(text.splitlines(keepends=True)))


def test_options_that_do_not_go_together(tickover: Terminal, file: Path, tmp_path: Path) -> None:
    for more in (["--key", "k"], ["--delay", "1m"], ["--value", ""]):
        assert tickover("messages", "send", "--file", str(file), *more).exit_code == USAGE
    assert tickover("messages", "send", "--value", "x").exit_code == USAGE
    assert tickover("messages", "send", "--target", "push", "--dry-run").exit_code == USAGE
    assert tickover("messages", "send", "--file", str(tmp_path / "none")).exit_code == USAGE
    file.write_bytes(b"target\n\xff\n")
    assert tickover("messages", "send", "--file", str(file)).exit_code == USAGE


def test_batches_are_as_large_as_a_request_may_be() -> None:
    assert BATCH_MAX == REST_BATCH_MAX
    assert [len(batch) for batch in batches(Line(n, {}) for n in range(1_001))] == [500, 500, 1]
    large = [Line(n, {"value": "x" * 400_000}) for n in range(3)]
    assert [len(batch) for batch in batches(large)] == [2, 1]
    many = [Line(n, {"headers": [["a", "b"]] * 100}) for n in range(100)]
    assert max(len(batch) for batch in batches(many)) < 100
    assert sum(len(batch) for batch in batches(many)) == 100
