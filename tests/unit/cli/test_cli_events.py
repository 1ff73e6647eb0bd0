"""`tickover events`: a line for each event, over lost connections, until Ctrl-C."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from api.events.ring import Difference, Event
from sidecar.cli.app import app
from sidecar.cli.output import Failure
from sidecar.cli.overview import events as commands
from sidecar.cli.overview.events import read_events

POLICIES = Event("run-1", "policies", 1_800_000_000_000, Difference(("a", "b"), ("c",), (), 7))
RESET = Event("run-0", "reset", 1_800_000_000_000)


def written(*events: Event) -> str:
    told = [f"event: {one.name}\ndata: {json.dumps(one.document)}\nid: {one.id}\n\n" for one in events]
    return "retry: 2000\n\n: nothing\n\n" + "".join(told)


def stream(*events: Event) -> httpx.Response:
    return httpx.Response(200, text=written(*events))


def problem(status: int) -> httpx.Response:
    return httpx.Response(status, json={"type": "/problems/x", "title": "X", "detail": "Not now."})


def lost(request: httpx.Request) -> httpx.Response:
    raise httpx.RemoteProtocolError("peer closed connection")


def interrupted(request: httpx.Request) -> httpx.Response:
    raise KeyboardInterrupt


Answer = httpx.Response | Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "AGAIN_S", 0.0)


def follow(*answers: Answer, options: tuple[str, ...] = ()) -> tuple[Result, list[httpx.Request]]:
    """Result of the command, and requests that it made."""
    given: Iterator[Answer] = iter((*answers, interrupted))
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        one = next(given)
        return one if isinstance(one, httpx.Response) else one(request)

    arguments = ["events", "--url", "http://127.0.0.1:1", *options]
    return CliRunner().invoke(app, arguments, obj=httpx.MockTransport(answer)), asked


def test_an_event_is_a_line() -> None:
    result, asked = follow(stream(RESET, POLICIES), options=("--event", "policies", "--event", "pauses"))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "2027-01-15T08:00:00.000Z reset: read all again",
        "2027-01-15T08:00:00.000Z policies: added a, b; changed c; 7 more",
    ]
    assert asked[0].url.query == b"event=policies&event=pauses"


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_or_a_line_of_json(form: str) -> None:
    result, _ = follow(stream(RESET, POLICIES), options=("-o", form))
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert told[1] == json.loads(json.dumps({"event": "policies", **POLICIES.document, "id": "run-1"}))


def test_or_a_document_of_yaml() -> None:
    result, _ = follow(stream(RESET, POLICIES), options=("-o", "yaml"))
    assert [one["event"] for one in yaml.safe_load_all(result.stdout)] == ["reset", "policies"]


def test_a_lost_stream_is_resumed() -> None:
    later = Event("run-2", "pauses", 1_800_000_000_000, Difference(removed=("target/push",)))
    result, asked = follow(stream(RESET, POLICIES), lost, problem(503), problem(429), stream(later), stream())
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 3
    assert [request.headers.get("last-event-id") for request in asked] == [None, *["run-1"] * 4, "run-2", "run-2"]
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["http", "it answers again"]


@pytest.mark.parametrize(("answer", "words"), [(lost, "peer closed"), (problem(503), "503"), (problem(401), "401")])
def test_one_that_never_answers_is_a_failure(answer: Answer, words: str) -> None:
    result, asked = follow(answer)
    assert (result.exit_code, len(asked)) == (1, 1)
    assert words in result.stderr


def test_one_that_refuses_later_is_a_failure() -> None:
    result, _ = follow(stream(RESET), problem(403))
    assert result.exit_code == 1
    assert "403" in result.stderr


def test_what_is_cut_off_was_not_sent_and_what_is_no_event_is_said() -> None:
    text = written(RESET, POLICIES)
    for end in range(len(text) - 1):
        ids = [one["id"] for one in read_events(text[:end].split("\n")[:-1])]
        assert ids in ([], ["run-0"])
    with pytest.raises(Failure, match="not a stream"):
        list(read_events(["data: <html>", ""]))
