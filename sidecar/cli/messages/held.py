"""`tickover messages` and `tickover forecast`: looking up what is held, changing it."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import httpx
import typer

from sidecar.cli.messages.options import (
    HELD_CONDITIONS,
    ONE_MESSAGE,
    PastOption,
    TopicOption,
    check_due,
    past_query,
    time_given,
)
from sidecar.cli.messages.sending import app
from sidecar.cli.output import Failure, Form, OutputOption, Status, say, show, show_pages
from sidecar.cli.rest_client import (
    PAGE_LIMIT,
    Options,
    Sidecar,
    TokenOption,
    UrlOption,
    connect,
    given,
    step_of,
    taking,
)
from sidecar.model.condition import CAUSES
from sidecar.model.times import rfc_3339

COLUMNS: Final = ("id", "source", "place", "due", "tier", "target", "policy", "attempt")

LIST_DEFAULT: Final = 100
HOW_MANY: Final[Options] = {
    "limit": Annotated[int | None, typer.Option(help=f"At most so many; {LIST_DEFAULT} if nothing is said.", min=1)],
    "everything": Annotated[bool | None, typer.Option("--all", help="All there are, page by page.")],
    "cursor": Annotated[str | None, typer.Option(help="Go on where a list ended: what that one said at its end.")],
}
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the message.")]


@app.command("list")
@taking("conditions", HELD_CONDITIONS)
@taking("how_many", HOW_MANY)
def list_held(
    context: typer.Context,
    conditions: dict[str, Any],
    how_many: dict[str, Any],
    count: Annotated[bool, typer.Option("--count", help="Say how many there are in all, where that is known.")] = False,
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
        if count:
            say(f"in all: {pages.counted()}")
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
    payload: Annotated[bool, typer.Option("--payload", help="Key, value and headers, too, masked.")] = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.YAML,
) -> None:
    """Show one message: where it is, when it is due, what became of it, and its way there."""
    with connect(context, url, token) as sidecar:
        document = sidecar.document("GET", _path(message_id, which | ({"payload": "true"} if payload else {})))
    if document.get("payload_known") is False:
        say("its topic has the message no more: its payload is not known")
    _say_missing(document.pop("missing", []))
    document.pop("partial", None)
    show(document, form)
    if document.get("state") in ("dead", "quarantined"):  # the record itself says more than the ledger
        where = f"--topic {document['target']} --reason {document['reason']}"
        say(f"the letter has the detail: tickover dead-letters list {where}")


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
    is_place = LOOKS_LIKE_A_PLACE.fullmatch(message) and not which
    questions = [*([{"position": message}] if is_place else []), {"id": message, **which}]
    unknown: list[Failure] = []
    for question in questions:
        try:
            return sidecar.document("GET", f"/v1/lateness?{httpx.QueryParams(question)}")
        except Failure as failure:
            if failure.status is not Status.NOT_FOUND:
                raise
            unknown.append(failure)
    raise unknown[0]


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

    def counted(self) -> str:
        """How many there are in all, in words."""
        query = {**self._conditions, "limit": 1, "count": "true"}
        count = self._sidecar.document("GET", f"/v1/messages?{httpx.QueryParams(query)}").get("count")
        return "not known without a search; plan a change to count them" if count is None else str(count)

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
    return f"/v1/messages/{step_of(message_id)}{step}?{httpx.QueryParams(which)}"


def _show_receipt(document: dict[str, Any], form: Form) -> None:
    show(document, form)
    if document.get("outcome") == "pending":
        say("its owner has not answered yet: the control record is in Kafka, and will be obeyed")
