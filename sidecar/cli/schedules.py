"""`tickover schedules`: recurring messages, read and changed through a sidecar."""

from typing import Annotated, Any, Final

import typer

from sidecar.cli.messages import time_checked
from sidecar.cli.named_resources import BareFile, NamedResource
from sidecar.cli.output import Form, OutputOption, output_before, say, show, utc_text
from sidecar.cli.rest_client import TokenOption, UrlOption, connect
from sidecar.operations.schedules.schedule import Schedule, schedule_document

_KIND: Final = NamedResource("schedule", "schedules", Schedule, schedule_document, whole="?payload=true")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and change recurring messages.")
app.callback()(output_before)

Name = Annotated[str, typer.Argument(help="Name of the schedule.")]
File = Annotated[str | None, typer.Option("--file", "-f", help="YAML file of schedules (`---` between); - is stdin.")]


@app.command("list")
def list_all(
    context: typer.Context, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.TABLE
) -> None:
    """List all schedules, with how far each has come and what is wrong."""
    with connect(context, url, token) as sidecar:
        items = list(sidecar.items("/v1/schedules"))
    show([_line(item) for item in items] if form is Form.TABLE else items, form)


@app.command()
def get(
    context: typer.Context,
    name: Name,
    payload: Annotated[
        bool, typer.Option("--payload", help="With key, value, headers, masked; it is recorded.")
    ] = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.YAML,
) -> None:
    """Show one schedule; with --payload as `apply` takes it."""
    with connect(context, url, token) as sidecar:
        show(sidecar.document("GET", _KIND.path(name) + (_KIND.whole if payload else "")), form)


@app.command()
def apply(
    context: typer.Context,
    bare_file: BareFile = None,
    file: File = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Create or replace every schedule of a file. What is as wanted already stays untouched."""
    schedules = _KIND.read(_KIND.given(bare_file, file))
    results: list[dict[str, str]] = []
    try:
        with connect(context, url, token) as sidecar:
            _KIND.apply(sidecar, schedules, results)
    finally:
        show(results, form)  # also when one is refused: those before it are applied


@app.command()
def delete(
    context: typer.Context, name: Name, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.TABLE
) -> None:
    """Delete a schedule. Occurrences that are written ahead of their time still fire."""
    with connect(context, url, token) as sidecar:
        _KIND.delete(sidecar, name)
    say(f"schedule {name} deleted")
    if form is not Form.TABLE:
        show({"name": name, "result": "deleted"}, form)


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
        answer = sidecar.document("POST", f"{_KIND.path(name)}/rewind", body, _KIND.as_it_is(sidecar, name))
    say(f"schedule {name} set back to {to}")
    if form is not Form.TABLE:
        show(answer, form)


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
        items = sidecar.document("GET", f"{_KIND.path(name)}/next?n={count}")["items"]
    show([{**item, "at": utc_text(item["at"])} for item in items] if form is Form.TABLE else items, form)


def _line(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    told = {name: item.get(name) for name in ("name", "version", "state", "cron", "time_zone", "target")}
    return {**told, "next": utc_text(item.get("next")), "problem": item.get("problem")}
