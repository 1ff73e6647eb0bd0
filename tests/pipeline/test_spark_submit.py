"""By spark-submit: the archive that `make pipeline-archive` builds is all of tickover that a cluster needs."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.ledger_rows import NOW_MS, block, emitted, entries
from tests.services.spark import spark_settings
from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

ARCHIVE_S = 400.0
JOB_S = 700.0
BARE_PYTHON = """#!/bin/sh
# This environment's packages without its tickover: that must come out of the archive.
PYTHONPATH="$PYTHONPATH:{packages}" exec {python} -S "$@"
"""


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python that has what the jobs depend on, and not the jobs."""
    place = tmp_path / "python"
    place.write_text(BARE_PYTHON.format(packages=sysconfig.get_path("purelib"), python=sys.executable))
    place.chmod(0o755)
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [place, "-c", "import pipeline"], cwd=tmp_path, env=plain, capture_output=True, text=True, check=False
    )
    assert "No module named 'pipeline'" in found.stderr
    return place


def test_a_job_runs_by_spark_submit_from_the_archive(kafka: Any, bare_python: Path, tmp_path: Path) -> None:
    archive = tmp_path / "tickover.zip"
    variables = [f"archive={archive}", f"venv={sys.prefix}", f"ready={sys.prefix}/.ready"]
    made = ["make", "--silent", "pipeline-archive", *variables]
    subprocess.run(made, cwd=ROOT, check=True, timeout=ARCHIVE_S)
    ledger = kafka.topic("ledger")
    kafka.produce(
        ledger, [(b"k", block(settled=emitted(0, 3), number=1, entries=entries([(9, NOW_MS)]))), (b"k", b"junk")]
    )
    main = tmp_path / "main.py"  # on its own: beside the other modules they would shadow those of the archive
    main.write_bytes((ROOT / "pipeline/__main__.py").read_bytes())
    command = [f"{sys.prefix}/bin/spark-submit", "--py-files", str(archive)]
    for name, value in spark_settings().items():
        command += ["--conf", f"{name}={value}"]
    command += [str(main), "ingest", "--warehouse", str(tmp_path / "tables"), "--bootstrap-servers", kafka.bootstrap]
    command += ["--ledger", ledger, "--connector", "spark"]
    environment = {**os.environ, "PYSPARK_PYTHON": str(bare_python)}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=JOB_S
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    words = ended.stdout  # what is said comes here too, before the answer and after it: spark-submit makes one stream
    came, _ = json.JSONDecoder().raw_decode(words, words.index("{\n"))
    assert (came["blocks"], came["undecodable"], came["settled"], came["entries"]) == (2, 1, {"emitted": 3}, 1)
    assert (tmp_path / "tables/silver/lifecycle/batch=0/_SUCCESS").exists()
