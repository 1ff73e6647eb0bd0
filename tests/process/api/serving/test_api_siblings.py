"""Several processes at one port: each is a server of its own here, with its own loop, as in a process of its own."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from api.serving import listener
from api.serving import siblings as module
from api.serving.certificate import Certificate
from api.serving.listener import Starting
from api.serving.server import Server
from api.serving.siblings import Siblings
from api.serving.sockets import Listening, Sockets, open_sockets
from tests.services.certificates import Authority
from tests.unit.api_world import world

pytestmark = pytest.mark.slow

ANSWER_S = 60.0
REQUESTS = 20  # so many new connections that each process has taken some
HELD = "# TYPE tickover_held gauge\ntickover_held 1\n"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is slow on a busy machine is none that hangs."""
    monkeypatch.setattr(module, "ANSWER_S", ANSWER_S)


class Telling:
    """An application that says whom it takes the caller for."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = scope["client"][0] + (", a stranger" if scope.get("state", {}).get("nobody_is_known") else "")
        answers: dict[str, ASGIApp] = {
            "/livez": JSONResponse({"status": "alive"}),
            "/readyz": JSONResponse({"status": "ready", "warnings": [caller]}),
            "/metrics": PlainTextResponse(HELD),
        }
        await answers.get(scope["path"], JSONResponse({"name": self.name, "caller": caller}))(scope, receive, send)


class Hanging:
    """An application that never answers, as long as the caller waits."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class Row:
    """Servers at one port, by their numbers from 1."""

    def __init__(self, directory: Path, count: int, listening: Listening, path: str = "") -> None:
        self._listening = listening
        self._all = Siblings(0, count, open_sockets("127.0.0.1", 0, listening), directory, path)
        self.servers: dict[int, Server] = {}
        self.port = self._all.sockets.api.getsockname()[1]
        self.probe_port = self._all.sockets.probes.getsockname()[1] if self._all.sockets.probes else 0
        self.client = httpx.Client(timeout=ANSWER_S, headers={"connection": "close"})

    def start(self, number: int, app: ASGIApp) -> None:
        api, probes = self._all.sockets.api.dup(), self._all.sockets.probes  # as a process has it from its parent
        own = replace(self._all, number=number, sockets=Sockets(api, probes.dup() if probes else None))
        self.servers[number] = Server(app, "", 0, self._listening, own)
        self.servers[number].start()

    def get(self, path: str, headers: dict[str, str] | None = None, port: int = 0) -> httpx.Response:
        return self.client.get(f"http://127.0.0.1:{port or self.port}{path}", headers=headers)

    def close(self) -> None:
        self.client.close()
        for server in self.servers.values():
            server.stop()
        self._all.sockets.close()


@contextmanager
def row(directory: Path, *apps: ASGIApp, listening: Listening = Listening(), path: str = "") -> Iterator[Row]:  # noqa: B008 - frozen
    made = Row(directory, len(apps), listening, path)
    try:
        for number, app in enumerate(apps, 1):
            made.start(number, app)
        yield made
    finally:
        made.close()


def test_each_process_answers_and_what_is_about_all_is_asked_of_all(tmp_path: Path) -> None:
    with world() as api, row(tmp_path, api.app, Telling("b")) as processes:  # two would make their models at once
        for _ in range(REQUESTS):
            assert processes.get("/livez").json() == {"status": "alive"}
        assert processes.get("/readyz").json() == {"status": "ready", "warnings": ["process 2: 127.0.0.1"]}
        scraped = processes.get("/metrics")
        assert scraped.headers["content-type"].startswith("text/plain")  # as who was asked has it
        assert scraped.headers["x-content-type-options"] == "nosniff"
        assert 'tickover_ready{process="1"} 1.0' in scraped.text
        assert 'tickover_held{process="2"} 1.0' in scraped.text
        for number in "12":
            assert f'tickover_process_up{{process="{number}"}} 1.0' in scraped.text
        head = processes.client.head(f"http://127.0.0.1:{processes.port}/readyz")
        assert (head.status_code, head.content) == (200, b"")


def test_the_path_of_a_proxy_may_be_before_it(tmp_path: Path) -> None:
    with row(tmp_path, Telling("a"), Telling("b"), path="/tickover") as processes:
        assert 'process="2"' in processes.get("/tickover/metrics").text
        assert 'process="2"' in processes.get("/metrics").text


def test_a_caller_has_its_own_address_at_every_process_and_can_claim_no_other(tmp_path: Path) -> None:
    claims = {"Tickover-Caller": "192.0.2.1", "Tickover-Stranger": "1"}
    with row(tmp_path, Telling("a"), Telling("b"), listening=Listening(probe_port=0)) as processes:
        assert processes.get("/readyz", claims).json()["warnings"] == ["process 1, 2: 127.0.0.1"]
        assert processes.get("/v1/stats", claims).json()["caller"] == "127.0.0.1"
        told = processes.get("/readyz", claims, processes.probe_port).json()
        assert told["warnings"] == ["process 1, 2: 127.0.0.1, a stranger"]


def test_by_https_as_by_http(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    identity = authority.identity("first")
    listening = Listening(certificate=Certificate(str(identity.certificate), str(identity.key)))
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        row(tmp_path, Telling("a"), Telling("b"), listening=listening) as processes,
        httpx.Client(base_url=f"https://localhost:{processes.port}", verify=trusting, timeout=ANSWER_S) as client,
    ):
        assert 'tickover_held{process="2"} 1.0' in client.get("/metrics").text
        assert client.get("/readyz").json()["warnings"] == ["process 1, 2: 127.0.0.1"]
        assert client.get("/v1/stats").json()["caller"] == "127.0.0.1"


def test_one_that_does_not_answer_is_told_apart_from_one_that_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with row(tmp_path, Telling("a"), Hanging()) as processes:
        monkeypatch.setattr(module, "ANSWER_S", 0.2)
        told = processes.get("/livez")
        assert (told.status_code, told.json()["detail"]) == (503, "process 2: it does not answer")
        monkeypatch.setattr(module, "ANSWER_S", ANSWER_S)
        processes.servers[2].stop()
        assert processes.get("/livez").json() == {"status": "alive"}
        not_ready = processes.get("/readyz")
        assert (not_ready.status_code, not_ready.json()["problems"]) == (503, ["process 2: it is not there"])
        assert 'tickover_process_up{process="2"} 0.0' in processes.get("/metrics").text
        processes.start(2, Telling("b"))
        assert processes.get("/readyz").status_code == 200


def test_who_is_starting_leaves_requests_to_those_who_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "GIVE_WAY_S", 2.0)  # the others are slow here
    starting = Starting()
    with row(tmp_path, starting, Telling("b")) as processes:
        answers: list[Any] = [processes.get("/v1/stats").json() for _ in range(REQUESTS)]
        assert {answer.get("name") for answer in answers} == {"b"}
        starting.app = Telling("a")
        names: set[str] = set()
        while names != {"a", "b"}:  # the test's time limit ends it
            names.add(processes.get("/v1/stats").json()["name"])


def test_where_all_are_starting_one_of_them_says_so(tmp_path: Path) -> None:
    with row(tmp_path, Starting(), Starting()) as processes:
        assert processes.get("/v1/stats").status_code == 503
        assert processes.get("/livez").json() == {"status": "starting"}
        assert processes.get("/livez?started=true").status_code == 503
