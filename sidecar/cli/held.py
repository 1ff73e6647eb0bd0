"""`tickover messages list|get` and `tickover forecast`: what is held, found by whichever sidecar is asked."""

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from sidecar.cli.messages import time_checked
from sidecar.cli.output import Form, OutputOption, say, show, utc_text
from sidecar.cli.rest_client import Sidecar, TokenOption, UrlOption, connect

PAGE_LIMIT = 500
COLUMNS = ("id", "source", "place", "due", "tier", "target", "policy", "attempt")

TopicOption = Annotated[str | None, typer.Option("--source", "--topic", help="Source topic.")]
PolicyOption = Annotated[str | None, typer.Option(help="Policy, as name or name@version.")]
TargetOption = Annotated[str | None, typer.Option(help="Target topic.")]
KeyPrefixOption = Annotated[str | None, typer.Option(help="First characters of the key.")]
ErrorClassOption = Annotated[str | None, typer.Option(help="Error class of a retry.")]
DueFromOption = Annotated[str | None, typer.Option(help="Due then or later: RFC 3339 or epoch milliseconds.")]
DueToOption = Annotated[str | None, typer.Option(help="Due before: RFC 3339 or epoch milliseconds.")]
PartitionOption = Annotated[int | None, typer.Option(help="Partition of the source.", min=0)]


# tidy: the parameters of a command are its options
def list_held(
    context: typer.Context,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    policy: PolicyOption = None,
    target: TargetOption = None,
    key_prefix: KeyPrefixOption = None,
    error_class: ErrorClassOption = None,
    due_from: DueFromOption = None,
    due_to: DueToOption = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 100,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """List held messages by due time. All conditions given must hold."""
    conditions = {
        "topic": topic, "partition": partition, "policy": policy, "target": target, "key_prefix": key_prefix,
        "error_class": error_class, "due_from": time_checked("--due-from", due_from),
        "due_to": time_checked("--due-to", due_to),
    }  # fmt: skip
    given = {name: value for name, value in conditions.items() if value is not None}
    with connect(context, url, token) as sidecar:
        pages = _Pages(sidecar, given, limit)
        items = list(islice(pages, limit))
    show([_summary(item) for item in items] if form is Form.TABLE else items, form, COLUMNS)
    _say_missing(pages.missing)
    if pages.more:
        say(f"there are more than {limit}: give a larger --limit, or narrow")


# tidy: the parameters of a command are its options
def get(
    context: typer.Context,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the message.")],
    source: Annotated[str | None, typer.Option(help="Source topic, where the id is held in several.")] = None,
    partition: PartitionOption = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.YAML,
) -> None:
    """Show one message: where it is, when it is due, what became of it, and its way there."""
    given = {"source": source, "partition": partition}
    query = httpx.QueryParams({name: value for name, value in given.items() if value is not None})
    path = f"/v1/messages/{quote(message_id, safe='', errors='surrogateescape')}"
    with connect(context, url, token) as sidecar:
        document = sidecar.document("GET", f"{path}?{query}")
    _say_missing(document.pop("missing", []))
    document.pop("partial", None)
    show(document, form)


def forecast(
    context: typer.Context,
    topic: TopicOption = None,
    minutes: Annotated[int, typer.Option(help="How many minutes ahead.", min=1, max=1_440)] = 60,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show how many held messages are due in each of the next minutes."""
    given: dict[str, Any] = {"minutes": minutes} | ({"topic": topic} if topic is not None else {})
    with connect(context, url, token) as sidecar:
        document = sidecar.document("GET", f"/v1/forecast?{httpx.QueryParams(given)}")
    _say_missing(document.pop("missing", []))
    if form is not Form.TABLE:
        show(document, form)
        return
    items = document.get("items", ())
    rows = [{"minute": utc_text(item.get("minute")), "held": item.get("held")} for item in items if item.get("held")]
    edges = [{"minute": "before", "held": document.get("before")}], [{"minute": "later", "held": document.get("later")}]
    show([*edges[0], *rows, *edges[1]], form, ("minute", "held"))


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
