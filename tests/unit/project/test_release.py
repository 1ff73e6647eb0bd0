"""Obstacles to a release are found: versions, changelog, licences, advisories. All of it is an integration test."""

import json
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from policies.table import EMPTY_TABLE
from sidecar.model.stats import Stats
from sidecar.service.metrics import Exposition, Recorder
from tests import release
from tests.release import NotReleasable, audited, check_licences, check_versions, is_allowed, notes_of
from tests.unit.api_world import World

CHANGELOG = """# Changelog

## [Unreleased]

### Added
- New.

## [0.2.0] - 2026-02-01
- Two.

## [0.1.0] - 2026-01-01
- One.
"""


def test_the_version_of_pyproject_is_everywhere() -> None:
    version = release.version_of_project()
    assert set(release.stated_versions().values()) == {version}
    text = Exposition(Stats, lambda: EMPTY_TABLE, Recorder())().decode()
    [build] = [family for family in text_string_to_metric_families(text) if family.name == "tickover_build_info"]
    assert build.samples[0].labels["version"] == version, "run `make setup`"
    assert World().app.openapi()["info"]["version"] == version


def test_a_place_with_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "version_of_project", lambda: "9.9.9")
    with pytest.raises(NotReleasable, match=r"version 9\.9\.9, but the chart's version is "):
        check_versions(print)


def test_notes_are_the_versions_own_or_what_is_unreleased() -> None:
    assert notes_of(CHANGELOG, "0.2.0") == ("[0.2.0] - 2026-02-01", "- Two.\n")
    assert notes_of(CHANGELOG, "0.3.0") == ("[Unreleased]", "### Added\n- New.\n")


@pytest.mark.parametrize(
    ("changelog", "words"),
    [
        ("# Changelog\n", "no section"),
        (CHANGELOG.replace("## [Unreleased]", "## [0.3.0] - 2026-03-01"), "no section"),
        (CHANGELOG.replace("- New.", ""), "says nothing"),
        (CHANGELOG.replace("2026-02-01", "1 Feb"), "is no"),
        (CHANGELOG.replace("[0.1.0]", "[0.3.0]"), "newest version"),
        (CHANGELOG + "## [0.2.0] - 2026-02-01\n", "twice"),
    ],
)
def test_a_changelog_that_says_too_little_is_refused(changelog: str, words: str) -> None:
    with pytest.raises(NotReleasable, match=words):
        notes_of(changelog, "0.3.0")


@pytest.mark.parametrize(
    "licence", ["MIT", "Apache-2.0 OR GPL-3.0", "Apache-2.0 AND BSD-2-Clause", "(MIT OR Apache-2.0)"]
)
def test_licences_on_the_list(licence: str) -> None:
    assert is_allowed(licence)


@pytest.mark.parametrize("licence", ["GPL-3.0", "UNKNOWN", "", "MIT AND GPL-3.0", "Apache-2.0; GPL-3.0"])
def test_licences_off_the_list(licence: str) -> None:
    assert not is_allowed(licence)


def test_exceptions_are_by_package_and_needed() -> None:
    lesser = {"Name": "crc32c", "License": "LGPL-2.1-or-later"}
    check_licences([lesser, {"Name": "other", "License": "MIT"}])
    with pytest.raises(NotReleasable, match="other"):
        check_licences([lesser, {"Name": "other", "License": "LGPL-2.1-or-later"}])
    with pytest.raises(NotReleasable, match="nothing needs"):
        check_licences([{"Name": "crc32c", "License": "MIT"}])


def report(*packages: Mapping[str, object]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_an_audit_that_looked_at_nothing_says_so() -> None:
    skipped = {"name": "a", "skip_reason": "Dependency not found on PyPI"}
    fine = {"name": "b", "version": "1", "vulns": []}
    assert "NOT AUDITED" in audited("", "Traceback ...\nConnectionError: nobody there")
    assert "NOT AUDITED" in audited(report(skipped), "")
    assert audited(report(skipped, fine), "").startswith("1 packages without known vulnerabilities, not known")
    with pytest.raises(NotReleasable, match="b 1: CVE-1"):
        audited(report({**fine, "vulns": [{"id": "CVE-1"}]}), "")
