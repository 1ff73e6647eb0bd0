"""`tickover top` on a terminal: refreshed, and ended in order by a key or a signal, the terminal as it was before."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.source import ROOT
from tests.unit.api_world import world

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
ENTER = b"\x1b[?1049h"  # the screen of its own, and back
LEAVE = b"\x1b[?1049l"


@pytest.fixture(name="address")
def address_fixture() -> Iterator[str]:
    """A sidecar's answers, without a sidecar."""
    with world() as api:
        answers = {path: api.call("GET", path).content for path in ("/v1/overview", "/v1/replicas")}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers[self.path.partition("?")[0]]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the test's output is the terminal's."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def read_until(terminal: int, wanted: Callable[[bytes], bool]) -> bytes:
    """Text of a terminal up to where it is as wanted."""
    text = b""
    while not wanted(text):
        assert select.select([terminal], [], [], LIMIT_S)[0], text
        text += os.read(terminal, 65_536)
    return text


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("end", ["q", "ctrl-c", "SIGTERM"])
def test_it_is_refreshed_and_ends_in_order(address: str, end: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "sidecar", "top", "--url", address, "--interval", "0.5"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment, cwd=ROOT, start_new_session=True,
    ) as top:  # fmt: skip
        try:
            text = read_until(ours, lambda text: text.count(b"q ends") >= 3)
            assert ENTER in text
            assert b"mail-gateway" in text
            if end == "SIGTERM":
                top.send_signal(signal.SIGTERM)
            elif end == "ctrl-c":
                top.send_signal(signal.SIGINT)
            else:
                os.write(ours, b"q")
            assert LEAVE in read_until(ours, lambda text: LEAVE in text)
            _, said = top.communicate(timeout=LIMIT_S)
        finally:
            top.kill()
        assert (top.returncode, said) == (0, b"")
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_once_where_a_form_is_asked_for(address: str) -> None:
    command = [sys.executable, "-m", "sidecar", "top", "--url", address, "-o", "json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, env=environment, cwd=ROOT, timeout=LIMIT_S, check=True)
    assert json.loads(done.stdout)["group"] == "payments"
