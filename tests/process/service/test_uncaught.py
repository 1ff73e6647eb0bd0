"""Errors that nobody catches, of a whole process."""

import json
import subprocess
import sys

import pytest

from tests.source import ROOT

pytestmark = pytest.mark.slow


UNCAUGHT = """
import threading
from sidecar.service.logs import configure_logs, log_uncaught
from sidecar.settings.settings import LogSettings
from tests.source import ROOT

class Finalizer:
    def __init__(self, error):
        self.error = error
    def __del__(self):
        raise self.error

configure_logs(LogSettings())
log_uncaught()
Finalizer(ValueError("ignored"))
Finalizer(KeyboardInterrupt())
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
raise RuntimeError("the end")
"""


def test_what_nobody_catches_is_a_line_of_the_log_too() -> None:
    ended = subprocess.run([sys.executable, "-c", UNCAUGHT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    ignored, in_thread, last = told
    assert (ignored["level"], ignored["where"]) == ("warning", "Finalizer.__del__")
    assert (in_thread["level"], in_thread["where"]) == ("error", "worker")
    assert last["level"] == "critical"
    for line, error in zip(told, ("ValueError: ignored", "ZeroDivisionError", "RuntimeError: the end"), strict=True):
        assert error in line["exception"]
