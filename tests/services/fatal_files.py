"""A job on Spark that is killed, with all it started, at one exact change of the file system."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services.spark import spark_settings
from tests.source import ROOT

PROGRAM = Path(__file__).with_name("java") / "FatalFileSystem.java"
COMPILE_S = 120.0
JOB_S = 600.0  # of a job that takes 15 s: Spark starts slowly on a busy machine


@dataclass(frozen=True, slots=True)
class Death:
    """Before the `count`-th change that matches `at`, such as `rename FROM TO`."""

    at: str
    count: int = 1


class FatalFiles:
    """Compiles the file system into `directory` and runs jobs on it. LookupError: no compiler, or no Spark."""

    def __init__(self, directory: Path) -> None:
        pyspark = next((Path(place) / "pyspark" for place in sys.path if (Path(place) / "pyspark/jars").is_dir()), None)
        if pyspark is None:
            raise LookupError("not installed: pyspark")
        self._classes = directory
        command = ["javac", "-cp", f"{pyspark}/jars/*", "-d", str(directory), str(PROGRAM)]
        try:
            subprocess.run(command, check=True, timeout=COMPILE_S, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise LookupError("not installed: javac") from error

    def die(self, job: Sequence[str], death: Death) -> None:
        """Run `tickover pipeline <job>` until it dies there; AssertionError with its words when it doesn't."""
        ended = self._run(job, {"FATAL_AT": death.at, "FATAL_COUNT": str(death.count)})
        assert ended.returncode == -signal.SIGKILL, f"{death} never came: {ended.stdout}\n{ended.stderr[-4_000:]}"
        assert "killed before" in ended.stderr

    def _run(self, job: Sequence[str], more: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sidecar", "pipeline", *job]
        settings = {
            **spark_settings(),
            "spark.driver.extraClassPath": str(self._classes),
            "spark.hadoop.fs.file.impl": "FatalFileSystem",
            # Checkpoints by way of the same file system, so that a job can be killed at them too.
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
            ),
        }
        for name, value in settings.items():
            command += ["--spark", f"{name}={value}"]
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=JOB_S,
            start_new_session=True,  # the kill goes to the whole group
        )
