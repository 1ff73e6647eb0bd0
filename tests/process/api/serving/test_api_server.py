import asyncio
import socket
import threading
from typing import Any

import httpx
import pytest

from api.access.gate import Gate
from api.serving.connection import Deadlines
from api.serving.server import Server
from api.serving.sockets import BindError, Listening
from sidecar.settings.api import url_of
from tests.unit.api_world import REMINDERS, problem, world

pytestmark = pytest.mark.slow

ANSWER_S = 60.0


def test_serves_from_its_own_thread() -> None:
    with world() as api:
        api.add(REMINDERS)
        server = Server(api.app, "127.0.0.1", 0)
        server.start()
        server.start()
        try:
            assert server.port > 0
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=ANSWER_S) as client:
                assert client.get("/livez").json() == {"status": "alive"}
                assert client.post("/v1/messages", json={"target": "push"}).status_code == 202
                chunks = (b" " * 65_536 for _ in range(40))
                response = client.post("/v1/messages", content=chunks, headers={"content-type": "application/json"})
                problem(response, 413, "body-too-large")
                response = client.post("/v1/messages", content=b" " * (3 << 20))
                problem(response, 413, "body-too-large")
                head = client.head("/readyz")
                assert (head.status_code, head.content) == (200, b"")
                assert client.get("/readyz").status_code == 200
                assert head.headers["content-length"] == client.get("/readyz").headers["content-length"]
                assert "server" not in response.headers
        finally:
            server.stop()
            server.stop()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{server.port}/livez")


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Length: 2097152\r\n\r\n{",
        b"Content-Length: 2097152\r\nConnection: close\r\n\r\n{",
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % ((1 << 20) + 1, b" " * ((1 << 20) + 1)),
    ],
    ids=["declared", "the last request", "chunked"],
)
def test_a_body_that_is_too_large_and_never_ends_has_its_answer(sent: bytes) -> None:
    with world() as api:
        server = Server(api.app, "127.0.0.1", 0, Listening(deadlines=Deadlines(body_s=5.0)))
        server.start()
        try:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.settimeout(ANSWER_S)
                client.sendall(
                    b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + sent
                )
                answer = b"".join(iter(lambda: client.recv(65_536), b""))  # to the end: the connection is closed
        finally:
            server.stop()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"/problems/body-too-large" in answer


def test_a_taken_port_is_said_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, world() as api:
        port = taken.getsockname()[1]
        with pytest.raises(BindError, match=rf"port {port}: Address already in use.*TICKOVER_API__PORT"):
            Server(api.app, "127.0.0.1", port).start()


@pytest.mark.parametrize("has_ipv6", [True, False], ids=["dual-stack", "a kernel without IPv6"])
def test_everywhere_is_ipv6_and_ipv4_and_a_client_has_its_own_address(
    has_ipv6: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ["127.0.0.1", *(["::1"] if has_ipv6 and _has_ipv6_loopback() else [])]
    if not has_ipv6:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with world(gate=Gate(anybody=True)) as api:
        api.add(REMINDERS)
        server = Server(api.app, "::", 0, Listening(probe_host="::", probe_port=0))
        server.start()
        try:
            for address in addresses:
                assert httpx.get(url_of("http", address, server.probe_port) + "/livez", timeout=ANSWER_S).is_success
                url = url_of("http", address, server.port) + "/v1/messages"
                assert httpx.post(url, json={"target": "push"}, timeout=ANSWER_S).status_code == 202
        finally:
            server.stop()
        assert [record["client"] for record in api.audited] == addresses


def _has_ipv6_loopback() -> bool:
    """Containers often have none."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_an_unknown_host_is_said_plainly() -> None:
    with world() as api, pytest.raises(BindError, match=r"no\.such\.host\.invalid"):
        Server(api.app, "no.such.host.invalid", 0).start()


def test_a_client_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes away ends neither the server nor a neighbour's request."""
    with world() as api:
        api.add(REMINDERS)
        entered, leave = threading.Event(), threading.Event()
        send = api.sender.send

        async def slow_send(record: Any) -> Any:
            entered.set()
            await asyncio.to_thread(leave.wait)
            return await send(record)

        monkeypatch.setattr(api.sender, "send", slow_send)
        server = Server(api.app, "127.0.0.1", 0)
        server.start()
        try:
            url = f"http://127.0.0.1:{server.port}"
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(
                    b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b'Content-Length: 17\r\n\r\n{"target":"push"}'
                )
                assert entered.wait(ANSWER_S)
            assert httpx.get(f"{url}/livez", timeout=ANSWER_S).status_code == 200
            monkeypatch.undo()
            assert httpx.post(f"{url}/v1/messages", json={"target": "push"}, timeout=ANSWER_S).status_code == 202
        finally:
            leave.set()
            server.stop()
