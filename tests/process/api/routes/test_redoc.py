"""Redoc reads the API's description to its end: no reference leads nowhere, and no code is made from text, which the
page's policy forbids. How the page looks is for people to see."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.services.fixtures import missing
from tests.source import ROOT
from tests.unit.api_world import World

pytestmark = pytest.mark.slow

LIMIT_S = 120.0


def read(document: dict[str, Any], place: Path) -> dict[str, Any]:
    """Operations of a document as Redoc has them, and its complaints."""
    node = shutil.which("node")
    if node is None:
        missing("Node", "the package nodejs")
    (place / "openapi.json").write_text(json.dumps(document))
    command = [
        str(node), "--disallow-code-generation-from-strings", str(Path(__file__).with_name("redoc.js")),
        str(ROOT / "api" / "redoc" / "redoc.standalone.js"), str(place / "openapi.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2_000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_shows_every_operation(tmp_path: Path) -> None:
    document = World().app.openapi()
    found = read(document, tmp_path)
    shown = {one["name"]: one for one in found["operations"]}
    described = {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert shown.keys() == described.keys()
    for name, operation in described.items():
        one = shown[name]
        assert one["title"] == operation["summary"]
        assert one["parameters"] == [parameter["name"] for parameter in operation.get("parameters", ())]
        assert one["answers"] == list(operation["responses"])
        assert example(operation) is None or (one["examples"] and example(operation).keys() <= set(one["body"])), name
        assert one["security"] == [[scheme, *roles] for way in operation["security"] for scheme, roles in way.items()]
    assert found["complaints"] == []


def example(operation: dict[str, Any]) -> Any:
    """The body that the document shows; None where there is none."""
    body = operation.get("requestBody")
    return None if body is None else body["content"]["application/json"]["example"]


def test_a_body_whose_schema_is_gone_has_no_fields(tmp_path: Path) -> None:
    document = json.loads(json.dumps(World().app.openapi()))
    del document["components"]["schemas"]["NewMessage"]
    (one,) = [one for one in read(document, tmp_path)["operations"] if one["name"] == "POST /v1/messages"]
    assert one["body"] == []
