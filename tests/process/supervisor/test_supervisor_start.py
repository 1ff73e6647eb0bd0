"""A supervisor whose processes can't start: it ends as one process would, with words and status."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.embedded.child import free_port
from tests.services.sidecar_process import START_S
from tests.source import ROOT

pytestmark = pytest.mark.slow


@contextmanager
def launched(directory: Path, *options: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """`tickover run`; killed where a test fails before it has ended."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TICKOVER_")},
        "TICKOVER_DATA_DIR": str(directory),
        "TICKOVER_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",  # nobody is there
        "TICKOVER_REDIS__URL": f"redis://127.0.0.1:{free_port()}",
        "TICKOVER_API__PORT": "0",
        **{f"TICKOVER_{name}": value for name, value in settings.items()},
    }
    command = (sys.executable, "-m", "sidecar", "run", *options)
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # harmless to who has ended


def wait_for_both(process: subprocess.Popen[str]) -> None:
    """Until each of the two has said that it can't reach the brokers or Redis."""
    assert process.stderr is not None
    waiting: set[int] = set()
    for line in process.stderr:
        event = json.loads(line)
        if "process" in event and event["logger"] != "uvicorn.error":
            waiting.add(event["process"])
        if waiting == {1, 2}:
            return


def rest_of(process: subprocess.Popen[str]) -> str:
    """The rest of what a process says of which lines were read: `communicate` begins behind what a buffer has."""
    assert process.stderr is not None
    stderr = process.stderr.read()
    process.wait(START_S)
    return stderr


def events(stderr: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stderr.splitlines()]


def test_settings_by_which_no_process_can_start_end_all_at_once(tmp_path: Path) -> None:
    with launched(tmp_path, "--processes", "2", REDIS__SIGNING_KEY_FILE=str(tmp_path / "missing")) as process:
        _, stderr = process.communicate(timeout=START_S)
    assert process.returncode == 1
    told = events(stderr)
    causes = {event["process"]: event["error"] for event in told if event["message"] == "can't start"}
    assert causes
    assert all("missing" in cause for cause in causes.values())
    [end] = [event for event in told if event["message"] == "a process can't start: all end"]
    assert (end["ending"], end["level"]) == ("status 1", "critical")
    assert not any(event["message"].endswith("is replaced") for event in told)


def test_a_port_that_is_taken_is_told_once_and_nothing_is_started(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        launched(tmp_path, PROCESSES="2", API__PORT=str(taken.getsockname()[1])) as process,
    ):
        _, stderr = process.communicate(timeout=START_S)
    assert process.returncode == 1
    [event] = events(stderr)
    assert event["message"] == "can't start"
    assert "TICKOVER_API__PORT" in event["error"]


def test_sigterm_while_all_wait_for_brokers_ends_all_with_0(tmp_path: Path) -> None:
    with launched(tmp_path, PROCESSES="2") as process:
        wait_for_both(process)
        process.send_signal(signal.SIGTERM)
        stderr = rest_of(process)
    assert process.returncode == 0, stderr
    assert events(stderr)[-1]["message"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("when", ["Redis: bundled Valkey at", "Kafka: tickover's own", "Kafka: tickover's reference"])
def test_a_signal_while_embedded_services_start_ends_them_in_order(
    tmp_path: Path, when: str, number: signal.Signals
) -> None:
    with launched(tmp_path, "--processes", "2", "--kafka", "embedded", "--redis", "embedded") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if when in line)
        process.send_signal(number)
        stderr = rest_of(process)
    assert process.returncode == 0, stderr
    words = [event["message"] for event in events(stderr)]
    assert words[-1].startswith("stopped")
    assert "stopped before anything was started" not in words
    assert "ready to exit, bye bye" in (tmp_path / "valkey/valkey.log").read_text()
    with (tmp_path / "valkey/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the server has it as long as it lives


# Python says of what a finalizer raises that it was ignored, and goes on.
ASKED_IN_A_FINALIZER = """
import gc, os, signal, sys
from sidecar.service.embedded_services import Services
from sidecar.settings.settings import Settings
from sidecar.supervisor import supervisor

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def start_services(settings, progress):
    Cycle()
    return Services("127.0.0.1:1", "redis://127.0.0.1:1", None, None)

gc.disable()
supervisor.start_services = start_services
sys.exit(supervisor.supervise(Settings(processes=2, api={"port": 0}), None))
"""


def test_a_signal_that_comes_while_garbage_is_collected_is_heard() -> None:
    command = (sys.executable, "-c", ASKED_IN_A_FINALIZER)
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, stderr = process.communicate(timeout=START_S)
        finally:
            process.terminate()
    assert process.returncode == 0
    assert "Cycle.__del__" in stderr, "the exception was not lost: this shows nothing"


def test_processes_end_in_order_when_their_supervisor_is_gone(tmp_path: Path) -> None:
    with launched(tmp_path, PROCESSES="2") as process:
        wait_for_both(process)
        process.kill()
        stderr = rest_of(process)  # to the end: whoever has the pipe has ended
    asked = [event["process"] for event in events(stderr) if event["message"] == "asked to stop"]
    assert sorted(asked) == [1, 2]
