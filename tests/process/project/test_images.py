"""Images that are built and run: every place names the same, and whoever wants pins the base by its digest."""

import json
import logging
import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
import yaml

from api.serving.server import Server
from api.serving.sockets import Listening, listening_of
from sidecar.embedded.child import free_port
from sidecar.settings.settings import load_settings
from tests.helm import containers, one, render
from tests.source import ROOT
from tests.unit.api_world import world

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


def test_what_is_built_is_what_compose_and_the_chart_run_and_the_readme_says() -> None:
    done = subprocess.run(["make", "--dry-run", "image"], cwd=ROOT, capture_output=True, text=True, check=True)
    built = re.findall(r"--tag (\S+)", done.stdout)
    compose = yaml.safe_load(text_of("docker-compose.yml"))["services"]["tickover"]["image"]
    ((_, of_the_chart),) = containers([one(render(), "StatefulSet")])
    assert built == [of_the_chart["image"], compose.removeprefix("${TICKOVER_IMAGE:-").removesuffix("}")]
    assert re.findall(r"`make image`\s[^`]*`([^`]+)`", text_of("README.md")) == built[:1]


def test_the_base_can_be_pinned() -> None:
    """Every stage is of the base that is given, or of nothing."""
    assert set(re.findall(r"^FROM (\S+)", text_of("Dockerfile"), re.MULTILINE)) == {"${BASE}", "scratch"}
    build = yaml.safe_load(text_of("docker-compose.yml"))["services"]["tickover"]["build"]
    assert build["args"]["BASE"].startswith("${PYTHON_IMAGE:-")
    command = ["make", "--dry-run", "image"]
    for given, wanted in ((f"PYTHON_IMAGE={DIGEST}", f"BASE={DIGEST}"), ("PYTHON_IMAGE=", "")):
        done = subprocess.run([*command, given], cwd=ROOT, capture_output=True, text=True, check=True)
        assert [word for word in done.stdout.split() if word.startswith("BASE=")] == ([wanted] if wanted else [])


def health_check(probe_file: Path) -> int:
    """The status of the image's check, for a process that was told of this file."""
    found = re.search(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", text_of("Dockerfile"), re.MULTILINE)
    assert found
    environment = {"TICKOVER_API__PROBE_FILE": str(probe_file), "PATH": os.defpath}
    return subprocess.run(json.loads(found[1]), env=environment, check=False, timeout=30).returncode


@pytest.mark.parametrize(
    ("file", "flags", "variables"),
    [
        ("", {}, {}),
        ("api: {port: 0, host: localhost}", {}, {}),
        ("api: {port: 1}", {}, {"TICKOVER_API__PORT": "0"}),
        ("", {"api.port": "0"}, {"TICKOVER_API__PORT": "1"}),
        ("api: {port: 0, host: '::', probe_host: '0.0.0.0', allow_unauthenticated: true}", {}, {}),
        ("api: {port: 0, probe_host: '::'}", {}, {"TICKOVER_API__PROBE_PORT": "0"}),
        ("api: {port: 0, path: /tickover}", {}, {}),
    ],
    ids=["defaults", "file", "variable", "flag", "everywhere", "probes everywhere", "behind a path"],
)
def test_the_health_check_follows_file_flags_and_variables(
    file: str, flags: dict[str, str], variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tickover.yaml").write_text(file)
    probe_file = tmp_path / "probe"
    if not file and not flags:
        flags = {"api.port": str(free_port())}  # 8230 may be taken
    settings = load_settings(
        tmp_path / "tickover.yaml", flags, {"TICKOVER_API__PROBE_FILE": str(probe_file), **variables}
    ).api
    assert health_check(probe_file) != 0, "it is not started yet"
    with world(path=settings.path) as api:
        server = Server(api.app, settings.host, settings.port, listening_of(settings))
        server.start()
        try:
            assert health_check(probe_file) == 0
            api.monotonic_s += 60.0
            assert health_check(probe_file) != 0, "the engine doesn't turn any more"
        finally:
            server.stop()
    assert not probe_file.exists()
    assert health_check(probe_file) != 0


def test_a_probe_file_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with world() as api, caplog.at_level(logging.WARNING):
        server = Server(api.app, "127.0.0.1", 0, Listening(probe_port=0, probe_file=str(tmp_path / "no" / "probe")))
        server.start()
        server.stop()
    assert "api.probe_file can't be written" in caplog.text


def test_the_image_says_where_its_check_looks() -> None:
    """`/dev/shm` is a container's own, and can be written by any user, also where the root is read-only."""
    assert re.search(r"^ +TICKOVER_API__PROBE_FILE=/dev/shm/\S+$", text_of("Dockerfile"), re.MULTILINE)


def mounted() -> list[list[str]]:
    """Host path, place and options of each file or directory that the compose file mounts."""
    services = yaml.safe_load(text_of("docker-compose.yml"))["services"].values()
    volumes = [volume for service in services for volume in service.get("volumes", ()) if volume.startswith("./")]
    assert len(volumes) > 5
    return [re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", volume).split(":") for volume in volumes]


def test_containers_may_read_what_is_mounted_where_selinux_is_on() -> None:
    assert {options for _, _, options in mounted()} == {"ro,z"}


def test_what_tickover_looks_at_while_it_runs_is_mounted_by_its_directory() -> None:
    """A file that is mounted by itself stays what it was when another takes its name."""
    variables = yaml.safe_load(text_of("docker-compose.yml"))["services"]["tickover"]["environment"]
    watched = [Path(value) for name, value in variables.items() if name.endswith("_FILE")]
    places = {Path(place): here for here, place, _ in mounted()}
    assert {path.name for path in watched} == {"policies.yaml", "tokens.yaml"}
    assert [path for path in watched if path in places or path.parent not in places] == []
    assert Path("data") not in map(Path, places.values()), "the token itself is there"
    assert re.findall(r"-v \S+\.yaml:", text_of("docs/containers.md")) == []


def test_containers_may_read_what_is_mounted_of_a_checkout_under_umask_077(tmp_path: Path) -> None:
    for place in ("examples/compose", "charts/tickover/files"):
        shutil.copytree(ROOT / place, tmp_path / place)
    (tmp_path / "data" / "tokens").mkdir(parents=True)
    for name in ("tokens/tokens.yaml", "token"):
        (tmp_path / "data" / name).write_text("secret")
    for path in tmp_path.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    command = ["make", "-f", str(ROOT / "Makefile"), "--old-file=data/tokens/tokens.yaml", "readable"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    for host_path, *_ in mounted():
        there = tmp_path / host_path
        for path in (there, *there.rglob("*")):
            assert path.stat().st_mode & 0o004, path
            assert not path.is_dir() or path.stat().st_mode & 0o001, path
    assert (tmp_path / "data" / "token").stat().st_mode & 0o777 == 0o600


def test_any_user_of_group_0_may_write_where_the_image_keeps_its_data() -> None:
    text = text_of("Dockerfile")
    assert "chgrp --recursive 0 /var/lib/tickover && chmod --recursive g=u /var/lib/tickover" in text
    assert re.search(r"^ +HOME=/var/lib/tickover ", text, re.MULTILINE), "a user without an entry has none else"
    tmpfs = yaml.safe_load(text_of("docker-compose.yml"))["services"]["tickover"]["tmpfs"]
    assert tmpfs == ["/tmp", "/var/lib/tickover:mode=1777"]
