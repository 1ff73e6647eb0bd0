"""`requirements/install`: what `make run` says while pip is at work. Pip is a script that says what pip says."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT

LIMIT_S = 60.0
INSTALL = [sys.executable, str(ROOT / "requirements" / "install")]
LOCK = """\
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:00
confluent-kafka==2.16.1 \\
    --hash=sha256:01
    # via tickover (pyproject.toml)
h11==0.16.0 \\
    --hash=sha256:02
Pkg_Two==1 \\
    --hash=sha256:03
"""
SAID = """\
Ignoring colorama: markers 'sys_platform == "win32"' don't match your environment
Collecting confluent-kafka==2.16.1 (from -r lock (line 3))
  Downloading confluent_kafka-2.16.1-cp311-manylinux_2_28_x86_64.whl (5.0 MB)
Requirement already satisfied: h11==0.16.0 in somewhere (from -r lock (line 6))
Collecting pkg-two==1 (from -r lock (line 8))
  Using cached pkg_two-1-py3-none-any.whl (500 kB)
Installing collected packages: pkg-two, confluent-kafka
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a lock file and a pip that pauses after each line, longer than the script takes to look."""
    (tmp_path / "lock").write_text(LOCK)
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    return tmp_path


def pip_says(place: Path, text: str, end: str = "") -> dict[str, str]:
    """The environment in which pip says this; `end` is Python code for the end."""
    code = f"import sys, select\nfor line in {text.splitlines()!r}:\n    print(line, flush=True)\n"
    code += f"    select.select([], [], [], 0.2)\n{end}"
    (place / "pip" / "__main__.py").write_text(code)
    return {**os.environ, "PYTHONPATH": str(place)}


def test_in_a_log_lines_are_few_and_the_last_says_all(place: Path) -> None:
    environment = pip_says(place, SAID)
    done = subprocess.run(
        [*INSTALL, str(place / "lock")], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first.startswith("looking up 0 of 4 packages")
    assert last.startswith("installed 3 packages, 5.5 MB in ")


def test_on_a_terminal_one_line_says_what_is_fetched_and_how_much_is_left(place: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([*INSTALL, str(place / "lock")], env=pip_says(place, SAID), stdout=theirs) as install:
        os.close(theirs)
        shown = b""
        while piece := read(ours):
            shown += piece
        assert install.wait(LIMIT_S) == 0
    os.close(ours)
    texts = [text.strip() for text in shown.decode().split("\r\x1b[K")]
    assert "fetching 1 of 3 packages: confluent-kafka (5.0 MB), 5.0 MB so far" in texts
    assert "fetching 3 of 3 packages: pkg-two (0.5 MB), 5.5 MB so far" in texts
    assert "installing 3 packages, 5.5 MB" in texts
    assert "\n" not in "".join(shown.decode().split("\r\x1b[K")[:-1])


def read(terminal: int) -> bytes:
    """Text that was written to a terminal; empty at its end, which Linux tells as an error."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


def test_what_pip_says_of_errors_is_passed_on_with_its_status(place: Path) -> None:
    environment = pip_says(place, "Collecting h11==0.16.0\nERROR: hashes differ", "sys.exit(7)")
    done = subprocess.run(
        [*INSTALL, str(place / "lock")], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 7
    assert "ERROR: hashes differ" in done.stdout
    assert "pip failed; its last words:\nCollecting h11==0.16.0\nERROR: hashes differ" in done.stderr
