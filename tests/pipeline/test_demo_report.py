"""`tickover demo --report`: from a run of the sidecar to pages of reports, by one command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

REPORTS = ("funnel", "lateness", "triage", "herd", "storms", "forecast")


def test_one_command_runs_the_sidecar_and_writes_the_reports(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sidecar",
        "demo",
        "--seconds",
        "6",
        "--set",
        "api.port=0",
        "--report",
        str(tmp_path),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    assert "taking what happened" in ended.stdout, ended.stderr
    [place] = tmp_path.iterdir()
    assert "ended with status" not in ended.stdout, (place / "jobs.log").read_text()
    settled = re.search(r"ingest: .*?([\d,]+) emitted\b", ended.stdout)
    fired = re.search(r"^  fired +(\d+)$", ended.stdout, re.MULTILINE)
    assert settled, ended.stdout
    assert fired, ended.stdout
    assert int(settled[1].replace(",", "")) >= int(fired[1]) > 0
    assert re.search(r"reconcile: [\d,]+ settled; no faults", ended.stdout), ended.stdout
    pages = {name: (place / f"{name}.html").read_text(encoding="utf-8") for name in REPORTS}
    assert {name for name, page in pages.items() if "<svg" in page} >= {"funnel", "lateness"}
