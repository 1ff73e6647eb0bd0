"""Fetches a real Kafka as jars: Maven copies what `pom.xml` names into a cache, once per machine."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

FETCH_TIMEOUT_S = 600
JAVA_MAJOR_MIN = 17

_POM = Path(__file__).with_name("pom.xml")
_NAMESPACE = {"m": "http://maven.apache.org/POM/4.0.0"}

Progress = Callable[[str], None]


class KafkaUnavailable(Exception):
    """No real Kafka can be started here; the text says what is missing."""


def silent(_text: str) -> None:
    """A progress callback that says nothing."""


def kafka_version() -> str:
    """The broker version that `pom.xml` names: written there and nowhere else."""
    version = ElementTree.parse(_POM).find("m:dependencies/m:dependency/m:version", _NAMESPACE)
    assert version is not None
    assert version.text is not None
    return version.text


def missing_tools() -> str | None:
    """Reason why a real broker can't run here, in words; None when it can."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    major = _java_major()
    if major is None:
        return "the version of java could not be read"
    if major < JAVA_MAJOR_MIN:
        return f"java {major} is too old, Kafka {kafka_version()} needs {JAVA_MAJOR_MIN}"
    return None


def fetch_jars(progress: Progress = silent) -> Path:
    """The directory with the broker's jars, fetched if this machine has not got them yet.

    Raises KafkaUnavailable when they could not be run here, or when Maven fails.
    """
    reason = missing_tools()
    if reason is not None:
        raise KafkaUnavailable(reason)
    directory = _cache_directory()
    marker = directory / ".complete"
    if marker.exists():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_suffix(".lock")):
        # Another process may have fetched them while this one waited for the lock.
        if not marker.exists():
            progress(f"Fetching Kafka {kafka_version()} by Maven (about 45 MB, once)")
            _copy_dependencies(directory)
            marker.touch()
    return directory


def _copy_dependencies(directory: Path) -> None:
    command = ["mvn", "-B", "-q", "-f", str(_POM), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=FETCH_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KafkaUnavailable(f"Maven could not fetch Kafka: {error}") from error
    if result.returncode != 0:
        words = " ".join(result.stdout.split())[:500]
        raise KafkaUnavailable(f"Maven could not fetch Kafka: {words}")


def _cache_directory() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # The digest keeps an older checkout's jars apart from this one's.
    digest = hashlib.sha256(_POM.read_bytes()).hexdigest()[:8]
    return root / "tickover" / f"kafka-{kafka_version()}-{digest}"


def _java_major() -> int | None:
    """The major version of the `java` on the path: 17 for `version "17.0.15"`, 1 for the old `1.8`."""
    try:
        result = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=30)
        return int(result.stderr.split('"')[1].split(".")[0].split("-")[0])
    except (OSError, IndexError, ValueError, subprocess.TimeoutExpired):
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
