"""`tickover events` as a process: its lines come through a pipe as they happen, and Ctrl-C ends it in order."""

import os
import signal
import subprocess
import sys

import pytest

from api.events import feed as feeds
from api.serving.server import Server
from tests.source import ROOT
from tests.unit.api_world import REMINDERS, world

pytestmark = pytest.mark.slow

LIMIT_S = 60.0


@pytest.mark.usefixtures("terminal")
def test_lines_come_as_it_happens_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "STEP_S", 0.05)
    with world() as api:
        server = Server(api.app, "127.0.0.1", 0)
        server.start()
        command = [sys.executable, "-m", "sidecar", "events", "--event", "policies"]
        environment = {**os.environ, "TICKOVER_URL": f"http://127.0.0.1:{server.port}"}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().endswith(" reset: read all again\n")
                api.add(REMINDERS)
                assert process.stdout.readline().endswith(" policies: added reminders\n")
                process.send_signal(signal.SIGINT)
                assert process.wait(LIMIT_S) == 0
            finally:
                process.kill()
                api.app.state.events.stop()
                server.stop()
