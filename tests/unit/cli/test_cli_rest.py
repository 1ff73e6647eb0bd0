"""Commands that talk to a sidecar, against the real REST interface over fakes."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from sidecar.cli.app import app
from sidecar.cli.output import Form, show
from sidecar.model.stats import Left
from tests.unit.api_world import NOW_MS, REMINDERS, RETRY, World, world


class Bridge(httpx.BaseTransport):
    """Carries requests of the synchronous client to the application."""

    def __init__(self, there: World) -> None:
        self._there = there

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = dict(request.headers)
        response = self._there.call(request.method, str(request.url), content=request.read(), headers=headers)
        return httpx.Response(response.status_code, headers=response.headers, content=response.content)


class CompressingBridge(Bridge):
    """A proxy that compresses for whoever takes it, and makes the ETag weak, as nginx does."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if "ETag" in response.headers and "gzip" in request.headers.get("Accept-Encoding", ""):
            response.headers["ETag"] = f"W/{response.headers['ETag']}"
            response.headers["Content-Encoding"] = "gzip"
            body = gzip.compress(response.content)
            return httpx.Response(response.status_code, headers=response.headers, content=body)
        return response


class Terminal:
    """A user with a sidecar."""

    def __init__(self, there: World) -> None:
        self.there = there
        self.bridge = Bridge(there)

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Result:
        result = CliRunner().invoke(app, list(arguments), obj=self.bridge, input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.stderr
        return result

    def data(self, *arguments: str) -> Any:
        result = self(*arguments, "-o", "json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)


@pytest.fixture
def tickover(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("CONFIG", "URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"TICKOVER_{name}", raising=False)
    with world() as there:
        yield Terminal(there)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policies.yaml"
    path.write_text(yaml.safe_dump_all([REMINDERS, RETRY]))
    return path


def test_apply_creates_then_leaves_alone_then_replaces(tickover: Terminal, file: Path) -> None:
    assert tickover.data("policies", "apply", "-f", str(file)) == [
        {"name": "reminders", "result": "created"},
        {"name": "orders-retry", "result": "created"},
    ]
    assert {row["result"] for row in tickover.data("policies", "apply", "-f", str(file))} == {"unchanged"}
    assert [len(tickover.there.policies.versions(name)) for name in ("reminders", "orders-retry")] == [1, 1]
    file.write_text(yaml.safe_dump_all([REMINDERS, {**RETRY, "retry": {**RETRY["retry"], "attempts": 7}}]))
    assert [row["result"] for row in tickover.data("policies", "apply", "-f", str(file))] == ["unchanged", "replaced"]
    assert "attempts: 7" in tickover("policies", "get", "orders-retry").stdout


def test_a_file_is_named_with_or_without_its_option(tickover: Terminal, file: Path) -> None:
    assert {row["result"] for row in tickover.data("policies", "apply", str(file))} == {"created"}
    assert [item["name"] for item in tickover.data("policies", "validate", "-f", str(file))] == [
        "reminders",
        "orders-retry",
    ]
    for verb in ("apply", "validate"):
        assert tickover("policies", verb).exit_code == 2
        assert tickover("policies", verb, str(file), "-f", str(file)).exit_code == 2


def test_what_a_change_did_is_data_when_a_form_is_asked_for(tickover: Terminal, file: Path) -> None:
    tickover("policies", "apply", "-f", str(file))
    assert tickover.data("policies", "delete", "reminders") == {"name": "reminders", "result": "deleted"}
    back = tickover.data("policies", "rollback", "reminders", "1")
    assert (back["name"], back["version"], back["policy"]["delay"]["default"]) == ("reminders", 3, "15m")


def test_apply_reads_stdin(tickover: Terminal) -> None:
    result = tickover("policies", "apply", "-f", "-", stdin=yaml.safe_dump(REMINDERS))
    assert result.exit_code == 0
    assert "created" in result.stdout


def test_apply_meets_a_faster_writer(tickover: Terminal, file: Path) -> None:
    tickover("policies", "apply", "-f", str(file))
    file.write_text(yaml.safe_dump_all([REMINDERS, {**RETRY, "retry": {**RETRY["retry"], "attempts": 7}}]))
    policies = tickover.there.policies

    def other_writer() -> None:
        policies.lost_race = lambda: None
        tickover.there.add(RETRY)

    policies.lost_race = other_writer
    result = tickover("policies", "apply", "-f", str(file))
    assert result.exit_code == 4
    assert "somebody else changed it" in result.stderr
    assert "unchanged" in result.stdout  # what was done before is still told


def test_a_policy_of_the_file_is_a_conflict(tickover: Terminal, file: Path) -> None:
    tickover.there.add({**REMINDERS, "delay": {"max": "1d"}}, "file")
    for arguments in (["apply", "-f", str(file)], ["delete", "reminders"], ["rollback", "reminders", "1"]):
        result = tickover("policies", *arguments)
        assert result.exit_code == 4
        assert "policies file" in result.stderr.lower()


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["schedules", "apply", "-f", "-", "--force"], "--force"),
        (["schedules", "delete", "tick", "--force"], "--force"),
        (["policies", "get", "reminders", "--payload"], "--payload"),
    ],
)
def test_a_kind_refuses_what_only_the_other_kind_takes(tickover: Terminal, arguments: list[str], option: str) -> None:
    result = tickover(*arguments)
    assert result.exit_code == 2
    assert f"No such option: {option}" in result.stderr


def test_force_deletes_a_policy_whose_topic_holds_messages(tickover: Terminal) -> None:
    tickover.there.add(REMINDERS)
    tickover.there.sources.holding = {"reminders": Left(3, 2)}
    assert tickover("policies", "delete", "reminders").exit_code == 4
    assert tickover("policies", "delete", "reminders", "--force").exit_code == 0


def test_list_get_delete_versions_rollback(tickover: Terminal, file: Path) -> None:
    tickover("policies", "apply", "-f", str(file))
    assert [item["name"] for item in tickover.data("policies", "list")] == ["orders-retry", "reminders"]
    table = tickover("policies", "list").stdout
    assert "mail-*, push" in table
    assert "retry" in table
    assert tickover.data("policies", "get", "reminders")["delay"]["default"] == "15m"
    deleted = tickover("policies", "delete", "reminders")
    assert (deleted.exit_code, deleted.stdout) == (0, "")
    assert tickover("policies", "get", "reminders").exit_code == 3
    assert tickover("policies", "delete", "reminders").exit_code == 3
    back = tickover("policies", "rollback", "reminders", "1")
    assert back.exit_code == 0
    assert "now version 3" in back.stderr or "this is version 3" in back.stderr
    history = tickover.data("policies", "versions", "reminders")
    assert [version["version"] for version in history] == [1, 2, 3]
    shown = tickover("policies", "versions", "reminders").stdout
    assert "deleted" in shown
    assert "2027-01-15T08:00:00.000Z" in shown
    assert tickover("policies", "rollback", "reminders", "9").exit_code == 3
    assert tickover("policies", "rollback", "reminders", "0").exit_code == 2
    assert tickover("policies", "versions", "nobody").exit_code == 3


def test_a_name_cannot_leave_its_place_in_the_path(tickover: Terminal) -> None:
    assert tickover("policies", "get", "../stats").exit_code == 3
    assert tickover("policies", "get", "a?b=c").exit_code == 3
    assert tickover("policies", "get", "\udcff").exit_code == 3


def test_explain_shows_decision_and_attempts(tickover: Terminal, file: Path) -> None:
    arguments = ["policies", "explain", "--topic", "orders-retry", "-f", str(file), "--policy", "orders-retry"]
    answer = tickover.data(*arguments, "--timestamp", str(NOW_MS), "--header", "tickover-attempt=2")
    assert answer["decision"]["due"] == NOW_MS + 2_000
    assert [step["attempt"] for step in answer["schedule"]] == [3, 4, 5, 6]
    table = tickover(*arguments, "--timestamp", "2027-01-15T08:00:00Z").stdout
    assert "2027-01-15T08:00:01.000Z" in table
    assert "attempts_exhausted" in table
    at = tickover.data(*arguments, "--partition", "3", "--offset", "7", "--timestamp", str(NOW_MS))
    named = ("--place", "orders-retry/3/7", "--policy", "orders-retry", "--timestamp", str(NOW_MS))
    assert tickover.data("policies", "explain", "-f", str(file), *named) == at
    for wrong in ((), ("--topic", "t", "--place", "t/0/1"), ("--place", "t/0/1", "--offset", "0")):
        result = tickover("policies", "explain", *wrong)
        assert (result.exit_code, "or --place" in result.stderr) == (2, True)
    assert tickover("policies", "explain", "--topic", "t", "--policy", "nobody").exit_code == 3
    assert tickover("policies", "explain", "--topic", "t", "-f", str(file)).exit_code == 2
    assert tickover(*arguments, "--timestamp", "1800000000").exit_code == 2


def test_send_carries_everything(tickover: Terminal, tmp_path: Path) -> None:
    tickover.there.add(REMINDERS)
    (tmp_path / "value").write_bytes(b"\xff\x00")
    arguments = ["--target", "push", "--source", "reminders", "--key", "k", "--id", "i-1", "--delay", "90s"]
    arguments += ["--value-file", str(tmp_path / "value"), "--header", "a=1", "--header", "a=2=3", "--header", "b="]
    answer = tickover.data("messages", "send", *arguments)
    assert answer["id"] == "i-1"
    assert answer["due"] == NOW_MS + 90_000
    [record] = tickover.there.sender.sent
    assert (record.key, record.value) == (b"k", b"\xff\x00")
    assert list(record.headers[:3]) == [("a", b"1"), ("a", b"2=3"), ("b", b"")]


@pytest.mark.parametrize(
    ("arguments", "stdin", "value"),
    [
        ([], b"", None),
        (["--value", ""], b"", b""),
        (["--value", "h\u00e9"], b"", "h\u00e9".encode()),
        (["--value-file", "-"], b"from stdin", b"from stdin"),
    ],
)
def test_values_of_a_message(tickover: Terminal, arguments: list[str], stdin: bytes, value: bytes | None) -> None:
    tickover.there.add(REMINDERS)
    result = tickover("messages", "send", "--target", "push", *arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    assert "position.topic" in result.stdout
    assert tickover.there.sender.sent[0].value == value


def test_a_message_that_expires(tickover: Terminal) -> None:
    tickover.there.add(REMINDERS)
    when = "2030-01-01T00:00:00Z"
    tickover.data("messages", "send", "--target", "push", "--expires-at", when, "--target-partition", "2")
    headers = dict(tickover.there.sender.sent[0].headers)
    assert (headers["tickover-expires-at"], headers["tickover-target-partition"]) == (when.encode(), b"2")


def test_the_same_idempotency_key_sends_once(tickover: Terminal) -> None:
    tickover.there.add(REMINDERS)
    arguments = ["messages", "send", "--target", "push", "--idempotency-key", "once"]
    assert tickover.data(*arguments) == tickover.data(*arguments)
    assert len(tickover.there.sender.sent) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--delay", "1s", "--deliver-at", "2030-01-01T00:00:00Z"], "not both"),
        (["--delay", "soon"], "--delay: not a duration"),
        (["--delay", "10"], "10s? 10ms?"),
        (["--delay", "1.5"], "1.5s? 1.5ms?"),
        (["--spread", "30"], "--spread: a duration needs its unit"),
        (["--deliver-at", "2030-01-01T00:00:00"], "needs its zone"),
        (["--expires-at", "soon"], "--expires-at: not a time"),
        (["--value", "a", "--value-file", "b"], "not both"),
        (["--value-file", "/does/not/exist"], "No such file"),
        (["--header", "novalue"], "name=value"),
        (["--key", "\udcff"], "not UTF-8"),
        (["--idempotency-key", "\u00e9"], "not UTF-8"),
    ],
)
def test_slips_are_usage_and_reach_no_sidecar(tickover: Terminal, arguments: list[str], says: str) -> None:
    result = tickover("messages", "send", "--target", "push", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert tickover.there.sender.sent == []


def test_a_time_in_the_past_must_be_meant(tickover: Terminal) -> None:
    tickover.there.add(REMINDERS)
    arguments = ["messages", "send", "--target", "push", "--deliver-at", "2027-01-15T07:58:59Z"]
    refused = tickover(*arguments)
    assert (refused.exit_code, tickover.there.sender.sent) == (1, [])
    assert "more than a minute in the past" in refused.stderr
    assert "--past" in refused.stderr
    assert tickover.data(*arguments, "--past")["due_utc"] == "2027-01-15T07:58:59.000Z"
    assert tickover("messages", "send", "--target", "push", "--delay", "0").exit_code == 0


def test_a_refused_message_says_why(tickover: Terminal) -> None:
    tickover.there.add(REMINDERS)
    result = tickover("messages", "send", "--target", "elsewhere", "--source", "reminders", "--delay", "1s")
    assert result.exit_code == 1
    assert "(422)" in result.stderr


def test_control_characters_of_others_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "a\x1b[2Jb\nc"}], Form.TABLE)
    assert "a\\x1b[2Jb\\nc" in capsys.readouterr().out


def test_writes_go_through_a_proxy_that_compresses(tickover: Terminal, file: Path) -> None:
    tickover.bridge = CompressingBridge(tickover.there)
    tickover.data("policies", "apply", "-f", str(file))
    file.write_text(yaml.safe_dump_all([{**REMINDERS, "delay": {"default": "20m"}}]))
    assert tickover.data("policies", "apply", "-f", str(file)) == [{"name": "reminders", "result": "replaced"}]
    assert tickover.data("policies", "rollback", "reminders", "1")["version"] == 3
    assert tickover("policies", "delete", "reminders").exit_code == 0


@pytest.mark.parametrize(
    ("host", "address"),
    [("::", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("[::1]", "[::1]"), ("localhost", "localhost")],
)
def test_the_sidecar_of_the_settings_is_called_where_it_listens(
    host: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKOVER_API__HOST", host)
    monkeypatch.setenv("TICKOVER_API__PORT", "1")  # where nobody answers
    monkeypatch.setenv("TICKOVER_API__ALLOW_UNAUTHENTICATED", "true")
    monkeypatch.delenv("TICKOVER_URL", raising=False)
    result = CliRunner().invoke(app, ["policies", "list"])
    assert f"nobody answers at http://{address}:1:" in result.stderr


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        ("http://one:1", httpx.RemoteProtocolError("Server disconnected"), "Server disconnected; does it speak https?"),
        ("https://one:1", httpx.RemoteProtocolError("Server disconnected"), "https://one:1: Server disconnected\n"),
        ("https://one:1", httpx.ConnectError("CERTIFICATE: Hostname mismatch"), "a name that its certificate has"),
        ("https://one:1", httpx.ConnectError("CERTIFICATE: self-signed"), "in TICKOVER_CA_FILE"),
    ],
)
def test_an_address_that_does_not_fit_the_certificate_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, url: str, error: httpx.HTTPError, says: str
) -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        raise error

    monkeypatch.setenv("TICKOVER_URL", url)
    result = CliRunner().invoke(app, ["messages", "list"], obj=httpx.MockTransport(refuse))
    assert result.exit_code == 1
    assert says in result.stderr


def test_two_versions_of_a_policy_beside_each_other(tickover: Terminal, file: Path) -> None:
    tickover("policies", "apply", "-f", str(file))
    file.write_text(yaml.safe_dump({**RETRY, "retry": {**RETRY["retry"], "attempts": 7}}))
    tickover("policies", "apply", "-f", str(file))
    told = tickover("policies", "diff", "orders-retry", "1").stdout.splitlines()
    attempts = RETRY["retry"]["attempts"]
    assert [line for line in told if line[0] != " "] == [f"-  attempts: {attempts}", "+  attempts: 7"]
    assert " name: orders-retry" in told
    assert tickover("policies", "diff", "orders-retry", "2", "1").stdout.splitlines() != told
    assert "are equal" in tickover("policies", "diff", "orders-retry", "1", "1").stderr
    assert tickover("policies", "diff", "orders-retry", "1", "9").exit_code == 3
    tickover("policies", "delete", "orders-retry")
    gone = tickover("policies", "diff", "orders-retry", "2").stdout.splitlines()
    assert gone
    assert {line[0] for line in gone} == {"-"}
