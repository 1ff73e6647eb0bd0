"""Which images are built and run: every place names the same, and whoever wants pins the base by its digest."""

import json
import re
import subprocess
import sys
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar, Final

import pytest
import yaml

from tests.source import ROOT

DIGEST: Final = "python:3.12-slim@sha256:" + "0" * 64
# What the role of an image is called, and what it is unless somebody says otherwise.
DEFAULTS: Final = {
    "Dockerfile": r"^ARG (BASE)=(\S+)$",
    "docker-compose.yml": r"\$\{(\w+)_IMAGE:-([^}]+)\}",
    "tests/images/build": r"\$\{TICKOVER_TEST_(\w+)_IMAGE:-([^}]+)\}",
    "tests/services/images.py": r'"TICKOVER_TEST_(\w+)_IMAGE", "([^"]+)"',
    "tests/services/kafka_servers.py": r'"TICKOVER_TEST_(\w+)_IMAGE", "([^"]+)"',
}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_place_names_the_same_images() -> None:
    named: dict[str, dict[str, str]] = defaultdict(dict)
    for place, pattern in DEFAULTS.items():
        found = re.findall(pattern, text_of(place), re.MULTILINE)
        assert found, place
        for role, image in found:
            named["PYTHON" if role == "BASE" else role][place] = image
    assert {role: images for role, images in named.items() if len(set(images.values())) > 1} == {}
    assert named["PYTHON"].keys() == DEFAULTS.keys() - {"tests/services/kafka_servers.py"}
    assert named["KAFKA"].keys() >= {"docker-compose.yml", "tests/services/kafka_servers.py"}


def test_what_is_built_is_what_compose_and_the_chart_run() -> None:
    built = re.search(r"docker build --tag (\S+)", text_of("Makefile"))
    compose = yaml.safe_load(text_of("docker-compose.yml"))["services"]["tickover"]["image"]
    chart = yaml.safe_load(text_of("charts/tickover/values.yaml"))["image"]
    assert built is not None
    assert compose == f"${{TICKOVER_IMAGE:-{built[1]}}}"
    assert built[1].partition(":")[0] == chart["repository"]
    assert chart["tag"] == ""  # the chart's appVersion, which test_release.py holds to the project's


def test_the_base_can_be_pinned() -> None:
    """Every stage is of the base that is given, or of nothing."""
    assert set(re.findall(r"^FROM (\S+)", text_of("Dockerfile"), re.MULTILINE)) == {"${BASE}", "scratch"}
    build = yaml.safe_load(text_of("docker-compose.yml"))["services"]["tickover"]["build"]
    assert build["args"]["BASE"].startswith("${PYTHON_IMAGE:-")
    command = ["make", "--dry-run", "image"]
    for given, wanted in ((f"PYTHON_IMAGE={DIGEST}", f" --build-arg BASE={DIGEST} "), ("PYTHON_IMAGE=", "")):
        done = subprocess.run([*command, given], cwd=ROOT, capture_output=True, text=True, check=True)
        assert wanted in done.stdout
        assert ("BASE" in done.stdout) == bool(wanted)


class Live(BaseHTTPRequestHandler):
    """Answers every path, and keeps them."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing goes to the terminal."""


@pytest.mark.parametrize(
    "settings",
    [
        {"PORT": "{}"},
        {"PORT": "{}", "PROBE_PORT": "0"},
        {"PORT": "1", "PROBE_PORT": "{}"},
        {"PORT": "{}", "PROBE_PORT": ""},
    ],
    ids=["the API", "no probes' listener", "the probes' listener", "nothing said"],
)
def test_the_health_check_asks_a_port_that_is_listened_on(settings: dict[str, str]) -> None:
    found = re.search(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", text_of("Dockerfile"), re.MULTILINE)
    assert found
    _, *arguments = json.loads(found[1])
    with HTTPServer(("127.0.0.1", 0), Live) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        Live.asked.clear()
        environment = {f"TICKOVER_API__{name}": text.format(server.server_port) for name, text in settings.items()}
        try:
            subprocess.run([sys.executable, *arguments], env=environment, check=True, timeout=30)
        finally:
            server.shutdown()
            serving.join()
    assert Live.asked == ["/livez"]
