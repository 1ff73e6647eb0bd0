"""The demo's report where it can't be made."""

from pathlib import Path

import pytest

from sidecar.demo.demo import JOBS_LOG, write_report

pytestmark = pytest.mark.slow


def test_a_job_that_fails_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no java
    monkeypatch.delenv("JAVA_HOME", raising=False)
    said: list[str] = []

    assert not write_report(tmp_path, "nowhere:1", "group", ["orders"], said.append)

    log = tmp_path / "group" / JOBS_LOG
    assert said[1:] == [f"ingest ended with status 1: {log.read_text().strip()}; all of its words: {log}"]
    assert "tickover" in said[1]
