"""`tickover dead-letters` and `tickover redrive`: what failed for good and why, and sending it again, carefully."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer

from policies.duration import parse_typed_duration
from policies.errors import FormatError
from sidecar.cli.jobs import JobKind, add_common, add_step, finish
from sidecar.cli.messages.options import duration_checked, time_ms
from sidecar.cli.output import Failure, Form, OutputOption, ProgressLine, Status, output_before, show, show_items
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
from sidecar.operations.dead_letters.groups.group import FATES, added_up

PAGES_MAX: Final = 100_000
STDIN: Final = "-"
COLUMNS: Final = (
    "position", "time", "reason", "error_class", "error", "fingerprint", "attempt", "redrives", "redriven", "discarded",
    "policy",
)  # fmt: skip

TopicsOption = Annotated[list[str] | None, typer.Option("--topic", help="Dead-letter topic; repeatable. Default: all.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Only letters that no plan has sent or discarded.")]
PayloadOption = Annotated[bool, typer.Option("--payload", help="With key, value, headers, masked; it is recorded.")]
FullOption = Annotated[bool, typer.Option("--full", help="Long texts whole, which tables on a terminal cut.")]
CONDITIONS: Final[Options] = {
    "reason": Annotated[str | None, typer.Option(help="attempts_exhausted, expired, ... or a quarantine's reason.")],
    "fingerprint": Annotated[str | None, typer.Option(help="Of the error, as `groups` shows it.")],
    "error_class": Annotated[str | None, typer.Option(help="Glob of the error class.")],
    "policy": Annotated[str | None, typer.Option(help="Name of the policy.")],
    "since": Annotated[str | None, typer.Option(help="How long ago (2h), or a time: RFC 3339 or epoch ms.")],
    "until": Annotated[str | None, typer.Option(help="As --since; letters from then on are left out.")],
}
SEARCH: Final[Options] = {
    "error": Annotated[str | None, typer.Option(help="Part of its error's class, message or detail, in any case.")],
    "id": Annotated[str | None, typer.Option("--id", help="Id of the message.")],
    "key_prefix": Annotated[str | None, typer.Option(help="First characters of the key; it is recorded.")],
    "header": Annotated[str | None, typer.Option(help="A header, as name=value; it is recorded.")],
}

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show dead letters.")
app.callback()(output_before)
redrive_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Send dead letters again, or discard them.")
redrive_app.callback()(output_before)


# The parameters of a command are its options: they cannot be fewer than what the user may say.
@app.command("list")
@taking("conditions", {**CONDITIONS, **SEARCH})
def list_letters(
    context: typer.Context,
    topic: TopicsOption = None,
    *,
    conditions: dict[str, Any],
    only_open: OpenOption = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many.")] = 100,
    payload: PayloadOption = False,
    full: FullOption = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """List dead letters in order of topic, partition and offset."""
    query = {"topic": topic, **_with_times(conditions), "open": only_open}
    items: list[dict[str, Any]] = []
    with connect(context, url, token) as sidecar:
        for page in _pages(sidecar, "/v1/dead-letters", {**query, "limit": min(limit, PAGE_LIMIT), "payload": payload}):
            items += page["items"]
            if len(items) >= limit:
                break
    items = [_with_cause(item) for item in items[:limit]] if form is Form.TABLE else items[:limit]
    _show(items, form, COLUMNS if not payload else (*COLUMNS, "payload"), full)


@app.command()
@taking("conditions", {**{name: option for name, option in CONDITIONS.items() if name != "fingerprint"}, **SEARCH})
def groups(
    context: typer.Context,
    topic: TopicsOption = None,
    *,
    conditions: dict[str, Any],
    trend: Annotated[bool, typer.Option("--trend", help="Also by minute of the hour and hour of the day.")] = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Count dead letters by what went wrong, most frequent first. Reads all of them."""
    query = {"topic": topic, **_with_times(conditions), "trend": trend}
    with connect(context, url, token) as sidecar:
        found = [group for page in _pages(sidecar, "/v1/dead-letters/groups", query) for group in page["items"]]
    ordered = sorted(added_up(found), key=lambda group: -group["count"])
    columns = (
        "count",
        "open",
        "discarded",
        "state",
        "topic",
        "reason",
        "error_class",
        "error",
        "fingerprint",
        "first_seen",
        "last_seen",
        "example",
        "note",
        *(("trend",) if trend else ()),
    )
    _show(ordered, form, columns)


@app.command("group")
def say_of_group(
    context: typer.Context,
    fingerprint: Annotated[str, typer.Argument(help="As `groups` shows it.")],
    topic: Annotated[str, typer.Option(help="Dead-letter topic.")],
    state: Annotated[str, typer.Option(help="new, known or resolved; resolved ones that come again are back again.")],
    note: Annotated[str, typer.Option(help="Words for the others.")] = "",
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Say where people stand with a group of failures, in place of what was said before."""
    steps = map(step_of, (topic, "groups", fingerprint))
    with connect(context, url, token) as sidecar:
        show(sidecar.document("PUT", f"/v1/dead-letters/{'/'.join(steps)}", {"state": state, "note": note}), form)


@app.command("show")
def show_letter(
    context: typer.Context,
    position: Annotated[str, typer.Argument(help="topic/partition/offset, as `list` shows it.")],
    payload: PayloadOption = False,
    full: FullOption = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show one dead letter."""
    parts = position.split("/")
    if len(parts) != 3:
        raise Failure(f"{position}: must be topic/partition/offset", Status.USAGE)
    path = "/".join(map(step_of, parts))
    with connect(context, url, token) as sidecar:
        letter = sidecar.document("GET", f"/v1/dead-letters/{path}" + ("?payload=true" if payload else ""))
    if form is Form.TABLE:
        del letter["error"]  # the name of its group, which would stand beside what it died of
    show(letter, form, full=full)


# The parameters of a command are its options: they cannot be fewer than what the user may say.
@redrive_app.command()
@taking("conditions", {**CONDITIONS, **SEARCH})
def plan(
    context: typer.Context,
    topic: Annotated[str, typer.Option(help="Dead-letter topic.")],
    target: Annotated[str | None, typer.Option(help="For all letters. Default: each goes where it belongs.")] = None,
    *,
    conditions: dict[str, Any],
    everything: Annotated[bool, typer.Option("--all", help="Every letter of the topic is meant.")] = False,
    letter: Annotated[list[str] | None, typer.Option(help="topic/partition/offset; repeatable: no others.")] = None,
    discard: Annotated[bool, typer.Option("--discard", help="Settle them by your word: nothing is sent.")] = False,
    edit: Annotated[Path | None, typer.Option(help="JSON file (-: stdin) with merge, value, key or headers.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also letters that a plan has sent or discarded.")] = False,
    rate: Annotated[int | None, typer.Option(min=0, help="Letters a second at most; 0: no limit.")] = None,
    ramp: Annotated[str | None, typer.Option(help="From a tenth of the rate to all of it: 30s, 5m.")] = None,
    stop_share: Annotated[float | None, typer.Option(min=0, max=1, help="More of them failed again: stop.")] = None,
    watch: Annotated[str | None, typer.Option(help="How long to wait for what fails again, after the last.")] = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Say which letters are to be sent again or discarded, and count them. Nothing is sent."""
    chosen = _with_times(conditions)
    if not chosen and not letter and not everything:
        raise Failure("no filter given: if every letter of the topic is meant, say --all", Status.USAGE)
    limits = {
        "target": target, "rate": rate, "stop_share": stop_share,
        "ramp": duration_checked("--ramp", ramp), "watch": duration_checked("--watch", watch),
    }  # fmt: skip
    said = {"topic": topic, "filter": chosen, "confirm_all": everything, "again": again}
    more = {"letters": letter or None, "action": "discard" if discard else None}
    body: dict[str, Any] = {**said, **given({**limits, **more, "edit": None if edit is None else _edit_of(edit)})}
    with connect(context, url, token) as sidecar:
        finish(sidecar, sidecar.document("POST", "/v1/redrives", body), REDRIVE, form)


def _edit_of(path: Path) -> dict[str, Any]:
    """The edit in a JSON file. Raises Failure."""
    try:
        text = sys.stdin.read() if str(path) == STDIN else path.read_text(encoding="utf-8")
        edit = json.loads(text)
    except (OSError, ValueError) as error:
        raise Failure(f"--edit {path}: {error}", Status.USAGE) from None
    if not isinstance(edit, dict):
        raise Failure(f"--edit {path}: must be a JSON object", Status.USAGE)
    return edit


def _with_times(conditions: dict[str, Any]) -> dict[str, Any]:
    """Conditions as REST takes them: `--since` and `--until` in epoch milliseconds. Raises Failure."""
    times = [name for name in ("since", "until") if name in conditions]
    return {**conditions, **{name: _time(f"--{name}", conditions[name]) for name in times}}


def _time(option: str, text: str) -> int:
    """A duration is so long ago; a bare number, 0 as well, is epoch milliseconds."""
    if text.isascii() and text.isdigit():
        return time_ms(option, text)
    try:
        return int(time.time() * 1_000) - parse_typed_duration(text)
    except FormatError:
        return time_ms(option, text)


def _pages(sidecar: Sidecar, path: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Page after page; a line says how much is left."""
    asked = {name: value for name, value in query.items() if value is not None and value is not False}
    cursor, scanned = None, 0
    with ProgressLine() as progress:
        for _ in range(PAGES_MAX):
            parameters = httpx.QueryParams(asked | ({"cursor": cursor} if cursor else {}))
            page = sidecar.document("GET", f"{path}?{parameters}")
            scanned += page["scanned"]
            cursor = page["next"]
            if cursor:
                progress.tell(f"{scanned} records read, {page['remaining']} to go")
            yield page
            if not cursor:
                return
    raise Failure(f"{path} has more than {PAGES_MAX} pages")


def _with_cause(letter: dict[str, Any]) -> dict[str, Any]:
    """A letter in one line: `error` is what it died of, in place of its group's name, which `groups` shows."""
    # A sidecar of the version before tells neither.
    return {**letter, "error": letter.get("detail") or letter.get("error_message") or letter.get("error")}


def _show(items: list[dict[str, Any]], form: Form, columns: tuple[str, ...], full: bool = False) -> None:
    show_items(items, _by_plan, form, columns, full)


def _by_plan(item: dict[str, Any]) -> dict[str, Any]:
    """A letter in one line: of who sent it again or discarded it, the plan."""
    plans = {name: item[name]["plan"] for name in FATES if isinstance(item.get(name), dict)}
    return {**item, **plans}


def _progress(document: dict[str, Any]) -> str:
    records = document["records"]
    return (
        f"{document['state']}: {document['sent']} sent, {document.get('discarded', 0)} discarded, "
        f"{document['failed_again']} failed again, "
        f"{records['remaining']} of {records['read'] + records['remaining']} records to go"
    )


def _redrive_line(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list of redrives."""
    told = {name: item[name] for name in ("id", "state", "topic", "sent", "failed_again", "author", "reason")}
    told |= {name: item.get(name) for name in ("action", "discarded")}
    return {**told, "planned": item["planned"]["letters"], "created": item["created"]}


REDRIVE: Final = JobKind("redrive", "redrive", "/v1/redrives", _progress)
_CANARY: Final[Options] = {
    "count": Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="How many letters.")]
}
add_step(
    redrive_app, REDRIVE, "canary", "Send or discard a few letters, and watch what becomes of them.", _CANARY, count=10
)
_RUN_WORDS: Final = (
    "Send or discard the rest, until it is done or too much of it fails again. Ctrl-C ends the watching, not the "
    "redrive."
)
add_step(redrive_app, REDRIVE, "run", _RUN_WORDS)
add_common(redrive_app, REDRIVE, _redrive_line)
