"""`tickover messages send`: one delayed message, or those of a file."""

import base64
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer

from sidecar.cli.messages.options import PastOption, duration_checked, past_query, read_header, time_checked, time_given
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, show
from sidecar.cli.rest_client import TokenOption, UrlOption, connect, given

VALUE_BYTES_MAX: Final = 1 << 20  # the sidecar takes no larger body

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Send delayed messages, look them up, change them.")
app.callback()(output_before)


# The parameters of a command are its options: they cannot be fewer than what the user may say.
@app.command()
def send(
    context: typer.Context,
    target: Annotated[str, typer.Option(help="Topic the message goes to when it is due.")],
    source: Annotated[str | None, typer.Option(help="Delay topic; may be left out where one policy fits.")] = None,
    key: Annotated[str | None, typer.Option(help="Key, as text; left out: null.")] = None,
    value: Annotated[str | None, typer.Option(help="Value, as text; left out: null.")] = None,
    value_file: Annotated[str | None, typer.Option(help="File with the value, any bytes; - is stdin.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="name=value; may be repeated, the order is kept.")] = None,
    delay: Annotated[str | None, typer.Option(help="How long to wait: 250ms, 90s, 15m, 2h, 3d or PT90S.")] = None,
    deliver_at: Annotated[str | None, typer.Option(help="When: RFC 3339 with zone, or epoch milliseconds.")] = None,
    spread: Annotated[str | None, typer.Option(help="How much later it may be, so that herds move apart.")] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="Not after: RFC 3339 with zone, or epoch milliseconds.")
    ] = None,
    target_partition: Annotated[
        int | None, typer.Option(min=0, help="Partition of the target; else by the key.")
    ] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Your id of the message.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Sending again with this key, within 24 h, sends nothing twice.")
    ] = None,
    past: PastOption = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Send a message that is delivered later; prints its id, due time and place once Kafka has it."""
    if value is not None and value_file is not None:
        raise Failure("give --value or --value-file, not both", Status.USAGE)
    body: dict[str, Any] = {"target": target, "headers": [read_header(text) for text in header or ()]}
    optional = {
        "source": source, "key": key, "id": message_id, "target_partition": target_partition,
        "spread": duration_checked("--spread", spread), "expires_at": time_checked("--expires-at", expires_at),
        **time_given(delay, deliver_at),
    }  # fmt: skip
    body |= given(optional)
    body["value"] = value if value_file is None else _content(value_file)
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    with connect(context, url, token) as sidecar:
        show(sidecar.document("POST", f"/v1/messages?{httpx.QueryParams(past_query(past))}", body, headers), form)


def _content(file: str) -> str | dict[str, str]:
    """The file as text where it is UTF-8, else as base64."""
    try:
        if file == "-":
            content = sys.stdin.buffer.read(VALUE_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as stream:
                content = stream.read(VALUE_BYTES_MAX + 1)
    except OSError as error:
        raise Failure(f"--value-file {file}: {error.strerror}", Status.USAGE) from None
    if len(content) > VALUE_BYTES_MAX:
        raise Failure(f"--value-file {file}: larger than 1 MiB; produce it to the delay topic yourself", Status.USAGE)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
