"""`tickover changes`: cancelling, rescheduling and firing many held messages."""

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final

import httpx
import typer

from sidecar.cli.jobs import JobKind, NoWait, add_common, finish, watched
from sidecar.cli.messages.options import (
    HELD_CONDITIONS,
    PastOption,
    check_due,
    duration_checked,
    ids_of,
    past_query,
    time_checked,
)
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show_items
from sidecar.cli.rest_client import TokenOption, UrlOption, connect, given, taking
from sidecar.model.foreign_text import visible

COLUMNS: Final = ("id", "outcome", "state", "due", "place", "control")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Change many held messages.")
app.callback()(output_before)


def _progress(document: dict[str, Any]) -> str:
    counts = _counts(document["outcomes"])
    if document["state"] == "planning":
        told = f"planning: {document['planned']['messages']} messages so far"
    else:
        told = f"{document['state']}: {counts or 'none yet'}, {document['remaining']} to go"
    return told + (f"; waits: {document['reason']}" if document["reason"] else "")


CHANGE: Final = JobKind("change", "changes", "/v1/changes", _progress)
Id = Annotated[str, CHANGE.id_argument()]


class Action(StrEnum):
    """Action on the messages: they are cancelled, due at another time, or due at once."""

    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    FIRE = "fire"


# tidy: the parameters of a command are its options
@app.command()
@taking("chosen", HELD_CONDITIONS)
def plan(
    context: typer.Context,
    action: Annotated[Action, typer.Argument(help="What becomes of them.")],
    chosen: dict[str, Any],
    ids: Annotated[str | None, typer.Option(help="File with an id on each line: these only; - is stdin.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every held message is meant.")] = False,
    delay: Annotated[str | None, typer.Option(help="Reschedule, from now: 250ms, 90s, 15m, 2h, 3d or PT90S.")] = None,
    deliver_at: Annotated[str | None, typer.Option(help="Reschedule: RFC 3339 with zone, or epoch ms.")] = None,
    by: Annotated[str | None, typer.Option(help="Reschedule, so much later than each was due: +10m; -10m.")] = None,
    rate: Annotated[int | None, typer.Option(min=0, help="Messages a second at most; 0: no limit.")] = None,
    past: PastOption = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Say which held messages are to be changed, count them, and say which can't be, and why. Nothing is changed."""
    check_due(chosen)
    if ids is not None:
        chosen = {**chosen, "ids": ids_of("--ids", ids)}
    if not chosen and not everything:
        raise Failure("no filter given: if every held message is meant, say --all", Status.USAGE)
    if by is not None:
        duration_checked("--by", by[by[:1] in ("+", "-") :])
    times = {"delay": duration_checked("--delay", delay), "deliver_at": time_checked("--deliver-at", deliver_at)}
    when = given({**times, "by": by})
    if len(when) != (action is Action.RESCHEDULE):
        raise Failure("to reschedule give --delay, --deliver-at or --by, one of them; else none", Status.USAGE)
    body: dict[str, Any] = {"action": action.value, "filter": chosen, "confirm_all": everything, **when}
    path = f"{CHANGE.path}?{httpx.QueryParams(past_query(past))}"
    with connect(context, url, token) as sidecar:
        document = watched(sidecar, sidecar.document("POST", path, {**body, **given({"rate": rate})}), CHANGE)
        for line in _foreseen(document["planned"]):
            say(line)
        finish(sidecar, document, CHANGE, form)


# tidy: the parameters of a command are its options
@app.command()
def run(
    context: typer.Context,
    id: Id,
    plan_token: Annotated[str | None, typer.Option(help="The token that the plan shows with its count.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask: the plan as it is now is meant.")] = False,
    no_wait: NoWait = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Change what was planned, until it is done. Ctrl-C ends the watching, not the change."""
    with connect(context, url, token) as sidecar:
        if plan_token is None:
            planned = sidecar.document("GET", CHANGE.of(id))
            for line in _foreseen(planned["planned"]):
                say(line)
            count, action = planned["planned"]["messages"], planned["action"]
            if not yes and not typer.confirm(visible(f"{action} {count} messages?"), err=True):
                raise Failure("nothing was changed", Status.FAILED)
            plan_token = planned["token"] or "-"  # it is still being counted: refused, in the sidecar's words
        finish(sidecar, sidecar.document("POST", f"{CHANGE.of(id)}/run", {"token": plan_token}), CHANGE, form, no_wait)


@app.command()
def receipts(
    context: typer.Context,
    id: Id,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 1_000,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show what became of each message, in the order in which they were changed."""
    with connect(context, url, token) as sidecar:
        found = list(islice(sidecar.items(f"{CHANGE.of(id)}/receipts"), limit + 1))
    items = found[:limit]
    show_items(items, _receipt, form, COLUMNS)
    if len(found) > limit:
        say(f"there are more than {limit}: give a larger --limit")


def _foreseen(planned: dict[str, Any]) -> Iterator[str]:
    """Lines that say how many can't be changed, and why; none where all can. Of an older sidecar nothing is known."""
    messages, refused = planned["messages"], planned.get("refused", {})
    if planned["skipped"]:
        yield f"not meant, though they match: {_counts(planned['skipped'])}"
    if refused:
        yield f"{sum(refused.values())} of {messages} would be refused: {_counts(refused)}"
    if planned.get("overdue"):
        yield f"{planned['overdue']} of {messages} are due already, and may have left before they are changed"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def _line(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    told = {name: item[name] for name in ("id", "state", "action", "outcomes", "remaining", "author", "reason")}
    return {**told, "planned": item["planned"]["messages"], "created": item["created"]}


def _receipt(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the receipts."""
    places = {name: item[name] and "/".join(map(str, item[name].values())) for name in ("position", "control")}
    return {**item, "place": places["position"], "control": places["control"]}


add_common(app, CHANGE, _line)
