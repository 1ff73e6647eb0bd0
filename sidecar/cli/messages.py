"""`tickover messages` and `tickover forecast`: sending delayed messages, looking up what is held, changing it."""

import base64
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer

from policies.duration import parse_time, parse_typed_duration
from policies.errors import FormatError
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show, show_pages
from sidecar.cli.rest_client import PAGE_LIMIT, Options, Sidecar, TokenOption, UrlOption, connect, given, taking
from sidecar.model.times import rfc_3339

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
LIST_DEFAULT: Final = 100
HOW_MANY: Final[Options] = {
    "limit": Annotated[int | None, typer.Option(help=f"At most so many; {LIST_DEFAULT} if nothing is said.", min=1)],
    "everything": Annotated[bool | None, typer.Option("--all", help="All there are, page by page.")],
    "cursor": Annotated[str | None, typer.Option(help="Go on where a list ended: what that one said at its end.")],
}
PastOption = Annotated[bool, typer.Option("--past", help="A time more than a minute ago is meant: it is due at once.")]
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


@app.command("list")
@taking("conditions", HELD_CONDITIONS)
@taking("how_many", HOW_MANY)
def list_held(
    context: typer.Context,
    conditions: dict[str, Any],
    how_many: dict[str, Any],
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """List held messages by due time. All conditions given must hold."""
    check_due(conditions)
    everything, limit = bool(how_many.get("everything")), how_many.get("limit")
    if everything and limit is not None:
        raise Failure("give --limit or --all, not both", Status.USAGE)
    with connect(context, url, token) as sidecar:
        pages = _Pages(sidecar, conditions, None if everything else limit or LIST_DEFAULT, how_many.get("cursor"))
        show_pages(pages, _summary, form, COLUMNS)
    _say_missing(pages.missing)
    if pages.cursor:
        say(f"there are more: go on with --cursor {pages.cursor}, or list --all")


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


# What a cause of lateness means; `tickover messages why` prints it.
CAUSES: Final = {
    "settle": "handed over, until it was a fact in the ledger",
    "revoked": "its replica had let go of its partition in order, and no other had it yet",
    "unowned": "no replica had its partition",
    "recovering": "a replica was taking its partition over",
    "stalled": "the process did not run",
    "kafka": "Kafka did not answer as it should",
    "rebuild": "what Redis lost of its partition was being written again",
    "redis": "Redis did not answer",
    "breaker": "its target's circuit breaker held retries up",
    "rate": "waited for its target's rate",
    "suspended": "its target did not acknowledge",
    "order": "records of its partition waited behind others of their key",
    "paused": "the process read nothing more: its limits were reached",
    "unaccounted": "nothing that is recorded",
    "not_recorded": "not recorded",
}
LOOKS_LIKE_A_PLACE: Final = re.compile(r"[A-Za-z0-9._-]+/[0-9]+/[0-9]+")


@app.command()
@taking("which", ONE_MESSAGE)
def why(
    context: typer.Context,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="Id of the message, or topic/partition/offset.")],
    which: dict[str, Any],
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Say why a message was late, or is: what lay between its due time and its settlement, as it was recorded."""
    with connect(context, url, token) as sidecar:
        document = _why(sidecar, message, which)
    _say_missing(document.pop("missing", []))
    document.pop("partial", None)
    if form is not Form.TABLE:
        show(document, form)
        return
    late = f"{int(document.get('lateness_ms', 0)) / 1_000:.3f} s"
    end = "held, until now" if document.get("state") == "held" else document.get("state")
    say(f"due {rfc_3339(document.get('due'))}, {end} {rfc_3339(document.get('until'))}: {late} late")
    if problem := document.get("problem"):
        say(str(problem))
    show(
        [_part(part) for part in document.get("parts", ())], form, ("from", "to", "seconds", "cause", "why", "replica")
    )


def _why(sidecar: Sidecar, message: str, which: Mapping[str, Any]) -> dict[str, Any]:
    """By the place that the text is, else by the id: an id may look like a place."""
    if LOOKS_LIKE_A_PLACE.fullmatch(message) and not which:
        try:
            return sidecar.document("GET", f"/v1/lateness?{httpx.QueryParams({'position': message})}")
        except Failure as failure:
            if failure.status is not Status.NOT_FOUND:
                raise
    return sidecar.document("GET", f"/v1/lateness?{httpx.QueryParams({'id': message, **which})}")


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    cause = part.get("cause")
    return {
        "from": rfc_3339(part.get("from")),
        "to": rfc_3339(part.get("to")),
        "seconds": f"{int(part.get('ms', 0)) / 1_000:.3f}",
        "cause": cause,
        "why": CAUSES.get(str(cause), "-"),
        "replica": part.get("replica"),
    }


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
    past: PastOption = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Give a held message another due time. To have it now, `fire` it."""
    when = time_given(delay, deliver_at)
    if not when:
        raise Failure("give --delay or --deliver-at", Status.USAGE)
    with connect(context, url, token) as sidecar:
        _show_receipt(sidecar.document("PATCH", _path(message_id, which | past_query(past)), when), form)


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
    rows = [item for item in document.get("items", ()) if item.get("held")]
    before, later = ({"minute": edge, "held": document.get(edge)} for edge in ("before", "later"))
    show([before, *rows, later], form, ("minute", "held"))


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


class _Pages:
    """Pages of held messages, until `limit` (None: no limit) were given; notes what was missing in any page, and where
    the list would go on.
    """

    def __init__(self, sidecar: Sidecar, conditions: Mapping[str, Any], limit: int | None, cursor: str | None) -> None:
        self.missing: list[Any] = []
        self.cursor = cursor  # None, once they have begun: there are no more
        self._sidecar = sidecar
        self._conditions = conditions
        self._limit = limit

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        left = self._limit
        while True:
            size = PAGE_LIMIT if left is None else min(left, PAGE_LIMIT)
            query = {**self._conditions, "limit": size} | ({"cursor": self.cursor} if self.cursor else {})
            page = self._sidecar.document("GET", f"/v1/messages?{httpx.QueryParams(query)}")
            self.missing = page.get("missing") or self.missing
            items, self.cursor = page.get("items", []), page.get("next")
            left = None if left is None else left - len(items)
            yield items
            if not self.cursor or (left is not None and left <= 0):
                return


def _summary(item: Mapping[str, Any]) -> dict[str, Any]:
    position = item.get("position") or {}
    return {**item, "place": f"{position.get('partition')}/{position.get('offset')}"}


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
