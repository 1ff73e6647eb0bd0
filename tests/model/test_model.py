"""The model of emit, seal, mark, commit and fence, looked at whole by spin; and each way to build it wrong is found."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.services.fixtures import missing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MODEL = Path(__file__).with_name("settlement.pml")
# Each is searched whole. Records, and how often what may happen: a process dies, the partition is taken from a living
# process, Redis loses data, an answer of Redis is lost.
WHOLE = {
    "crashes and losses": ["RECORDS=3", "TAKEOVERS=0"],
    "crashes and zombies": ["RECORDS=2", "LOSSES=0", "LOST_REPLIES=0"],
}
LONG = {
    "everything": ["RECORDS=2"],
    "two crashes": ["RECORDS=3", "TAKEOVERS=0", "CRASHES=2"],
}
BUGS = {
    "NO_FENCE": "crashes and zombies",
    "UNSTABLE_OFFSETS": "crashes and zombies",
    "MARK_FIRST": "crashes and losses",
    "MARK_LATER": "crashes and losses",
    "REDIS_FIRST": "crashes and losses",
    "DONE_BEFORE_REDIS": "crashes and losses",
    "NO_REDO": "crashes and losses",
    "LOSS_UNSEEN": "crashes and losses",
    "WATERMARK_AHEAD": "crashes and losses",
    "OVERTAKEN_PROMOTED": "crashes and losses",
    "TIDY_EARLY": "crashes and losses",
}
DEPTH = 1_000_000
SOAK = "TICKOVER_TEST_SOAK" in os.environ


def search(definitions: list[str], directory: Path, optimised: bool = True) -> str:
    """Output of spin's verifier after a look at every state, or up to the first that must not be."""
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            missing(program, "install it with tests/system-packages")
    flags = [f"-D{definition}" for definition in definitions]
    run(["spin", "-a", *flags, str(MODEL)], directory)
    run(
        ["gcc", "-O2" if optimised else "-O0", "-w", "-DSAFETY", "-DNOFAIR", "-DMEMLIM=3000", "-o", "pan", "pan.c"],
        directory,
    )
    return run(["./pan", f"-m{DEPTH}"], directory)


def run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def errors(output: str) -> int:
    """How many it found; an incomplete search is one too."""
    found = re.search(r"errors: (\d+)", output)
    assert found is not None, output
    return int(found[1])


@pytest.mark.parametrize("case", WHOLE | LONG if SOAK else WHOLE)
def test_nothing_is_emitted_twice_or_lost_in_any_order_of_steps(case: str, tmp_path: Path) -> None:
    output = search((WHOLE | LONG)[case], tmp_path)
    states = re.search(r"(\d+) states, stored", output)
    assert states is not None, output
    print(f"\n{case}: {int(states[1]):,} states")
    assert errors(output) == 0, output
    assert "Search not completed" not in output
    assert "max search depth too small" not in output


@pytest.mark.parametrize("bug", BUGS)
def test_each_way_to_build_it_wrong_is_found(bug: str, tmp_path: Path) -> None:
    output = search([f"BUG_{bug}", *WHOLE[BUGS[bug]]], tmp_path, optimised=False)
    assert errors(output) == 1
    assert "assertion violated" in output


def test_every_bug_of_the_model_is_tried() -> None:
    assert set(re.findall(r"BUG_(\w+)", MODEL.read_text())) == set(BUGS)
