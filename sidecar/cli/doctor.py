"""`tickover doctor`, what is wrong around the sidecar and how to mend it; `tickover acl`, which rights it needs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from policies.model import Policy
from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.named_resources import INPUT_CHARACTERS_MAX
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show
from sidecar.cli.policies import POLICY
from sidecar.doctor.acl import RedisRights, Right, Rights, kafka_commands, kafka_rights, redis_command, redis_rights
from sidecar.doctor.doctor import Finding, Severity, examine
from sidecar.model.foreign_text import LINES, visible
from sidecar.settings.settings import Settings

REDIS_USER: Final = "tickover"
COMMANDS_A_LINE: Final = 10

acl_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show which rights tickover needs.")
acl_app.callback()(output_before)

PrincipalOption = Annotated[
    str, typer.Option("--principal", help="Print the commands that give the rights to this one, as User:tickover.")
]
FileOption = Annotated[
    list[str] | None, typer.Option("--file", "-f", help="YAML file of policies beside policies.file; - is stdin.")
]
TopicsOption = Annotated[
    str, typer.Option("--topics", help="File of the cluster's topics, one a line, for globs as *-retry; - is stdin.")
]
ExistsOption = Annotated[bool, typer.Option("--no-create", help="tickover's own topics exist already.")]


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
    """A finding, and a line for its fix: commands are copied, so no column may break them."""
    lines = []
    for finding in findings:
        what = finding.what.replace("\n", f"\n{'':<8}")
        lines.append(f"{finding.severity.value:<8}{finding.part}: {what}")
        if finding.fix:
            lines.append(f"{'':<8}fix: {finding.fix}")
    return "\n".join(lines)


@acl_app.command("print")
# tidy: a command's options
def print_rights(
    config: ConfigOption = None,
    given: SetOption = None,
    file: FileOption = None,
    topics: TopicsOption = "",
    no_create: ExistsOption = False,
    principal: PrincipalOption = "",
    form: OutputOption = Form.TABLE,
) -> None:
    """Print exactly the rights that tickover needs in Kafka and Redis. 1 when a glob's topics aren't known."""
    settings = settings_of(config, given)
    found = kafka_rights(settings, _policies(settings, file or ()), _topics(topics), creates=not no_create)
    redis = redis_rights(settings)
    if principal:
        _show_commands(found, redis, principal, settings)
    else:
        _show_rights(found, redis, form)
    for where, glob in found.unresolved:
        say(f"not listed: {where} {glob}: Kafka's access control has no such pattern; name topics, or pass --topics")
    raise typer.Exit(Status.FAILED if found.unresolved else Status.OK)


def _policies(settings: Settings, files: Sequence[str]) -> list[Policy]:
    """Policies of the file that the settings name, and of the others. Raises Failure."""
    named = (*([settings.policies.file] if settings.policies.file else ()), *files)
    policies = [policy for file in named for policy in POLICY.read(file)]
    if not policies:
        say("no policies are given (policies.file, or -f FILE): sources, targets and dead letters are not listed")
    return policies


def _topics(file: str) -> list[str]:
    if not file:
        return []
    try:
        text = sys.stdin.read(INPUT_CHARACTERS_MAX) if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise Failure(f"--topics {file}: {reason}", Status.USAGE) from None
    return text.split()


def _show_commands(found: Rights, redis: RedisRights, principal: str, settings: Settings) -> None:
    tools = settings.kafka.tools
    for line in kafka_commands(found.rights, principal, tools):
        print(line)
    print(redis_command(redis, settings.redis.username or REDIS_USER))
    if tools.login:
        say(tools.note.strip())


def _show_rights(found: Rights, redis: RedisRights, form: Form) -> None:
    kafka = [_row(right) for right in found.rights]
    if form is Form.TABLE:
        show(kafka, form)
        print()
        lines = [redis.commands[at : at + COMMANDS_A_LINE] for at in range(0, len(redis.commands), COMMANDS_A_LINE)]
        parts = [("keys", redis.keys), ("channel", redis.channels), *(("commands", line) for line in lines)]
        show([{"redis": what, "name": names} for what, names in parts], form)
        return
    rule = " ".join(redis.rules)
    show(
        {"kafka": kafka, "redis": {name: list(value) for name, value in redis._asdict().items()} | {"rule": rule}}, form
    )


def _row(right: Right) -> dict[str, Any]:
    return {
        "resource": right.resource,
        "pattern": right.pattern.kind,
        "name": right.pattern.name,
        "operations": list(right.operations),
        "role": right.role,
    }
