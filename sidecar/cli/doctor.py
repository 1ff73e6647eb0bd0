"""`tickover doctor`: what is wrong around the sidecar, and how to mend it."""

from collections.abc import Sequence

import typer

from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.output import Form, OutputOption, Status, say, show
from sidecar.doctor.doctor import Finding, Severity, examine
from sidecar.model.foreign_text import LINES, visible


def doctor(config: ConfigOption = None, given: SetOption = None, form: OutputOption = Form.TABLE) -> None:
    """Check brokers, topics, retention, message sizes, Redis and clocks. Writes no record. 1 on any error."""
    findings = examine(settings_of(config, given))
    if form is Form.TABLE:
        print(visible(_text(findings), LINES))
    else:
        show([{**finding._asdict(), "severity": finding.severity.value} for finding in findings], form)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    say(f"{_count(errors, 'error')}, {_count(warnings, 'warning')}")
    raise typer.Exit(Status.FAILED if errors else Status.OK)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _text(findings: Sequence[Finding]) -> str:
    """A line for each finding, a line for its fix: commands are copied, so no column may break them."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity.value:<8}{finding.part}: {finding.what}")
        if finding.fix:
            lines.append(f"{'':<8}fix: {finding.fix}")
    return "\n".join(lines)
