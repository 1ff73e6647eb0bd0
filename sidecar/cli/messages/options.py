"""Options that several commands about messages take, and how what they are given is checked."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from policies.duration import parse_time, parse_typed_duration
from policies.errors import FormatError
from sidecar.cli.output import Failure, Status
from sidecar.cli.rest_client import Options

TopicOption = Annotated[str | None, typer.Option("--source", "--topic", help="Source topic.")]
PartitionOption = Annotated[int | None, typer.Option(help="Partition of the source.", min=0)]
HELD_CONDITIONS: Final[Options] = {
    "topic": TopicOption,
    "partition": PartitionOption,
    "policy": Annotated[str | None, typer.Option(help="Policy, as name or name@version.")],
    "target": Annotated[str | None, typer.Option(help="Target topic.")],
    "id": Annotated[str | None, typer.Option("--id", help="Id of the message.")],
    "key_prefix": Annotated[str | None, typer.Option(help="First characters of the key.")],
    "header": Annotated[str | None, typer.Option(help="A header, as name=value.")],
    "error_class": Annotated[str | None, typer.Option(help="Error class of a retry.")],
    "due_from": Annotated[str | None, typer.Option(help="Due then or later: RFC 3339 or epoch milliseconds.")],
    "due_to": Annotated[str | None, typer.Option(help="Due before: RFC 3339 or epoch milliseconds.")],
}
ONE_MESSAGE: Final[Options] = {
    "source": Annotated[str | None, typer.Option(help="Source topic, where the id is held in several.")],
    "partition": PartitionOption,
}
PastOption = Annotated[bool, typer.Option("--past", help="A time more than a minute ago is meant: it is due at once.")]


def read_header(text: str) -> list[str]:
    """`name=value` as name and value."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failure(f"--header {text}: must be name=value", Status.USAGE)
    return [name, value]


def time_given(delay: str | None, deliver_at: str | None) -> dict[str, str]:
    """At most one of both, checked here so that a slip of the finger needs no sidecar to be found."""
    if delay is not None and deliver_at is not None:
        raise Failure("give --delay or --deliver-at, not both", Status.USAGE)
    if deliver_at is not None:
        return {"deliver_at": str(time_checked("--deliver-at", deliver_at))}
    return {} if delay is None else {"delay": str(duration_checked("--delay", delay))}


def duration_checked(option: str, text: str | None) -> str | None:
    """Checked as `time_checked` does, and that it has a unit; what REST takes may be a bare number."""
    if text is not None:
        try:
            parse_typed_duration(text)
        except FormatError as error:
            raise Failure(f"{option}: {error}", Status.USAGE) from None
    return text


def ids_of(option: str, file: str) -> list[str]:
    """Lines of a file (- is stdin) without those that are empty. Raises Failure."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"{option} {file}: {error.strerror}", Status.USAGE) from None
    except UnicodeDecodeError:
        raise Failure(f"{option} {file}: not UTF-8 text", Status.USAGE) from None
    ids = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if not ids:
        raise Failure(f"{option} {file}: there is no id in it", Status.USAGE)
    return ids


def past_query(past: bool) -> dict[str, str]:
    """The part of a query that says that a time in the past is meant."""
    return {"past": "true"} if past else {}


def time_checked(option: str, text: str | None) -> str | None:
    """Checked here, so that a slip of the finger needs no sidecar to be found."""
    if text is not None:
        time_ms(option, text)
    return text


def time_ms(option: str, text: str) -> int:
    """Epoch milliseconds of a time. Raises Failure."""
    try:
        return parse_time(text)
    except FormatError as error:
        raise Failure(f"{option}: {error}", Status.USAGE) from None


def check_due(conditions: Mapping[str, Any]) -> None:
    """Check the times in `HELD_CONDITIONS`. Raises Failure."""
    time_checked("--due-from", conditions.get("due_from"))
    time_checked("--due-to", conditions.get("due_to"))
