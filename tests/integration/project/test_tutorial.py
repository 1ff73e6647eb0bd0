"""The tutorial's commands, typed as they stand into one shell; what they print is what the page says."""

import os
import re
import signal
import subprocess
import sys
import time
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path
from typing import NamedTuple

import pytest

from sidecar.embedded.child import free_port
from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_700)]

ALL_S = 1_500.0
# What depends on how quick the machine is: a delay in which commands are typed, a message that is listed as soon as the
# sidecar has read it, and how long `doctor` waits for Kafka.
DELAY, COMMANDS_IN_DELAY = "--delay 5s", 20
LIST, PATIENT_LIST = (
    "--id first\ntickover messages list\n",
    "--id first\nfor _ in 1 2 3 4 5; do tickover messages list > seen; grep -q first seen && break; done; cat seen\n",
)
DOCTOR, PATIENT_DOCTOR = (
    "tickover doctor 2>&1 |",
    "until tickover doctor > doctor.log 2>&1; do sleep 1; done; cat doctor.log |",
)
STEP = re.compile(r"^```sh\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
DONE = "--- done ---"
LEFT = "ls; env | grep -o '^TICKOVER_[A-Z_]*' | sort\n"  # what there is when all was typed
OURS = {"TICKOVER_API__PORT": "", "TICKOVER_HORIZON": "10m"}  # the delay is in the wheel, however long it is here


class Step(NamedTuple):
    """A line that is typed, and what the page says is printed then; None: nothing is said."""

    typed: str
    shown: str | None


def steps() -> list[Step]:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    return [Step(found[1], found[2]) for found in STEP.finditer(text)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Output of each step, then `LEFT`. The ports are free ones; whatever the shell has started ends with it."""
    place: Path = tmp_path_factory.mktemp("tutorial")
    (place / ".venv").symlink_to(sys.prefix)
    script = f'\necho "{DONE}"\n'.join((*(step.typed for step in steps()), LEFT))
    patient = ((LIST, PATIENT_LIST), (DELAY, patient_delay()), (DOCTOR, PATIENT_DOCTOR))
    for typed, instead in (("9092", str(free_port())), *patient):
        assert typed in script
        script = script.replace(typed, instead)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TICKOVER_")}
    environment |= {**OURS, "TICKOVER_API__PORT": str(free_port())}
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = shell.communicate(timeout=ALL_S)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        said, errors = shell.communicate()
    finally:
        end_group(shell.pid)
    logs = "\n".join(path.read_text()[-2_000:] for path in (place / "tutorial").glob("*.log"))
    assert shell.returncode == 0, f"{said}\n{errors}\n{logs}"
    return said.split(f"{DONE}\n")


def patient_delay() -> str:
    """The page's delay, or a longer one where a command takes longer than usual."""
    started_s = time.monotonic()
    subprocess.run([sys.executable, "-m", "sidecar", "--help"], cwd=ROOT, check=True, capture_output=True)
    return f"--delay {max(15, int(COMMANDS_IN_DELAY * (time.monotonic() - started_s)))}s"


def end_group(group: int) -> None:
    """End what the shell has left in the background."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_the_tutorial_does_what_it_says(printed: list[str]) -> None:
    checker = OutputChecker()
    for step, got in zip(steps(), printed[:-1], strict=True):
        if step.shown is not None:
            assert checker.check_output(step.shown, got, ELLIPSIS | NORMALIZE_WHITESPACE), (
                f"{step.typed}\nprints\n{got}\nand not\n{step.shown}"
            )


def test_the_tutorial_leaves_nothing_behind(printed: list[str]) -> None:
    assert printed[-1].split() == sorted(OURS)


def test_most_steps_say_what_they_print() -> None:
    assert len([step for step in steps() if step.shown is not None]) >= 8
