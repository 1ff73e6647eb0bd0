"""`tickover messages send`: one delayed message, or those of a file."""

import base64
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TextIO

import httpx
import typer

from sidecar.cli.messages.options import PastOption, duration_checked, past_query, read_header, time_checked, time_given
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show, show_pages
from sidecar.cli.rest_client import Sidecar, TokenOption, UrlOption, connect, given
from sidecar.model.message_file import MessageFileError, batches, messages_in

VALUE_BYTES_MAX: Final = 1 << 20  # the sidecar takes no larger body

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Send delayed messages, look them up, change them.")
app.callback()(output_before)


# The parameters of a command are its options: they cannot be fewer than what the user may say.
@app.command()
def send(
    context: typer.Context,
    target: Annotated[str | None, typer.Option(help="Topic the message goes to when it is due.")] = None,
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
    file: Annotated[
        str | None, typer.Option(help="CSV or JSON lines, a message each; - is stdin. --target and --source fill gaps.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --file: say what would become of each.")] = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Send a message that is delivered later, or those of a file; prints id, due time and place once Kafka has it."""
    alone = (key, value, value_file, header, delay, deliver_at, spread, expires_at, target_partition, message_id)
    if file is not None:
        if any(option is not None for option in alone):
            raise Failure("with --file only --target and --source say something of each message", Status.USAGE)
        gaps = given({"target": target, "source": source})
        with connect(context, url, token) as sidecar:
            _send_file(sidecar, file, gaps, Sending(past, dry_run, idempotency_key), form)
        return
    if target is None or dry_run:
        raise Failure("give --target; --dry-run goes with --file" if dry_run else "give --target", Status.USAGE)
    if value is not None and value_file is not None:
        raise Failure("give --value or --value-file, not both", Status.USAGE)
    body: dict[str, Any] = {"target": target, "headers": [read_header(text) for text in header or ()]}
    optional = {
        "source": source, "key": key, "id": message_id, "target_partition": target_partition,
        "spread": duration_checked("--spread", spread), "expires_at": time_checked("--expires-at", expires_at),
        **time_given(delay, deliver_at),
    }  # fmt: skip
    body |= given(optional)
    body["value"] = value if value_file is None else content_of(value_file)
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    with connect(context, url, token) as sidecar:
        show(sidecar.document("POST", f"/v1/messages?{httpx.QueryParams(past_query(past))}", body, headers), form)


class Sending(NamedTuple):
    """How a file is sent. `key`: of its batches, each with its number behind."""

    past: bool
    dry_run: bool
    key: str | None


COLUMNS: Final = ("line", "status", "id", "due", "place", "problem")


def _send_file(sidecar: Sidecar, file: str, gaps: Mapping[str, Any], how: Sending, form: Form) -> None:
    """Send batch by batch, and print what became of each message. Raises Failure where one was refused."""
    counts = Counter[bool]()
    flags = past_query(how.past) | ({"dry_run": "true"} if how.dry_run else {})

    def answers() -> Iterator[list[dict[str, Any]]]:
        with _opened(file) as stream:
            for number, batch in enumerate(batches(messages_in(stream))):
                body = {"messages": [{**gaps, **line.message} for line in batch]}
                headers = {} if how.key is None or how.dry_run else {"Idempotency-Key": f"{how.key}-{number}"}
                answer = sidecar.document("POST", f"/v1/messages:batch?{httpx.QueryParams(flags)}", body, headers)
                items = [{"line": line.number, **item} for line, item in zip(batch, answer["items"], strict=True)]
                counts.update("problem" in item for item in items)
                yield items

    try:
        show_pages(answers(), _answer, form, COLUMNS)
    except MessageFileError as error:
        raise Failure(f"--file {file}: {error}; {counts[False]} {_done(how)} before", Status.USAGE) from None
    except Failure as failure:
        raise Failure(f"{failure}; {counts[False]} {_done(how)} before", failure.status) from None
    say(f"{counts[False]} {_done(how)}, {counts[True]} refused")
    if counts[True]:
        raise Failure(f"{counts[True]} messages of {file} {'would be' if how.dry_run else 'were'} refused")


def _done(how: Sending) -> str:
    return "would be sent" if how.dry_run else "sent"


def _answer(item: Mapping[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    problem, place = item.get("problem"), item.get("position")
    return {**item, "problem": problem and problem["detail"], "place": place and "/".join(map(str, place.values()))}


@contextmanager
def _opened(file: str) -> Iterator[TextIO]:
    try:
        if file == "-":
            yield sys.stdin
        else:
            with Path(file).open(encoding="utf-8", newline="") as stream:
                yield stream
    except OSError as error:
        raise Failure(f"--file {file}: {error.strerror}", Status.USAGE) from None
    except UnicodeDecodeError:
        raise Failure(f"--file {file}: not UTF-8 text", Status.USAGE) from None


def content_of(file: str) -> str | dict[str, str]:
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
