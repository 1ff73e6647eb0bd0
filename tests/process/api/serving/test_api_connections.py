"""Effects of a stranger's socket on the API: none on others, and none for long."""

import asyncio
import json
import logging
import resource
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from api.access.auth import Role, load_tokens
from api.answer_headers import DEFAULT_HEADERS, SAFE_HEADERS
from api.serving.certificate import Certificate
from api.serving.connection import Connection, Deadlines
from api.serving.connection_limit import ConnectionLimit, network_of
from api.serving.listener import Listener
from api.serving.server import Server
from api.serving.sockets import BindError, Listening, listening_of
from sidecar.settings.api import ApiSettings
from tests.services.certificates import Authority
from tests.services.waiting import wait_until
from tests.unit.api.access.test_api_auth import bearer, tokens_file
from tests.unit.api_world import REMINDERS, world

pytestmark = pytest.mark.slow

ANSWER_S = 60.0
SILENT = 1_100
LARGE = 32 << 20  # more than the system takes at once
SHORT = Deadlines(0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2)
HEAD = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@contextmanager
def serving(app: ASGIApp, **options: Any) -> Iterator[Server]:
    server = Server(app, "127.0.0.1", 0, Listening(**options))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def connected(port: int, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), ANSWER_S, (source, 0)) as client:
        yield client


def whole_answer(client: socket.socket) -> bytes:
    """Bytes that come until the connection is closed; by a reset, if a byte was sent when it was closed already."""
    answer = b""
    while True:
        try:
            piece = client.recv(65_536)
        except ConnectionResetError:
            if answer:
                return answer
            raise
        if not piece:
            return answer
        answer += piece


def check_problem(answer: bytes, status: int, type: str) -> str:
    """Check all of the answer; the name of its request."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert lines[0].startswith(f"HTTP/1.1 {status} ")
    document = json.loads(body)
    assert document["type"] == f"/problems/{type}"
    assert document["request_id"] == headers["x-request-id"] != ""
    assert headers["content-type"] == "application/problem+json"
    for name, value in {**SAFE_HEADERS, **DEFAULT_HEADERS}.items():
        assert headers[name.lower()] == value.lower()
    return headers["x-request-id"]


class Busy:
    """An application whose requests but for probes wait until they are let go."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.entered = threading.Semaphore(0)
        self.leave = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/wait":
            self.entered.release()
            await asyncio.to_thread(self.leave.wait)
        await self.app(scope, receive, send)


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("begun", [b"", b"GET /livez HTTP/1.1\r\nHost: loc"], ids=["silent", "half a head"])
def test_connections_that_ask_nothing_keep_nobody_out(begun: bytes, many_files: None) -> None:
    with world() as api, serving(api.app, probe_port=0) as server, ExitStack() as strangers:
        api.add(REMINDERS)
        for _ in range(SILENT):
            strangers.enter_context(connected(server.port)).sendall(begun)
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=ANSWER_S) as client:
            assert client.get("/livez").status_code == 200
            assert client.post("/v1/messages", json={"target": "push"}).status_code == 202
        assert httpx.get(f"http://127.0.0.1:{server.probe_port}/livez", timeout=ANSWER_S).status_code == 200


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", b""),
        (b"GET /livez HTTP/1.1\r\nX: ", b"408"),
        (HEAD + b"Content-Length: 1000\r\n\r\n{", b"408"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n{", b"408"),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", b"200"),
    ],
    ids=["nothing", "head", "body", "chunked", "a request, then nothing", "an answer before the body"],
)
def test_who_stops_in_the_middle_is_let_go(sent: bytes, answered: bytes) -> None:
    with world() as api, serving(api.app, deadlines=SHORT) as server, connected(server.port) as client:
        client.sendall(sent)
        answer = whole_answer(client)
    assert answer.split(b" ", 2)[1:2] == ([answered] if answered else [])
    if answered == b"408":
        check_problem(answer, 408, "request-timeout")


def drip(client: socket.socket, every_s: float, less_than: int) -> None:
    """Send byte by byte until there is an answer."""
    sent = 0
    while not select.select([client], [], [], every_s)[0]:
        client.sendall(b" ")
        sent += 1
        assert sent < less_than


@pytest.mark.parametrize(
    "begun", [b"GET /livez HTTP/1.1\r\nX: ", HEAD + b"Content-Length: 1000000\r\n\r\n"], ids=["head", "body"]
)
def test_bytes_that_come_one_by_one_don_t_move_a_deadline(begun: bytes) -> None:
    with world() as api, serving(api.app, deadlines=SHORT) as server, connected(server.port) as client:
        client.sendall(begun)
        drip(client, every_s=0.02, less_than=100)
        check_problem(whole_answer(client), 408, "request-timeout")


def test_who_is_late_with_its_body_is_recorded_as_it_was_told() -> None:
    with world() as api, serving(api.app, deadlines=SHORT) as server:
        with connected(server.port) as client:
            client.sendall(HEAD + b"Content-Length: 9\r\n\r\n{")
            named = check_problem(whole_answer(client), 408, "request-timeout")
        wait_until(lambda: bool(api.audited))
        [record] = api.audited
        assert (record["status"], record["outcome"], record["request_id"]) == (408, "refused", named)


def test_who_does_not_read_its_answer_is_cut_off() -> None:
    ended = threading.Event()

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": b" " * 65_536, "more_body": True})
        await send({"type": "http.response.body"})
        ended.set()

    with serving(large, deadlines=SHORT) as server, connected(server.port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ended.wait(ANSWER_S)


@pytest.mark.parametrize(
    ("sent", "status", "type"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "bad-request"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad-request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000, 431, "headers-too-large"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "not-implemented"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nno number\r\n", 400, "bad-request"),
    ],
    ids=["TLS", "no host", "long head", "encoding", "chunk"],
)
def test_what_is_no_http_gets_a_problem_with_safe_headers(sent: bytes, status: int, type: str) -> None:
    with world() as api, serving(api.app) as server, connected(server.port) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        check_problem(whole_answer(client), status, type)


def test_bad_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with world() as api, serving(api.app) as server:
        upgrade = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
        for sent in (b"\x00\r\n\r\n", upgrade, HEAD + b"Content-Length: 2\r\n\r\n{"):
            for _ in range(50):
                with connected(server.port) as client:
                    client.sendall(sent)
                    client.shutdown(socket.SHUT_WR)
                    whole_answer(client)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) <= 2


def test_only_requests_under_way_count_and_probes_never(many_files: None) -> None:
    with world() as api:
        busy = Busy(api.app)
        with serving(busy, probe_port=0, under_way_max=3) as server, ExitStack() as strangers:
            for _ in range(3):
                client = strangers.enter_context(connected(server.port))
                client.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert busy.entered.acquire(timeout=ANSWER_S)
            with connected(server.port) as client:
                client.sendall(b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
                check_problem(whole_answer(client), 503, "too-many-requests-under-way")
            for probe in ("/livez", "/readyz"):
                answer = httpx.get(f"http://127.0.0.1:{server.probe_port}{probe}", timeout=ANSWER_S)
                assert answer.status_code == 200
            busy.leave.set()
            wait_until(lambda: is_let_in(server.port))


def whole_head(client: socket.socket) -> bytes:
    client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    return whole_answer(client)


def test_the_probes_own_listener_answers_nothing_else() -> None:
    with world() as api, serving(api.app, probe_port=0) as server, httpx.Client(timeout=ANSWER_S) as client:
        url = f"http://127.0.0.1:{server.probe_port}"
        for path in ("/v1/stats", "/metrics", "/docs", "/livez/x", "//livez"):
            answer = client.get(url + path)
            assert (answer.status_code, answer.headers["x-frame-options"]) == (404, "DENY")
        assert client.delete(f"{url}/livez").status_code == 405


def test_the_probes_own_listener_names_no_hosts(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    for tokens, headers in ((None, {}), (load_tokens(path), bearer(given[Role.ADMIN]))):
        with world(tokens=tokens) as api, serving(api.app, probe_port=0) as server:
            api.change_stats(kafka_problem="kafka-7.shop.internal")
            own, shared = (
                httpx.get(f"http://127.0.0.1:{port}/readyz", headers=headers, timeout=ANSWER_S)
                for port in (server.probe_port, server.port)
            )
            assert own.status_code == shared.status_code == 503
            assert "internal" in shared.text
            assert "internal" not in own.text


def test_a_taken_port_of_the_probes_leaves_the_other_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, world() as api:
        port = taken.getsockname()[1]
        server = Server(api.app, "127.0.0.1", 0, Listening(probe_port=port))
        with pytest.raises(BindError, match=rf"can't listen on 127\.0\.0\.1 port {port}: .*API__PROBE_PORT"):
            server.start()
        with socket.create_server(("127.0.0.1", server.port)):
            pass
        taken.close()
        server.start()  # once more
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=ANSWER_S).status_code == 200
        finally:
            server.stop()


def close_and_fail(_: Listener, accepted: socket.socket, host: str) -> None:
    accepted.close()
    raise ZeroDivisionError(host)


def connect(port: int) -> None:
    with connected(port):
        pass


def test_a_part_that_fails_ends_the_server(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(Listener, "_let_in", close_and_fail)
    with world() as api, serving(api.app, probe_port=0) as server:
        connect(server.port)
        wait_until(lambda: isinstance(server.failure, ZeroDivisionError))
    assert "the API ends" in caplog.text


def test_one_address_leaves_room_for_others() -> None:
    with world() as api:
        busy = Busy(api.app)
        with serving(busy, connections_per_address=2) as server, ExitStack() as strangers:
            for _ in range(2):
                client = strangers.enter_context(connected(server.port, "127.0.0.2"))
                client.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert busy.entered.acquire(timeout=ANSWER_S)
            with connected(server.port, "127.0.0.2") as client:
                assert client.recv(1) == b""
            with connected(server.port) as client:
                assert whole_head(client).startswith(b"HTTP/1.1 200 ")
            busy.leave.set()


def test_who_goes_away_in_the_middle_leaves_its_place() -> None:
    with world() as api:
        busy = Busy(api.app)
        with serving(busy, connections_per_address=2) as server:
            for _ in range(2):
                with connected(server.port) as client:
                    client.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert busy.entered.acquire(timeout=ANSWER_S)
            busy.leave.set()
            wait_until(lambda: is_let_in(server.port))


def is_let_in(port: int) -> bool:
    with connected(port) as client, suppress(ConnectionError):
        return whole_head(client).startswith(b"HTTP/1.1 200 ")
    return False


def test_who_is_answered_and_keeps_its_body_makes_room(tmp_path: Path) -> None:
    path, _ = tokens_file(tmp_path / "tokens.yaml")
    with (
        world(tokens=load_tokens(path)) as api,
        serving(api.app, connections_per_address=4) as server,
        ExitStack() as strangers,
    ):
        for _ in range(8):
            client = strangers.enter_context(connected(server.port))
            client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
            assert client.recv(65_536).startswith(b"HTTP/1.1 401 ")
        with connected(server.port) as client:
            assert whole_head(client).startswith(b"HTTP/1.1 200 ")


class Reading:
    """An application that reads every body to its end."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            self.entered.release()
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


def test_who_sends_its_body_slowly_makes_room() -> None:
    reading = Reading()
    with serving(reading, connections_per_address=4) as server, ExitStack() as strangers:
        for _ in range(8):
            client = strangers.enter_context(connected(server.port))
            client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
            assert reading.entered.acquire(timeout=ANSWER_S)
        with connected(server.port) as client:
            assert whole_head(client).startswith(b"HTTP/1.1 200 ")


def test_who_does_not_read_its_answer_makes_room() -> None:
    answer = b" " * LARGE
    paused = threading.Semaphore(0)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/large":
            await send({"type": "http.response.body", "body": answer, "more_body": True})
            paused.release()
        await send({"type": "http.response.body"})

    with serving(large, connections_per_address=4) as server, ExitStack() as strangers:
        for number in range(8):
            client = strangers.enter_context(connected(server.port))
            closing = b"Connection: close\r\n" if number % 2 else b""
            client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n" + closing + b"\r\n")
            assert paused.acquire(timeout=ANSWER_S)
        with connected(server.port) as client:
            assert whole_head(client).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_is_refused_is_under_way_for_a_short_time_only() -> None:
    with world() as api, serving(api.app, under_way_max=1) as server, connected(server.port) as client:
        client.sendall(HEAD + b"Content-Length: 2097152\r\n\r\n{")
        answer = b""
        while not answer.endswith(b"}"):  # of its document
            answer += client.recv(65_536)
        check_problem(answer, 413, "body-too-large")
        with connected(server.port) as other:
            assert whole_head(other).startswith(b"HTTP/1.1 200 ")
        client.sendall(b" " * (2_097_152 - 1))  # and the connection goes on
        assert whole_head(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_refused_body_that_comes_byte_by_byte_is_not_waited_for(version: bytes) -> None:
    with world() as api, serving(api.app) as server, connected(server.port) as client:
        head = HEAD.replace(b"1.1", version)
        client.sendall(head + b"Connection: close\r\nContent-Length: 2097152\r\n\r\n")
        drip(client, every_s=0.05, less_than=150)
        check_problem(whole_answer(client), 413, "body-too-large")


def test_requests_of_one_address_that_go_on_without_it_leave_room_for_others() -> None:
    with world() as api:
        busy = Busy(api.app)
        with serving(busy, connections_per_address=2) as server, ExitStack() as strangers:
            for _ in range(2):
                client = strangers.enter_context(connected(server.port, "127.0.0.2"))
                client.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
                assert busy.entered.acquire(timeout=ANSWER_S)
            with connected(server.port, "127.0.0.2") as client:
                client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                check_problem(whole_answer(client), 503, "too-many-requests-under-way")
            with connected(server.port) as client:
                assert whole_head(client).startswith(b"HTTP/1.1 200 ")
            busy.leave.set()


def tls_of(path: Path) -> tuple[Certificate, ssl.SSLContext]:
    authority = Authority(path / "authority")
    identity = authority.identity("api")
    certificate = Certificate(str(identity.certificate), str(identity.key))
    return certificate, ssl.create_default_context(cafile=str(authority.certificate))


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
def test_who_reads_slowly_but_steadily_has_all_of_its_answer(
    connection: bytes, is_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Semaphore(0)
    look = Connection._late

    def counted_look(one: Connection) -> None:
        look(one)
        looked.release()

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
        await send({"type": "http.response.body", "body": b" " * LARGE})

    monkeypatch.setattr(Connection, "_late", counted_look)
    certificate, trusting = tls_of(tmp_path) if is_tls else (None, None)
    deadlines = Deadlines(idle_s=0.5, sending_s=0.5, closing_s=0.5)
    with serving(large, deadlines=deadlines, certificate=certificate) as server, ExitStack() as stack:
        client = stack.enter_context(connected(server.port))
        if trusting:
            client = stack.enter_context(trusting.wrap_socket(client, server_hostname="localhost"))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: " + connection + b"\r\n\r\n")
        received, looks = 0, 0
        while received < LARGE:
            enough = received + LARGE // 6
            while received < min(enough, LARGE):
                data = client.recv(65_536)
                assert data, f"cut off after {received} bytes"
                received += len(data)
            looks += received < LARGE // 2 and looked.acquire(timeout=10.0)
        assert looks == 2


def test_who_is_cut_off_by_the_end_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.serving.listener.GRACE_S", 0.1)
    entered = threading.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await asyncio.Event().wait()

    with ExitStack() as stack:
        server = stack.enter_context(serving(endless))
        client = stack.enter_context(connected(server.port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert entered.wait(ANSWER_S)
        server.stop()
        check_problem(whole_answer(client), 503, "stopping")


class TestConnectionLimit:
    def test_the_one_that_has_waited_longest_makes_room(self) -> None:
        closed: list[str] = []
        limit = ConnectionLimit(3, 2)
        first = limit.enter("a", lambda: closed.append("first"))
        second = limit.enter("a", lambda: closed.append("second"))
        assert first is not None
        assert second is not None
        limit.work(first)
        limit.wait(first)  # it waits again, but not as long as the second
        assert limit.enter("a", lambda: closed.append("third")) is not None
        assert closed == ["second"]
        assert limit.enter("b", lambda: None) is not None
        assert limit.enter("c", lambda: None) is not None
        assert closed == ["second", "first"]

    def test_with_all_at_work_the_new_one_is_refused(self) -> None:
        limit = ConnectionLimit(2, 1)
        working = limit.enter("a", lambda: None)
        other = limit.enter("b", lambda: None)
        assert working is not None
        assert other is not None
        limit.work(working)
        assert limit.enter("a", lambda: None) is None
        limit.work(other)
        assert limit.enter("c", lambda: None) is None
        limit.leave(other)
        limit.leave(other)
        assert limit.enter("c", lambda: None) is not None

    def test_an_address_counts_as_one_machine(self) -> None:
        assert network_of("2001:db8::1") == network_of("2001:db8::2") != network_of("2001:db8:0:1::1")
        assert network_of("fe80::1%eth0") == network_of("fe80::1")
        assert network_of("10.0.0.1") != network_of("10.0.0.2")
        assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1")


def test_the_settings_say_how_the_api_is_listened_for() -> None:
    assert listening_of(ApiSettings()) == Listening()
    given = ApiSettings(probe_host="0.0.0.0", probe_port=8231, connections_per_address=7)
    assert listening_of(given) == Listening("0.0.0.0", 8231, connections_per_address=7)
    with_file = ApiSettings(probe_file="/dev/shm/tickover-probe")
    assert listening_of(with_file) == Listening(probe_port=0, probe_file="/dev/shm/tickover-probe")
