"""`tickover schedules`: recurring messages, read and changed through a sidecar."""

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer
from pydantic import ValidationError

from policies.errors import PolicyFileError
from policies.file import parse_items, read_text
from sidecar.cli.connection import Sidecar, TokenOption, UrlOption, connect, read_object
from sidecar.cli.failure import Failure, Status
from sidecar.cli.output import Form, OutputOption, output_before, say, show, utc_text
from sidecar.cli.policies import INPUT_CHARACTERS_MAX, BareFile
from sidecar.schedules.schedule import Schedule, schedule_document

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
    context: typer.Context, name: Name, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.YAML
) -> None:
    """Show one schedule."""
    with connect(context, url, token) as sidecar:
        show(sidecar.document("GET", _path(name)), form)


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
    schedules = _read(bare_file, file)
    results: list[dict[str, str]] = []
    try:
        with connect(context, url, token) as sidecar:
            results.extend({"name": schedule.name, "result": _apply_one(sidecar, schedule)} for schedule in schedules)
    finally:
        show(results, form)  # also when one is refused: those before it are applied


@app.command()
def delete(
    context: typer.Context, name: Name, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.TABLE
) -> None:
    """Delete a schedule. Occurrences that are written ahead of their time still fire."""
    with connect(context, url, token) as sidecar:
        etag = sidecar.call("GET", _path(name)).headers.get("ETag", "")
        sidecar.call("DELETE", _path(name), headers={"If-Match": etag})
    say(f"schedule {name} deleted")
    if form is not Form.TABLE:
        show({"name": name, "result": "deleted"}, form)


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
        items = sidecar.document("GET", f"{_path(name)}/next?n={count}")["items"]
    show([{**item, "at": utc_text(item["at"])} for item in items] if form is Form.TABLE else items, form)


def _read(bare_file: str | None, file: str | None) -> tuple[Schedule, ...]:
    name = bare_file if file is None else file
    if name is None or (bare_file is not None and file is not None):
        raise Failure("give one file of schedules, as FILE or with -f", Status.USAGE)
    try:
        text = sys.stdin.read(INPUT_CHARACTERS_MAX) if name == "-" else read_text(name)
        return parse_items(text, "stdin" if name == "-" else name, Schedule, "schedule")
    except PolicyFileError as error:
        unreadable = isinstance(error.__cause__, OSError)
        raise Failure(str(error), Status.USAGE if unreadable else Status.FAILED) from None
    except UnicodeDecodeError:
        raise Failure("stdin: not UTF-8") from None


def _apply_one(sidecar: Sidecar, schedule: Schedule) -> str:
    """Compare and set: replace exactly what was looked at, or create only what is not there."""
    wanted = schedule_document(schedule)
    try:
        response = sidecar.call("GET", _path(schedule.name))
    except Failure as failure:
        if failure.status is not Status.NOT_FOUND:
            raise
        sidecar.call("PUT", _path(schedule.name), wanted, {"If-None-Match": "*"})
        return "created"
    if _as_written(read_object(response)) == wanted:
        return "unchanged"
    sidecar.call("PUT", _path(schedule.name), wanted, {"If-Match": response.headers.get("ETag", "")})
    return "replaced"


def _as_written(answer: dict[str, Any]) -> dict[str, Any] | None:
    """The schedule in `schedule_document`'s form, so that equal ones are equal; None: of a newer program."""
    try:
        return schedule_document(Schedule.model_validate(answer))
    except ValidationError:
        return None


def _line(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    told = {name: item.get(name) for name in ("name", "version", "state", "cron", "time_zone", "target")}
    return {**told, "next": utc_text(item.get("next")), "problem": item.get("problem")}


def _path(name: str) -> str:
    return f"/v1/schedules/{quote(name, safe='', errors='surrogateescape')}"
