"""`tickover messages cancel|reschedule|fire`: change what becomes of a held message, and print the receipt."""

from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from sidecar.cli.messages import time_given
from sidecar.cli.output import Failure, Form, OutputOption, Status, say, show
from sidecar.cli.rest_client import TokenOption, UrlOption, connect

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the message.")]
SourceOption = Annotated[str | None, typer.Option(help="Source topic, where the id is held in several.")]
PartitionOption = Annotated[int | None, typer.Option(help="Partition of the source.", min=0)]


# tidy: the parameters of a command are its options
def cancel(
    context: typer.Context,
    message_id: IdArgument,
    source: SourceOption = None,
    partition: PartitionOption = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Cancel a held message: it will not be emitted."""
    with connect(context, url, token) as sidecar:
        _show(sidecar.document("DELETE", _path(message_id, "", source, partition)), form)


# tidy: the parameters of a command are its options
def reschedule(
    context: typer.Context,
    message_id: IdArgument,
    delay: Annotated[str | None, typer.Option(help="From now: 250ms, 90s, 15m, 2h, 3d or PT90S.")] = None,
    deliver_at: Annotated[str | None, typer.Option(help="When: RFC 3339 with zone, or epoch milliseconds.")] = None,
    source: SourceOption = None,
    partition: PartitionOption = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Give a held message another due time."""
    when = time_given(delay, deliver_at)
    if not when:
        raise Failure("give --delay or --deliver-at", Status.USAGE)
    with connect(context, url, token) as sidecar:
        _show(sidecar.document("PATCH", _path(message_id, "", source, partition), when), form)


# tidy: the parameters of a command are its options
def fire(
    context: typer.Context,
    message_id: IdArgument,
    source: SourceOption = None,
    partition: PartitionOption = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Emit a held message now."""
    with connect(context, url, token) as sidecar:
        _show(sidecar.document("POST", _path(message_id, "/fire", source, partition)), form)


def _path(message_id: str, step: str, source: str | None, partition: int | None) -> str:
    given = {"source": source, "partition": partition}
    query = httpx.QueryParams({name: value for name, value in given.items() if value is not None})
    return f"/v1/messages/{quote(message_id, safe='', errors='surrogateescape')}{step}?{query}"


def _show(document: dict[str, Any], form: Form) -> None:
    show(document, form)
    if document.get("outcome") == "pending":
        say("its owner has not answered yet: the control record is in Kafka, and will be obeyed")
