"""`tickover messages` and `tickover forecast`: sending delayed messages, looking up what is held, changing it."""

import base64
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer

from policies.duration import parse_duration, parse_time
from policies.errors import FormatError
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show, show_items, utc_text
from sidecar.cli.rest_client import PAGE_LIMIT, Options, Sidecar, TokenOption, UrlOption, connect, given, taking

VALUE_BYTES_MAX: Final = 1 << 20  # the sidecar takes no larger body
COLUMNS: Final = ("id", "source", "place", "due", "tier", "target", "policy", "attempt")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Send delayed messages, look them up, change them.")
app.callback()(output_before)

TopicOption = Annotated[str | None, typer.Option("--source", "--topic", help="Source topic.")]
PartitionOption = Annotated[int | None, typer.Option(help="Partition of the source.", min=0)]
HELD_CONDITIONS: Final[Options] = {
    "topic": TopicOption,
    "partition": PartitionOption,
    "policy": Annotated[str | None, typer.Option(help="Policy, as name or name@version.")],
    "target": Annotated[str | None, typer.Option(help="Target topic.")],
    "key_prefix": Annotated[str | None, typer.Option(help="First characters of the key.")],
    "error_class": Annotated[str | None, typer.Option(help="Error class of a retry.")],
    "due_from": Annotated[str | None, typer.Option(help="Due then or later: RFC 3339 or epoch milliseconds.")],
    "due_to": Annotated[str | None, typer.Option(help="Due before: RFC 3339 or epoch milliseconds.")],
}
ONE_MESSAGE: Final[Options] = {
    "source": Annotated[str | None, typer.Option(help="Source topic, where the id is held in several.")],
    "partition": PartitionOption,
}
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the message.")]


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
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Send a message that is delivered later; prints its id, due time and place once Kafka has it."""
    if value is not None and value_file is not None:
        raise Failure("give --value or --value-file, not both", Status.USAGE)
    body: dict[str, Any] = {"target": target, "headers": [read_header(text) for text in header or ()]}
    optional = {
        "source": source, "key": key, "id": message_id, "spread": spread, "target_partition": target_partition,
        "expires_at": time_checked("--expires-at", expires_at), **time_given(delay, deliver_at),
    }  # fmt: skip
    body |= given(optional)
    body["value"] = value if value_file is None else _content(value_file)
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    with connect(context, url, token) as sidecar:
        show(sidecar.document("POST", "/v1/messages", body, headers), form)


@app.command("list")
@taking("conditions", HELD_CONDITIONS)
def list_held(
    context: typer.Context,
    conditions: dict[str, Any],
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """List held messages by due time. All conditions given must hold."""
    check_due(conditions)
    with connect(context, url, token) as sidecar:
        pages = _Pages(sidecar, conditions, limit)
        items = list(islice(pages, limit))
    show_items(items, _summary, form, COLUMNS)
    _say_missing(pages.missing)
    if pages.more:
        say(f"there are more than {limit}: give a larger --limit, or narrow")


@app.command()
@taking("which", ONE_MESSAGE)
def get(
    context: typer.Context,
    message_id: IdArgument,
    which: dict[str, Any],
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.YAML,
) -> None:
    """Show one message: where it is, when it is due, what became of it, and its way there."""
    with connect(context, url, token) as sidecar:
        document = sidecar.document("GET", _path(message_id, which))
    _say_missing(document.pop("missing", []))
    document.pop("partial", None)
    show(document, form)


def _add_change(name: str, method: str, step: str, words: str) -> None:
    """A command that changes what becomes of a held message, and prints the receipt."""

    @app.command(name, help=words)
    @taking("which", ONE_MESSAGE)
    def change(
        context: typer.Context,
        message_id: IdArgument,
        which: dict[str, Any],
        url: UrlOption = "",
        token: TokenOption = None,
        form: OutputOption = Form.TABLE,
    ) -> None:
        with connect(context, url, token) as sidecar:
            _show_receipt(sidecar.document(method, _path(message_id, which, step)), form)


_add_change("cancel", "DELETE", "", "Cancel a held message: it will not be emitted.")


# tidy: the parameters of a command are its options
@app.command()
@taking("which", ONE_MESSAGE)
def reschedule(
    context: typer.Context,
    message_id: IdArgument,
    delay: Annotated[str | None, typer.Option(help="From now: 250ms, 90s, 15m, 2h, 3d or PT90S.")] = None,
    deliver_at: Annotated[str | None, typer.Option(help="When: RFC 3339 with zone, or epoch milliseconds.")] = None,
    *,
    which: dict[str, Any],
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Give a held message another due time."""
    when = time_given(delay, deliver_at)
    if not when:
        raise Failure("give --delay or --deliver-at", Status.USAGE)
    with connect(context, url, token) as sidecar:
        _show_receipt(sidecar.document("PATCH", _path(message_id, which), when), form)


_add_change("fire", "POST", "/fire", "Emit a held message now.")


def forecast(
    context: typer.Context,
    topic: TopicOption = None,
    minutes: Annotated[int, typer.Option(help="How many minutes ahead.", min=1, max=1_440)] = 60,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show how many held messages are due in each of the next minutes."""
    query = httpx.QueryParams(given({"minutes": minutes, "topic": topic}))
    with connect(context, url, token) as sidecar:
        document = sidecar.document("GET", f"/v1/forecast?{query}")
    _say_missing(document.pop("missing", []))
    if form is not Form.TABLE:
        show(document, form)
        return
    items = document.get("items", ())
    rows = [{"minute": utc_text(item.get("minute")), "held": item.get("held")} for item in items if item.get("held")]
    edges = [{"minute": "before", "held": document.get("before")}], [{"minute": "later", "held": document.get("later")}]
    show([*edges[0], *rows, *edges[1]], form, ("minute", "held"))


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
    if delay is None:
        return {}
    try:
        parse_duration(delay)
    except FormatError as error:
        raise Failure(f"--delay: {error}", Status.USAGE) from None
    return {"delay": delay}


def time_checked(option: str, text: str | None) -> str | None:
    """Checked here, so that a slip of the finger needs no sidecar to be found."""
    if text is not None:
        try:
            parse_time(text)
        except FormatError as error:
            raise Failure(f"{option}: {error}", Status.USAGE) from None
    return text


def check_due(conditions: Mapping[str, Any]) -> None:
    """Check the times in `HELD_CONDITIONS`. Raises Failure."""
    time_checked("--due-from", conditions.get("due_from"))
    time_checked("--due-to", conditions.get("due_to"))


class _Pages:
    """Items page by page, until as many were taken as are wanted; notes what was missing in any page."""

    def __init__(self, sidecar: Sidecar, conditions: Mapping[str, Any], limit: int) -> None:
        self.missing: list[Any] = []
        self.more = False
        self._sidecar = sidecar
        self._conditions = conditions
        self._limit = limit

    def __iter__(self) -> Any:
        cursor: str | None = None
        left = self._limit
        while True:
            query = {**self._conditions, "limit": min(left, PAGE_LIMIT)} | ({"cursor": cursor} if cursor else {})
            page = self._sidecar.document("GET", f"/v1/messages?{httpx.QueryParams(query)}")
            self.missing = page.get("missing") or self.missing
            items, cursor = page.get("items", []), page.get("next")
            left -= len(items)
            self.more = bool(cursor) and left <= 0
            yield from items
            if not cursor or left <= 0:
                return


def _summary(item: Mapping[str, Any]) -> dict[str, Any]:
    position = item.get("position") or {}
    place = f"{position.get('partition')}/{position.get('offset')}"
    return {**item, "place": place, "due": utc_text(item.get("due"))}


def _say_missing(missing: Any) -> None:
    if missing:
        places = ", ".join(f"{at.get('topic')}/{at.get('partition')}" for at in missing)
        say(f"not all could be asked; missing: {places}")


def _path(message_id: str, which: Mapping[str, Any], step: str = "") -> str:
    """Where one message is, or a step that changes it."""
    return f"/v1/messages/{quote(message_id, safe='', errors='surrogateescape')}{step}?{httpx.QueryParams(which)}"


def _show_receipt(document: dict[str, Any], form: Form) -> None:
    show(document, form)
    if document.get("outcome") == "pending":
        say("its owner has not answered yet: the control record is in Kafka, and will be obeyed")


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
