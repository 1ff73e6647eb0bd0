"""The image of this checkout by `make image`, as where no package index is reached: from wheels, without a network."""

import fcntl
import os
import subprocess
from functools import cache
from typing import Final

from tests.services.kafka_servers import find_image
from tests.source import ROOT
from tests.version import version_of_project

PYTHON_IMAGE: Final = os.environ.get("TICKOVER_TEST_PYTHON_IMAGE", "python:3.12-slim")
VALKEY_IMAGE: Final = os.environ.get("TICKOVER_TEST_VALKEY_IMAGE", "valkey/valkey:9")
PROMETHEUS_IMAGE: Final = os.environ.get("TICKOVER_TEST_PROMETHEUS_IMAGE", "prom/prometheus:v3.5.0")
TICKOVER_REPOSITORY: Final = "tickover-test"
BUILD_S: Final = 300

_VERSION: Final = "import sys; print('%d.%d' % sys.version_info[:2])"


def python_image() -> str:
    """Name of the image that ours is built on; raises LookupError."""
    return find_image(PYTHON_IMAGE, "tickover-standin/python:bookworm-slim")


def valkey_image() -> str:
    """Raises LookupError."""
    return find_image(VALKEY_IMAGE, "tickover-standin/valkey")


def prometheus_image() -> str:
    """Raises LookupError."""
    return find_image(PROMETHEUS_IMAGE, "tickover-standin/prometheus")


@cache
def build() -> str:
    """The image's name; raises LookupError without an engine or a base."""
    base = python_image()
    version = _output("docker", "run", "--rm", base, "python3", "-c", _VERSION).strip()
    with (ROOT / "Dockerfile").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # tests of two files may run side by side, and both build here
        _output("make", "wheels", f"WHEELS_PYTHON={version}")
        _output("make", "image", f"PYTHON_IMAGE={base}", f"REPOSITORY={TICKOVER_REPOSITORY}", "PIP_NO_INDEX=1")
    return f"{TICKOVER_REPOSITORY}:{version_of_project()}"


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BUILD_S)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout
