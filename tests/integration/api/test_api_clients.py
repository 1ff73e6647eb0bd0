"""Clients that are generated from the API's description: without a warning, and the results work."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.process.api.serving.test_api_connections import serving
from tests.services.fixtures import missing
from tests.source import ROOT
from tests.unit.api_world import REMINDERS, World, world

pytestmark = [pytest.mark.integration, pytest.mark.apart]

HERE = Path(__file__).with_name("clients")
GENERATE_S = 120.0
# What a caller of the generated Python client writes; every module of it is imported first.
PROGRAM = """\
import importlib, pkgutil, sys, client
for module in pkgutil.walk_packages(client.__path__, "client."):
    importlib.import_module(module.name)
from client import Client
from client.api.messages import send_message
from client.api.policies import get_policy
from client.models import AcceptedOut, NewMessage, Problem
here = Client(base_url=sys.argv[1], headers={"Tickover-Client": "generated"})
accepted = send_message.sync(client=here, body=NewMessage(target="push", value="hello", delay="90s", id="a"))
assert isinstance(accepted, AcceptedOut), accepted
refused = get_policy.sync(client=here, name="nobody")
assert isinstance(refused, Problem), refused
print(accepted.id, accepted.position.topic, refused.type_)
"""


def run(command: list[str], place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=place, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
        timeout=GENERATE_S,
    )  # fmt: skip


def fetched(command: list[str], place: Path) -> None:
    """A tool that generates; where there is no registry, it is missing."""
    done = run(command, place)
    if done.returncode:
        missing(" ".join(command[:3]), done.stdout + done.stderr)


@pytest.fixture(scope="module", name="description")
def description_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("description") / "openapi.json"
    place.write_text(json.dumps(World().app.openapi()), encoding="utf-8")
    return place


def test_a_python_client_is_made_without_a_warning_and_works(description: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"  # its typer is older than that of the product
    uv = str(Path(sys.executable).with_name("uv"))
    fetched([uv, "venv", "--quiet", "--python", sys.executable, str(own)], tmp_path)
    lock = str(ROOT / "requirements" / "clients.txt")
    fetched([uv, "pip", "install", "--quiet", "--python", str(own), "--require-hashes", "-r", lock], tmp_path)
    bin = own / "bin"
    made = run(
        [str(bin / "openapi-python-client"), "generate", "--path", str(description), "--output-path", "client",
         "--meta", "none", "--fail-on-warning"],
        tmp_path, PATH=f"{bin}:{os.environ['PATH']}",
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    assert "arning" not in made.stdout + made.stderr
    with world() as api, serving(api.app) as server:
        api.add(REMINDERS)
        address = f"http://127.0.0.1:{server.port}"
        assert httpx.get(f"{address}/livez", timeout=60).status_code == 200
        used = run([str(bin / "python"), "-W", "error", "-c", PROGRAM, address], tmp_path)
    assert (used.returncode, used.stdout) == (0, "a reminders /problems/policy-not-found\n"), used.stderr


def test_typescript_types_are_made_without_a_warning_and_compile(description: Path, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        missing("npm", "not installed")
    shutil.copytree(HERE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    fetched([str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], tmp_path)
    tools = tmp_path / "node_modules" / ".bin"
    made = run([str(tools / "openapi-typescript"), str(description), "--output", "api.ts"], tmp_path)
    assert made.returncode == 0, made.stderr
    assert "warn" not in (made.stdout + made.stderr).lower()
    compiled = run([str(tools / "tsc"), "--noEmit", "--strict", "api.ts", "use.ts"], tmp_path)
    assert compiled.returncode == 0, compiled.stdout
