"""Whether a test run may count as one: it ran tests, and skipped none that need a service.

`python -m tests.gate REPORT...` reads pytest's JUnit reports, which make up one run, and prints one line. With CI=true
it ends with status 1 for a run that tested less than it claims; elsewhere it only says so.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

SERVICE_DIRECTORIES = ("tests.integration", "tests.contract", "tests.simulation", "tests.pipeline")

REASON_CHARACTERS_MAX = 600


class Case(NamedTuple):
    """One test of the report."""

    place: str
    name: str
    outcome: str  # passed, failed, skipped or xfailed
    reason: str

    @property
    def needs_service(self) -> bool:
        """Whether it belongs to the directories whose tests must never be skipped in CI."""
        return (self.place or self.name).startswith(SERVICE_DIRECTORIES)  # a whole module has no place but its name


def read_cases(report: str) -> list[Case]:
    """The tests of a JUnit report, given as text."""
    cases = []
    for element in ElementTree.fromstring(report).iter("testcase"):
        skipped = element.find("skipped")
        failed = next((element.find(kind) for kind in ("failure", "error") if element.find(kind) is not None), None)
        outcome, cause = "passed", failed if failed is not None else skipped
        if failed is not None:
            outcome = "failed"
        elif skipped is not None:
            outcome = "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
        reason = "" if cause is None else cause.get("message", "")
        cases.append(Case(element.get("classname", ""), element.get("name", ""), outcome, reason))
    return cases


def find_faults(cases: list[Case]) -> list[str]:
    """Why the run does not count; empty when it does."""
    faults = []
    ran = [case for case in cases if case.outcome in ("passed", "failed", "xfailed")]
    if not ran:
        faults.append("no test ran")
    if not any(case.place.startswith("tests.integration") for case in ran):
        faults.append("no integration test ran")
    faults += [
        f"failed: {case.place}::{case.name} ({case.reason[:REASON_CHARACTERS_MAX]})"
        for case in cases
        if case.outcome == "failed"
    ]
    faults += [
        f"skipped: {case.place}::{case.name} ({case.reason})"
        for case in cases
        if case.outcome == "skipped" and case.needs_service
    ]
    return faults


def summarise(cases: list[Case]) -> str:
    """One line with the count of each outcome."""
    counts = {
        outcome: sum(case.outcome == outcome for case in cases)
        for outcome in ("passed", "failed", "skipped", "xfailed")
    }
    return f"{len(cases)} tests: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def main(paths: Sequence[str], strict: bool) -> int:
    """Print the summary and the faults of these reports together; 1 if there are faults and `strict`."""
    try:
        cases = [case for path in paths for case in read_cases(Path(path).read_text(encoding="utf-8"))]
    except OSError as error:
        sys.stderr.write(f"no report: {error}\n")
        return 1
    faults = find_faults(cases)
    for fault in faults:
        sys.stderr.write(f"{'not accepted' if strict else 'note'}: {fault}\n")
    sys.stdout.write(summarise(cases) + "\n")
    return 1 if strict and faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ.get("CI") == "true"))
