"""`make release`, whole: built, installed where nothing else is, run, audited, packaged."""

from pathlib import Path

import pytest

from tests.release import dry_run, version_of_project

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]  # it fetches packages


def test_a_release_could_be_made(tmp_path: Path) -> None:
    said: list[str] = []
    dry_run(tmp_path / "release", said.append)
    print("\n".join(["", *said]))
    version = version_of_project()
    assert {path.name for path in (tmp_path / "release").iterdir()} == {
        f"tickover-{version}.tar.gz",
        f"tickover-{version}-py3-none-any.whl",
        f"tickover-{version}.tgz",
        "NOTES.md",
        "SHA256SUMS",
        "licences.csv",
    }
    assert len((tmp_path / "release" / "SHA256SUMS").read_text().splitlines()) == 3
