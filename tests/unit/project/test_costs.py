"""Times of files of tests: read from reports, dearest first."""

import json
from pathlib import Path

from tests.costs import as_json, costs_of, read_costs

REPORT = (
    '<testsuites><testsuite><testcase file="tests/a.py" name="one" time="8.5"/><testcase file="tests/a.py" name="two" '
    'time="4.2"/><testcase file="tests/b.py" name="one" time="9.9"/></testsuite><testsuite><testcase file="tests/c.py" '
    'name="one" time="31.0"/></testsuite></testsuites>'
)


def test_a_file_costs_what_its_tests_take_in_all_reports() -> None:
    other = '<testsuites><testsuite><testcase file="tests/b.py" name="two" time="0.2"/></testsuite></testsuites>'
    costs = costs_of([REPORT, other])
    assert {file: round(seconds, 1) for file, seconds in costs.items()} == {
        "tests/a.py": 12.7,
        "tests/b.py": 10.1,
        "tests/c.py": 31.0,
    }


def test_the_dearest_come_first_and_cheap_ones_are_left_out() -> None:
    assert list(json.loads(as_json(costs_of([REPORT]))).items()) == [("tests/c.py", 31), ("tests/a.py", 13)]


def test_files_that_are_named_exist() -> None:
    root = Path(__file__).parents[3]
    assert [file for file in read_costs() if not (root / file).exists()] == []
