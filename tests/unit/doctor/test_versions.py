"""`tickover doctor --version-from`: its words, and that code and pages say the same."""

import re
from typing import Final

import pytest
from typer.testing import CliRunner

from policies.topic.log import SCHEMA as POLICY_SCHEMA
from sidecar.cli import doctor as command
from sidecar.cli.app import app
from sidecar.doctor.facts import Finding, Severity
from sidecar.doctor.versions import FORMATS, VersionError, examine_version
from sidecar.ledger.block import NO_ENTRIES, NOTHING_SETTLED, Block, encode
from sidecar.ledger.commit_metadata import _VERSION, _VERSION_WITHOUT_CUTS
from sidecar.model.record import Position
from sidecar.operations.dead_letters.redrive_plan import PLAIN_SCHEMA
from sidecar.operations.dead_letters.redrive_plan import SCHEMA as PLAN_SCHEMA
from sidecar.operations.pauses.store import SCHEMA as PAUSE_SCHEMA
from sidecar.operations.schedules.schedule_book import SCHEMA as SCHEDULE_SCHEMA
from sidecar.operations.schedules.schedule_book import SCHEMA_WITHOUT_BOUNDS
from sidecar.overflow.keys import FORMAT
from tests.source import ROOT

BLOCK: Final = encode(Block("g", "t", "", 0, 0, 0, Position(0, 0), 0, 0, (), 0, NOTHING_SETTLED, NO_ENTRIES))
NUMBERS: Final = {
    "ledger block": str(BLOCK[2]),
    "offset commit": f"{_VERSION_WITHOUT_CUTS}; {_VERSION} once a log was cut back",
    "number of a partition's change blocks in Redis": "with `+`",
    "chunk in Redis": str(FORMAT),
    "policy": str(POLICY_SCHEMA),
    "plan of a redrive or change": f"{PLAIN_SCHEMA}; {PLAN_SCHEMA} where another has to approve it, or a redrive "
    "discards, edits, names or searches its letters",
    "schedule": f"{SCHEMA_WITHOUT_BOUNDS}; {SCHEDULE_SCHEMA} once it has a start or an end",
    "pause": str(PAUSE_SCHEMA),
}


def by_part(found: list[Finding]) -> dict[str, Finding]:
    return {one.part: one for one in found if one.part != "formats"}


def test_a_version_that_older_replicas_stop_at_is_not_rolled_and_has_no_way_back() -> None:
    found = examine_version("0.1.0", "0.2.0")
    parts = by_part(found)
    assert parts["roll"].severity is Severity.ERROR
    assert "(ledger block, offset commit)" in parts["roll"].what
    assert parts["roll"].fix.startswith("take all replicas down")
    assert (parts["way back"].severity, "no way back" in parts["way back"].what) == (Severity.WARNING, True)
    told = [one.what for one in found if one.part == "formats"]
    assert "ledger block: 0.1.0 writes 1, 0.2.0 writes 3; 0.1.0 ends with status 1 where it meets that" in told
    assert not any("chunk" in what for what in told), "only what changes"


@pytest.mark.parametrize("now", ["0.2.0", "0.2.1", "0.2.9"])
def test_a_version_that_writes_the_same_is_rolled_and_has_a_way_back(now: str) -> None:
    assert [one.severity for one in examine_version("0.2.0", now)] == [Severity.OK] * 3


def test_what_is_written_only_when_it_is_used_allows_a_roll_with_care(monkeypatch: pytest.MonkeyPatch) -> None:
    from sidecar.doctor import versions

    used = versions.Format(
        "policy", (versions.Step((0, 1, 0), "1"), versions.Step((0, 3, 0), "2", "x is set")), "stops"
    )
    monkeypatch.setattr(versions, "FORMATS", (used,))
    parts = by_part(examine_version("0.2.0", "0.3.0"))
    assert [one.severity for one in parts.values()] == [Severity.WARNING] * 2
    assert parts["way back"].what == "there is a way back to 0.2.0 until x is set"


@pytest.mark.parametrize(
    ("since", "words"),
    [("0.0.9", "nothing is known"), ("0.3.0", "ask the newer one"), ("latest", "no version"), ("0.2", "no version")],
)
def test_of_what_it_does_not_know_it_says_nothing(since: str, words: str) -> None:
    with pytest.raises(VersionError, match=words):
        examine_version(since, "0.2.0")


@pytest.mark.parametrize(("since", "status"), [("0.1.0", 1), ("0.2.0", 0), ("9.0.0", 2)])
def test_the_status_says_whether_replicas_may_be_replaced_one_by_one(
    monkeypatch: pytest.MonkeyPatch, since: str, status: int
) -> None:
    monkeypatch.setattr(command, "VERSION", "0.2.0")
    ran = CliRunner().invoke(app, ["doctor", "--version-from", since])
    assert ran.exit_code == status, ran.output


def test_the_table_has_the_numbers_that_the_code_writes() -> None:
    for one in FORMATS:
        assert re.findall(r"\d+|with", NUMBERS[one.name])[-1] == one.steps[-1].number.removesuffix(" +"), one.name
    assert {one.name for one in FORMATS} == NUMBERS.keys()


def test_the_page_of_formats_has_the_same_numbers() -> None:
    page = (ROOT / "docs/failures.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.partition("## Formats")[2].splitlines() if line.startswith("| ")]
    now = {row[0].removeprefix("| "): row[2] for row in rows}
    assert {name: now.get(name) for name in NUMBERS} == NUMBERS


def test_the_page_of_upgrades_has_a_row_for_each_version_with_new_formats() -> None:
    page = (ROOT / "docs/how-to/upgrade.md").read_text(encoding="utf-8")
    for version in sorted({step.since for one in FORMATS for step in one.steps[1:]}):
        text = ".".join(map(str, version))
        [row] = [line for line in page.splitlines() if line.startswith(f"| {text} |")]
        for one in FORMATS:
            for step in one.steps[1:]:
                if step.since == version:
                    assert f"{one.name} {step.number}" in row
