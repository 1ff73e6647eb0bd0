"""`tickover schedules`: recurring messages, read and changed through a sidecar."""

from typing import Annotated, Any, Final
from uuid import uuid4

import typer

from sidecar.cli.messages.options import time_checked
from sidecar.cli.named_resources import NamedResource, Words, add_common, name_argument
from sidecar.cli.output import (
    Failure,
    Form,
    OutputOption,
    Status,
    output_before,
    say,
    show,
    show_result,
)
from sidecar.cli.rest_client import TokenOption, UrlOption, connect
from sidecar.operations.schedules.schedule import Schedule, schedule_document

SCHEDULE: Final = NamedResource("schedule", "schedules", Schedule, schedule_document, whole="?payload=true")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and change recurring messages.")
app.callback()(output_before)

Name = Annotated[str, name_argument(SCHEDULE)]


def _line(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    told = {name: item.get(name) for name in ("name", "version", "state", "cron", "time_zone", "target")}
    return {**told, "next": item.get("next"), "problem": item.get("problem")}


_WORDS: Final = Words(
    list="List all schedules, with how far each has come and what is wrong.",
    get="Show one schedule; with --payload as `apply` takes it.",
    delete="Delete a schedule. Occurrences that are written ahead of their time still fire.",
)
add_common(app, SCHEDULE, _WORDS, _line)


@app.command()
def rewind(
    context: typer.Context,
    name: Name,
    to: Annotated[str, typer.Option(help="Back to this time: RFC 3339 with zone, or epoch milliseconds.")],
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Set back how far a schedule has come. Occurrences after that time are written again, and may arrive again."""
    body = {"to": time_checked("--to", to)}
    with connect(context, url, token) as sidecar:
        answer = sidecar.document("POST", f"{SCHEDULE.path(name)}/rewind", body, SCHEDULE.as_it_is(sidecar, name))
    say(f"schedule {name} set back to {to}")
    show_result(answer, form)


@app.command()
def run(
    context: typer.Context,
    name: Name,
    key: Annotated[
        str | None, typer.Option("--key", help="Names this run: with the same key it is sent once. Default: a new one.")
    ] = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Send the schedule's message now, beside its occurrences, be it paused or not."""
    said = key or str(uuid4())
    with connect(context, url, token) as sidecar:
        try:
            answer = sidecar.document("POST", f"{SCHEDULE.path(name)}/run", headers={"Idempotency-Key": said})
        except Failure as failure:
            if failure.status is Status.FAILED:  # whether it was sent may not be known
                say(f"to try it again without a second message: --key {said}")
            raise
    show_result(answer, form)


@app.command()
def runs(
    context: typer.Context,
    name: Name,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show the last runs, the newest first, and what was missed."""
    with connect(context, url, token) as sidecar:
        answer = sidecar.document("GET", f"{SCHEDULE.path(name)}/runs")
    if form is not Form.TABLE:
        show(answer, form)
        return
    show(answer["items"], form)
    for one in answer["missed"]:
        count = one["count"] if one["is_whole"] else f"{one['count']} or more"
        say(f"missed: {count} after {one['after_utc']} up to {one['through_utc']}; {one['made_up']} made up for")


@app.command("next")
def coming(
    context: typer.Context,
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100, help="How many.")] = 5,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show the coming occurrences. Nothing is sent."""
    with connect(context, url, token) as sidecar:
        items = sidecar.document("GET", f"{SCHEDULE.path(name)}/next?n={count}")["items"]
    show(items, form)
