"""One version in every place, written by one command; the changelog tells of it."""

import shutil
from datetime import date
from importlib import metadata
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from policies.table import EMPTY_TABLE
from sidecar.cli.app import app
from sidecar.model.stats import Stats
from sidecar.service.metrics import Exposition, Recorder
from tests import release
from tests.release import check_versions
from tests.source import ROOT
from tests.unit.api_world import World
from tests.version import (
    CHANGELOG,
    PLACES,
    PROJECT,
    NotReleasable,
    notes_of,
    set_version,
    stated_versions,
    unreleased_lines,
    version_of_project,
)

TODAY = date(2026, 3, 1)
LOG = """# Changelog

## [Unreleased]

### Added
- New.

## [0.2.0] - 2026-02-01
- Two.

## [0.1.0] - 2026-01-01
- One.
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copies of the files that state the version, and a changelog."""
    for place in (PROJECT, *PLACES):
        (tmp_path / place.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place.file, tmp_path / place.file)
    (tmp_path / CHANGELOG).write_text(LOG)
    return tmp_path


def test_the_version_of_pyproject_is_everywhere() -> None:
    version = version_of_project()
    assert {place: stated for place, stated in stated_versions().items() if stated != version} == {}
    text = Exposition(Stats, lambda: EMPTY_TABLE, Recorder())().decode()
    [build] = [family for family in text_string_to_metric_families(text) if family.name == "tickover_build_info"]
    assert build.samples[0].labels["version"] == version
    assert World().app.openapi()["info"]["version"] == version
    assert CliRunner().invoke(app, ["--version"]).stdout == f"tickover {version}\n"


def test_an_older_installation_beside_a_checkout_is_not_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "tickover-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tickover\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert metadata.version("tickover") == "0.1.0"
    assert CliRunner().invoke(app, ["--version"]).stdout == f"tickover {version_of_project()}\n"
    since_newer = CliRunner().invoke(app, ["doctor", "--version-from", version_of_project()])
    assert since_newer.exit_code == 0, since_newer.output


def test_a_place_with_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "version_of_project", lambda: "9.9.9")
    with pytest.raises(NotReleasable, match=r"version 9\.9\.9, but the code that runs is "):
        check_versions(print)


def test_a_place_that_states_no_version_is_named(checkout: Path) -> None:
    (checkout / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(NotReleasable, match="Dockerfile states no version"):
        stated_versions(checkout)


def test_one_command_writes_every_place_and_nothing_else(checkout: Path) -> None:
    before = {place.file: (checkout / place.file).read_text() for place in (PROJECT, *PLACES)}
    former = version_of_project(checkout)
    set_version("7.65.43", TODAY, checkout)
    assert version_of_project(checkout) == "7.65.43"
    assert set(stated_versions(checkout).values()) == {"7.65.43"}
    for file, text in before.items():
        assert (checkout / file).read_text().replace("7.65.43", former) == text


def test_what_was_unreleased_is_the_versions_own(checkout: Path) -> None:
    set_version("7.65.43", TODAY, checkout)
    changelog = (checkout / CHANGELOG).read_text()
    assert changelog == LOG.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [7.65.43] - 2026-03-01\n")
    assert notes_of(changelog, "7.65.43") == "### Added\n- New.\n"
    assert unreleased_lines(changelog) == 0


@pytest.mark.parametrize(
    ("version", "changelog", "words"),
    [
        ("", LOG, "is no version"),
        ("7.0", LOG, "is no version"),
        ("v7.0.0", LOG, "is no version"),
        ("0.0.9", LOG, "is not later than"),
        ("7.0.0", LOG.replace("- New.", ""), "nothing is unreleased"),
    ],
)
def test_a_version_that_cannot_be_is_written_nowhere(version: str, changelog: str, words: str, checkout: Path) -> None:
    (checkout / CHANGELOG).write_text(changelog)
    before = {path: path.read_text() for path in checkout.rglob("*") if path.is_file()}
    with pytest.raises(NotReleasable, match=words):
        set_version(version, TODAY, checkout)
    assert {path: path.read_text() for path in before} == before


@pytest.mark.parametrize(
    ("changelog", "words"),
    [
        ("# Changelog\n", "no section"),
        (LOG.replace("## [Unreleased]", "## [0.3.0] - 2026-03-01"), "no section"),
        (LOG.replace("- Two.", ""), "says nothing"),
        (LOG.replace("[0.2.0]", "[0.2.1]"), r"no section \[0.2.0\]: make version"),
        (LOG.replace("2026-02-01", "1 Feb"), "is no"),
        (LOG.replace("[0.1.0]", "[0.3.0]"), "newest version"),
        (LOG + "## [0.2.0] - 2026-02-01\n", "twice"),
        (LOG + "## [0.1.0] - 2026-01-02\n", "each once"),
    ],
)
def test_a_changelog_that_says_too_little_is_refused(changelog: str, words: str) -> None:
    assert notes_of(LOG, "0.2.0") == "- Two.\n"
    with pytest.raises(NotReleasable, match=words):
        notes_of(changelog, "0.2.0")
