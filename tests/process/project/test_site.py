"""The documentation site: built strictly, and what its hook does to navigation and links."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.site import expanded, leaves
from tests.source import ROOT

pytestmark = pytest.mark.slow

BUILD_S = 400.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built as `make docs` does it: any dead link or anchor fails.

    Not with `--quiet`: warnings that aren't said aren't counted.
    """
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_every_page_is_on_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_what_lies_beside_the_pages_is_on_the_site_too(site: Path) -> None:
    assert 'href="project/index.html"' in (site / "index.html").read_text()  # README.md
    assert (site / "project" / "examples" / "tickover.yaml").read_bytes() == (
        ROOT / "examples/tickover.yaml"
    ).read_bytes()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert "//fonts." not in (site / "index.html").read_text()


def test_a_pattern_stands_for_the_pages_that_are_named_nowhere_else(tmp_path: Path) -> None:
    for name in ("index.md", "b.md", "a.md", "named.md", "x/one.md", "x/index.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    nav = ["index.md", {"Guides": "x/*"}, {"More": ["named.md", "*"]}]
    assert expanded(nav, tmp_path, set(leaves(nav))) == [
        "index.md",
        {"Guides": ["x/index.md", "x/one.md"]},
        {"More": ["named.md", "a.md", "b.md"]},
    ]
