"""`tickover quarantine`: what could not be decided and why, and sending it to its source again, corrected."""

from typing import Annotated, Any, Final

import httpx
import typer

from sidecar.cli.dead_letters import SEARCH, FullOption, OpenOption, PayloadOption
from sidecar.cli.messages.options import read_header
from sidecar.cli.messages.sending import content_of
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show, show_items
from sidecar.cli.rest_client import PAGE_LIMIT, Options, TokenOption, UrlOption, connect, given, taking
from sidecar.model.times import rfc_3339

COLUMNS: Final = ("place", "time", "reason", "detail", "source", "id", "redriven")
CONDITIONS: Final[Options] = {
    "reason": Annotated[str | None, typer.Option(help="bad_header, no_policy, ...")],
    "fingerprint": Annotated[str | None, typer.Option(help="Of what is wrong, as `list -o json` shows it.")],
    "policy": Annotated[str | None, typer.Option(help="Name of the policy.")],
    **SEARCH,
}
CONTENT: Final[Options] = {
    "key": Annotated[str | None, typer.Option(help="Key, as text. Default: as it is.")],
    "value": Annotated[str | None, typer.Option(help="Value, as text. Default: as it is.")],
    "value_file": Annotated[str | None, typer.Option(help="File with the value, any bytes; - is stdin.")],
}
PlaceArgument = Annotated[
    str, typer.Argument(metavar="PLACE", help="partition/offset as `list` shows it; the topic may stand before it.")
]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show quarantined records, and send them again.")
app.callback()(output_before)


# tidy: the parameters of a command are its options
@app.command("list")
@taking("conditions", CONDITIONS)
def list_quarantine(
    context: typer.Context,
    conditions: dict[str, Any],
    only_open: OpenOption = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many.")] = 100,
    full: FullOption = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """List quarantined records and why each is there."""
    items: list[dict[str, Any]] = []
    cursor = None
    with connect(context, url, token) as sidecar:
        while len(items) < limit:
            wanted = {"limit": min(limit - len(items), PAGE_LIMIT), "open": only_open or None, "cursor": cursor}
            query = httpx.QueryParams({**conditions, **given(wanted)})
            page = sidecar.document("GET", f"/v1/quarantine?{query}")
            items += page["items"]
            cursor = page["next"]
            if not cursor:
                break
    show_items(items, _line, form, COLUMNS, full)


@app.command()
def get(
    context: typer.Context,
    place: PlaceArgument,
    payload: PayloadOption = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.YAML,
) -> None:
    """Show one quarantined record."""
    with connect(context, url, token) as sidecar:
        show(sidecar.document("GET", _path(place) + ("?payload=true" if payload else "")), form, full=True)


# tidy: the parameters of a command are its options
@app.command()
@taking("content", CONTENT)
def send(
    context: typer.Context,
    place: PlaceArgument,
    header: Annotated[
        list[str] | None, typer.Option(help="name=value, in place of all headers of the name; may be repeated.")
    ] = None,
    without: Annotated[list[str] | None, typer.Option(help="Name of a header to leave out; may be repeated.")] = None,
    *,
    content: dict[str, Any],
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Send a record to the source that it came from, with what is given in place of what was wrong. It goes once."""
    if "value" in content and "value_file" in content:
        raise Failure("give --value or --value-file, not both", Status.USAGE)
    body: dict[str, Any] = {"headers": [read_header(text) for text in header or ()], "without": without or []}
    if "value_file" in content:
        content["value"] = content_of(content.pop("value_file"))
    with connect(context, url, token) as sidecar:
        told = sidecar.document("POST", f"{_path(place)}/send", {**body, **content})
    due = told.get("due")
    say(f"sent to {told.get('source')}" + (f", due {rfc_3339(due)} at {told.get('target')}" if due else ""))
    show(told, form)


def _path(place: str) -> str:
    """Raises Failure."""
    *_, partition, offset = ["", "", *place.split("/")][-3:]
    if place.count("/") > 2 or not all(part.isascii() and part.isdigit() for part in (partition, offset)):
        raise Failure(f"{place}: must be partition/offset, as `list` shows it", Status.USAGE)
    return f"/v1/quarantine/{partition}/{offset}"


def _line(item: dict[str, Any]) -> dict[str, Any]:
    """One line: the place within the quarantine, and by which plan it was sent again."""
    sent = item.get("redriven")
    redriven = sent["plan"] if isinstance(sent, dict) else None
    return {**item, "place": f"{item.get('partition')}/{item.get('offset')}", "redriven": redriven}
