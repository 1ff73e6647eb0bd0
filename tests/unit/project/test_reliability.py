"""The page about reliability says what the records say."""

from pathlib import Path
from unittest.mock import patch

from tests import reliability
from tests.reliability import EXPERIMENTS, PAGE, page, record_junit
from tests.source import ROOT

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.integration.engine.test_crashes" name="a" time="2.5"><system-out>x
20 kills: lost 0, early 0
</system-out></testcase>
<testcase classname="tests.integration.engine.test_crashes" name="b" time="1.0"><failure/></testcase>
<testcase classname="tests.unit.test_other" name="c" time="1.0"/>
</testsuite></testsuites>"""


def test_the_page_is_what_the_records_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `.venv/bin/python -m tests.reliability`"


def test_a_failure_shows(tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(JUNIT)
    for name in ("found.yaml", "holes.yaml"):
        (tmp_path / name).write_text("[]")
    with patch.object(reliability, "RECORDS", tmp_path):
        record_junit(tmp_path / "tests.xml")
        text = page()
    assert "| 2 | 1 | 4 |" in text  # two tests, one passed, seconds rounded
    assert "20 kills: lost 0, early 0" in text
    assert "test_other" not in text


def test_every_experiment_exists() -> None:
    assert [experiment.file for experiment in EXPERIMENTS if not (ROOT / experiment.file).is_file()] == []
