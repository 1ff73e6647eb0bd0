"""Obstacles to a release are found: licences, advisories. All of it is an integration test."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.release import audited, check_licences, is_allowed, made
from tests.version import NotReleasable


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


def test_only_what_a_release_makes_is_taken_for_it(tmp_path: Path) -> None:
    """The rest of a directory that somebody named stays when a release is made into it."""
    for name in ("tickover-0.1.0.tgz", "SHA256SUMS", "thesis.md", "tickover.py"):
        (tmp_path / name).touch()
    assert [path.name for path in made(tmp_path)] == ["SHA256SUMS", "tickover-0.1.0.tgz"]
