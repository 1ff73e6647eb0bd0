"""`make release`, all but the image: built, installed where nothing else is, run, audited, packaged."""

import json
import re
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.release import LOCK, checksums, prepare
from tests.source import ROOT
from tests.version import version_of_project

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]  # it fetches packages


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release")
    said: list[str] = []
    prepare(directory, said.append)
    checksums(said.append, directory)
    print("\n".join(["", *said]))
    return directory


def test_a_release_could_be_made(released: Path) -> None:
    version = version_of_project()
    made = {path.name: path for path in released.iterdir()}
    assert made.keys() == {
        f"tickover-{version}.tar.gz",
        f"tickover-{version}-py3-none-any.whl",
        f"tickover-{version}.tgz",
        "NOTES.md",
        "SHA256SUMS",
        "licences.csv",
        "sbom.cdx.json",
    }
    sums = [line.split() for line in made.pop("SHA256SUMS").read_text().splitlines()]
    assert sorted(sums) == sorted([sha256(path.read_bytes()).hexdigest(), name] for name, path in made.items())


def test_the_bill_of_materials_is_what_is_locked(released: Path) -> None:
    bill = json.loads((released / "sbom.cdx.json").read_text(encoding="utf-8"))
    about = bill["metadata"]["component"]
    assert (bill["bomFormat"], about["name"], about["version"]) == ("CycloneDX", "tickover", version_of_project())
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    locked = {line.split()[0] for line in lines if "==" in line and "sys_platform == 'win32'" not in line}
    found = {f"{part['name'].lower().replace('_', '-')}=={part['version']}" for part in bill["components"]}
    assert found <= locked
    conditional = {line.split()[0] for line in lines if "==" in line and " ; " in line}
    assert locked - found <= conditional
    needed = {item["ref"]: item.get("dependsOn", []) for item in bill["dependencies"]}
    assert len(needed[about["bom-ref"]]) > 20


@pytest.mark.parametrize("target", ["wheel", "chart"])
def test_the_commands_of_the_readme_make_what_it_says(target: str, tmp_path: Path) -> None:
    """The third, `make image`, makes the image that test_image.py looks at."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [promised] = re.findall(rf"`make {target}`\s[^`]*`dist/([^`]+)`", readme)
    command = ["make", target, f"DIST={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert promised in {path.name for path in tmp_path.iterdir()}
