"""Jars that tests run, fetched by Maven once per machine."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from sidecar.embedded.java_kafka import KafkaUnavailable, fetch_jars

FETCH_S = 300.0


def broker_jars() -> Path:
    """The directory with those of the embedded Kafka; raises LookupError when it can't be had, or not be run."""
    try:
        return fetch_jars()
    except KafkaUnavailable as error:
        raise LookupError(str(error)) from error


def fetch_test_jars(pom: Path) -> Path:
    """The directory with what the POM names; raises LookupError when it can't be had."""
    if shutil.which("mvn") is None:
        raise LookupError("not installed: mvn")
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tickover"
    directory = root / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:8]}"
    root.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / ".complete").exists():
            command = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)
            if result.returncode:
                raise LookupError(f"Maven could not fetch {pom.stem}: {result.stdout[-500:]}")
            (directory / ".complete").touch()
    return directory
