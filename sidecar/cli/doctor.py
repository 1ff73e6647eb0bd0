"""`tickover doctor`, what is wrong around the sidecar and how to mend it; `tickover acl`, which rights it needs;
`tickover size`, how much a load takes.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from policies.duration import parse_typed_duration
from policies.errors import FormatError
from policies.fields import parse_size
from policies.model import Policy
from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.named_resources import INPUT_CHARACTERS_MAX
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show, show_items
from sidecar.cli.policies import POLICY
from sidecar.cli.rest_client import TokenOption, connect
from sidecar.doctor.acl import RedisRights, Right, Rights, kafka_commands, kafka_rights, redis_command, redis_rights
from sidecar.doctor.doctor import Finding, Severity, examine
from sidecar.doctor.redis_tools import redis_tools
from sidecar.doctor.sizing import (
    PARTITIONS_DEFAULT,
    REDIS_PACKED,
    REPLICATION_FACTOR_DEFAULT,
    VALUE_BYTES_DEFAULT,
    Load,
    parse_count,
    parse_rate,
    parse_share,
    shown,
    size,
)
from sidecar.doctor.versions import VersionError, examine_version
from sidecar.model.foreign_text import LINES, visible
from sidecar.model.version import VERSION
from sidecar.settings.settings import Settings

REDIS_USER: Final = "tickover"
COMMANDS_A_LINE: Final = 10
VALUE_BYTES_MAX: Final = 10_000_000
PARTITIONS_MAX: Final = 100_000
REPLICAS_MAX: Final = 10_000

Number = TypeVar("Number", int, float)

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
VersionOption = Annotated[
    str,
    typer.Option(
        "--version-from",
        metavar="VERSION",
        help="Instead, say what this program changes for a group that runs this version, as 0.1.0. Asks no server.",
    ),
]
SidecarOption = Annotated[
    str, typer.Option("--url", help="Instead, have this sidecar look from where it runs, with its settings.")
]
ExistsOption = Annotated[bool, typer.Option("--no-create", help="tickover's own topics exist already.")]


# tidy: a command's options
def doctor(
    context: typer.Context,
    config: ConfigOption = None,
    given: SetOption = None,
    version_from: VersionOption = "",
    url: SidecarOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Check brokers, topics, retention, message sizes, Redis and clocks. Writes no record. 1 on any error."""
    if url and (version_from or config or given):
        raise Failure("--url: a sidecar that runs has its own settings and version; leave out the others", Status.USAGE)
    if url:
        with connect(context, url, token) as sidecar:
            findings = [_finding(item) for item in sidecar.document("GET", "/v1/doctor").get("items", ())]
    else:
        findings = _of_versions(version_from) if version_from else examine(settings_of(config, given))
    if form is Form.TABLE:
        print(visible(_text(findings), LINES))
    else:
        show([{**finding._asdict(), "severity": finding.severity.value} for finding in findings], form)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    say(f"{_count(errors, 'error')}, {_count(warnings, 'warning')}")
    raise typer.Exit(Status.FAILED if errors else Status.OK)


def _of_versions(since: str) -> list[Finding]:
    """Raises Failure."""
    try:
        return examine_version(since, VERSION)
    except VersionError as error:
        raise Failure(f"--version-from: {error}", Status.USAGE) from None


def _finding(item: dict[str, Any]) -> Finding:
    """A finding of a sidecar. Raises Failure where it is none."""
    try:
        return Finding(Severity(item["severity"]), str(item["part"]), str(item["what"]), str(item.get("fix") or ""))
    except (KeyError, TypeError, ValueError):
        raise Failure(
            "the sidecar tells findings that this version doesn't know; use the version that it has"
        ) from None


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
    tools, of_redis = settings.kafka.tools, redis_tools(settings.redis)
    for line in kafka_commands(found.rights, principal, tools):
        print(line)
    print(redis_command(redis, settings.redis.username or REDIS_USER, of_redis))
    if tools.login:
        say(tools.note.strip())
    if of_redis.note:
        say(of_redis.note)


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


# tidy: a command's options
def size_load(
    delay: Annotated[str, typer.Option(help="The longest time that a record is held: 30d.")],
    rate: Annotated[
        str, typer.Option(help="Records a second of all sources on average, each attempt counted: 200/s.")
    ] = "",
    pending: Annotated[str, typer.Option(help="Records held at once: 1M. Of rate and pending one is enough.")] = "",
    value: Annotated[
        str, typer.Option(help="Size of a value: 200 (bytes), 2kB (2,000 of them), 2KiB (2,048).")
    ] = f"{VALUE_BYTES_DEFAULT}",
    ids: Annotated[str, typer.Option("--with-id", help="Share of the records that have a tickover-id: 25%.")] = "0%",
    packed: Annotated[
        str, typer.Option(help="Share of a value that zstd leaves; 100% of what is encrypted.")
    ] = f"{REDIS_PACKED.value:.0%}",
    same_delay: Annotated[bool, typer.Option("--same-delay", help="All records wait equally long.")] = False,
    partitions: Annotated[
        int, typer.Option(help="Partitions of all sources.", min=1, max=PARTITIONS_MAX)
    ] = PARTITIONS_DEFAULT,
    replicas: Annotated[
        int, typer.Option(help="Processes of tickover; 0: as many as are advised.", min=0, max=REPLICAS_MAX)
    ] = 0,
    replication_factor: Annotated[
        int, typer.Option(help="Replicas of each topic.", min=1, max=100)
    ] = REPLICATION_FACTOR_DEFAULT,
    retention: Annotated[str, typer.Option(help="retention.ms of the sources; left out: delay and 7d.")] = "",
    target_retention: Annotated[str, typer.Option(help="retention.ms of the targets.")] = "7d",
    form: OutputOption = Form.TABLE,
) -> None:
    """Reckon what a load needs: Redis, Kafka's disk, memory, CPU, replicas. Asks nobody."""
    try:
        delay_ms = _read("--delay", parse_typed_duration, delay)
        held = _read("--pending", parse_count, pending) if pending else 0
        load = Load(
            _read("--rate", parse_rate, rate) if rate else _rate_of(held, delay_ms),
            delay_ms,
            held,
            _read("--value", partial(parse_size, max_bytes=VALUE_BYTES_MAX), value),
            _read("--with-id", parse_share, ids),
            _read("--packed", parse_share, packed),
            same_delay,
            partitions,
            replicas,
            replication_factor,
            _read("--retention", parse_typed_duration, retention) if retention else 0,
            _read("--target-retention", parse_typed_duration, target_retention),
        )
    except FormatError as error:
        raise Failure(str(error), Status.USAGE) from None
    show_items([need._asdict() for need in size(load, Settings())], _sized, form)
    if load.pending > load.rate * load.delay_ms / 1_000:
        say("more are pending than come in within --delay at this rate: Kafka's disk is reckoned for those pending")


def _rate_of(held: int, delay_ms: int) -> float:
    """Records a second of which so many are held at once. Raises Failure."""
    if not held or not delay_ms:
        raise Failure("say --rate, or --pending", Status.USAGE)
    return held * 1_000 / delay_ms


def _read(option: str, parse: Callable[[str], Number], text: str) -> Number:
    """An option's number. Raises Failure with the option's name."""
    try:
        return parse(text)
    except FormatError as error:
        raise Failure(f"{option}: {error}", Status.USAGE) from None


def _sized(need: dict[str, Any]) -> dict[str, Any]:
    """A line for people: the amount with its unit, before how it is reckoned."""
    return {
        **{name: need[name] for name in ("part", "what")},
        "need": shown(need["amount"], need["unit"]),
        "formula": need["formula"],
    }
