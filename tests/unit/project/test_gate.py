"""The gate accepts a whole run and names what is wrong with any other."""

from pathlib import Path

import pytest

from tests.gate import find_faults, main, read_cases, summarise

WHOLE = """<testsuites><testsuite>
<testcase classname="tests.unit.engine.partition.test_wheel" name="test_a"/>
<testcase classname="tests.integration.test_flow" name="test_b"/>
</testsuite></testsuites>"""
SKIPPED = WHOLE.replace(
    'name="test_b"/>',
    'name="test_b"/><testcase classname="tests.contract.test_c" name="test_c">'
    '<skipped type="pytest.skip" message="no Docker"/></testcase>',
)


def test_a_whole_run_counts() -> None:
    cases = read_cases(WHOLE)
    assert find_faults(cases) == []
    assert summarise(cases) == "2 tests: 2 passed, 0 failed, 0 skipped, 0 xfailed"


def test_a_run_without_tests_does_not_count() -> None:
    faults = find_faults(read_cases("<testsuites><testsuite/></testsuites>"))
    assert faults == ["no test ran", "no integration test ran"]


def test_a_run_without_integration_does_not_count() -> None:
    cases = [case for case in read_cases(WHOLE) if case.place.startswith("tests.unit")]
    assert find_faults(cases) == ["no integration test ran"]


def test_a_skipped_test_of_a_service_is_named_with_its_reason() -> None:
    assert find_faults(read_cases(SKIPPED)) == ["skipped: tests.contract.test_c::test_c (no Docker)"]


def test_a_module_that_is_skipped_whole_is_named_too() -> None:
    report = SKIPPED.replace(
        'classname="tests.contract.test_c" name="test_c"', 'classname="" name="tests.contract.test_c"'
    )
    assert find_faults(read_cases(report)) == ["skipped: ::tests.contract.test_c (no Docker)"]


@pytest.mark.parametrize("element", ["failure", "error"])
def test_a_failure_is_named_with_its_reason(element: str) -> None:
    report = WHOLE.replace('name="test_b"/>', f'name="test_b"><{element} message="no answer"/></testcase>')
    assert find_faults(read_cases(report)) == ["failed: tests.integration.test_flow::test_b (no answer)"]


def test_an_expected_failure_is_no_skip() -> None:
    report = SKIPPED.replace("pytest.skip", "pytest.xfail")
    assert find_faults(read_cases(report)) == []


@pytest.mark.parametrize(("strict", "status"), [(True, 1), (False, 0)])
def test_faults_end_the_command_in_ci_only(tmp_path: Path, strict: bool, status: int) -> None:
    path = tmp_path / "tests.xml"
    path.write_text(SKIPPED)
    assert main([str(path)], strict) == status


def test_a_missing_report_always_fails(tmp_path: Path) -> None:
    assert main([str(tmp_path / "none.xml")], strict=False) == 1


def test_several_reports_are_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, unit = tmp_path / "whole.xml", tmp_path / "unit.xml"
    whole.write_text(WHOLE)
    unit.write_text(
        '<testsuites><testsuite><testcase classname="tests.unit.test_x" name="x"/></testsuite></testsuites>'
    )
    assert main([str(unit), str(whole)], strict=True) == 0
    assert capsys.readouterr().out.startswith("3 tests: 3 passed")
    assert main([str(unit)], strict=True) == 1
