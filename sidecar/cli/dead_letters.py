"""`tickover dead-letters`: what failed for good, and why."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer

from policies.duration import parse_duration, parse_time
from policies.errors import FormatError
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show, utc_text
from sidecar.cli.rest_client import Sidecar, TokenOption, UrlOption, connect

PAGES_MAX: Final = 100_000
PAGE_LIMIT: Final = 500
COLUMNS: Final = (
    "position", "time", "reason", "error_class", "error", "fingerprint", "attempt", "redrives", "redriven", "policy"
)  # fmt: skip

TopicsOption = Annotated[list[str] | None, typer.Option("--topic", help="Dead-letter topic; repeatable. Default: all.")]
ReasonOption = Annotated[str | None, typer.Option(help="attempts_exhausted, expired, ... or a quarantine's reason.")]
FingerprintOption = Annotated[str | None, typer.Option(help="Of the error, as `groups` shows it.")]
ErrorClassOption = Annotated[str | None, typer.Option(help="Glob of the error class.")]
PolicyOption = Annotated[str | None, typer.Option(help="Name of the policy.")]
SinceOption = Annotated[str | None, typer.Option(help="How long ago (2h), or a time: RFC 3339 or epoch ms.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Only letters that no redrive has sent.")]
UntilOption = Annotated[str | None, typer.Option(help="As --since; letters from then on are left out.")]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show dead letters.")
app.callback()(output_before)


# The parameters of a command are its options: they cannot be fewer than what the user may say.
@app.command("list")
def list_letters(
    context: typer.Context,
    topic: TopicsOption = None,
    reason: ReasonOption = None,
    fingerprint: FingerprintOption = None,
    error_class: ErrorClassOption = None,
    policy: PolicyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    only_open: OpenOption = False,
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many.")] = 100,
    payload: Annotated[
        bool, typer.Option("--payload", help="With key, value, headers, masked; it is recorded.")
    ] = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """List dead letters in order of topic, partition and offset."""
    query = {
        "topic": topic,
        **selection(reason, fingerprint, error_class, policy),
        **times(since, until),
        "open": only_open,
    }
    items: list[dict[str, Any]] = []
    with connect(context, url, token) as sidecar:
        for page in _pages(sidecar, "/v1/dead-letters", {**query, "limit": min(limit, PAGE_LIMIT), "payload": payload}):
            items += page["items"]
            if len(items) >= limit:
                break
    _show(items[:limit], form, COLUMNS if not payload else (*COLUMNS, "payload"))


@app.command()
def groups(
    context: typer.Context,
    topic: TopicsOption = None,
    reason: ReasonOption = None,
    error_class: ErrorClassOption = None,
    policy: PolicyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Count dead letters by what went wrong, most frequent first. Reads all of them."""
    query = {"topic": topic, **selection(reason, None, error_class, policy), **times(since, until)}
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    with connect(context, url, token) as sidecar:
        for page in _pages(sidecar, "/v1/dead-letters/groups", query):
            for group in page["items"]:
                _add(found, group)
    ordered = sorted(found.values(), key=lambda group: -group["count"])
    columns = (
        "count",
        "open",
        "topic",
        "reason",
        "error_class",
        "error",
        "fingerprint",
        "first_seen",
        "last_seen",
        "example",
    )
    _show(ordered, form, columns)


@app.command("show")
def show_letter(
    context: typer.Context,
    position: Annotated[str, typer.Argument(help="topic/partition/offset, as `list` shows it.")],
    payload: Annotated[
        bool, typer.Option("--payload", help="With key, value, headers, masked; it is recorded.")
    ] = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show one dead letter."""
    parts = position.split("/")
    if len(parts) != 3:
        raise Failure(f"{position}: must be topic/partition/offset", Status.USAGE)
    path = "/".join(quote(part, safe="", errors="surrogateescape") for part in parts)
    with connect(context, url, token) as sidecar:
        show(sidecar.document("GET", f"/v1/dead-letters/{path}" + ("?payload=true" if payload else "")), form)


def selection(
    reason: str | None, fingerprint: str | None, error_class: str | None, policy: str | None
) -> dict[str, str | None]:
    """Options by their names in REST."""
    return {"reason": reason, "fingerprint": fingerprint, "error_class": error_class, "policy": policy}


def times(since: str | None, until: str | None) -> dict[str, int | None]:
    """Times of `--since` and `--until` in epoch milliseconds."""
    return {"since": _time("--since", since), "until": _time("--until", until)}


def _time(option: str, text: str | None) -> int | None:
    """A duration is so long ago; a bare number is epoch milliseconds."""
    if text is None:
        return None
    try:
        if not text.isdigit():
            return int(time.time() * 1_000) - parse_duration(text)
    except FormatError:
        pass
    try:
        return parse_time(text)
    except FormatError as error:
        raise Failure(f"{option}: {error}", Status.USAGE) from None


def _pages(sidecar: Sidecar, path: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Page after page; on a terminal a line says how much is left."""
    given = {name: value for name, value in query.items() if value not in (None, False)}
    cursor, scanned = None, 0
    for _ in range(PAGES_MAX):
        parameters = httpx.QueryParams(given | ({"cursor": cursor} if cursor else {}))
        page = sidecar.document("GET", f"{path}?{parameters}")
        scanned += page["scanned"]
        cursor = page["next"]
        if cursor and sys.stderr.isatty():
            say(f"{scanned} records read, {page['remaining']} to go")
        yield page
        if not cursor:
            return
    raise Failure(f"{path} has more than {PAGES_MAX} pages")


def _add(found: dict[tuple[str, ...], dict[str, Any]], group: dict[str, Any]) -> None:
    key = (group["topic"], group["reason"] or "", group["fingerprint"])
    known = found.setdefault(key, {**group, "count": 0, "redriven": 0, "open": 0})
    for name in ("count", "redriven", "open"):
        known[name] += group[name]
    known["first_seen"] = min(known["first_seen"], group["first_seen"])
    known["last_seen"] = max(known["last_seen"], group["last_seen"])


def _show(items: list[dict[str, Any]], form: Form, columns: tuple[str, ...]) -> None:
    if form is Form.TABLE:
        items = [_by_plan(item) for item in items]
        dated = ("time", "first_seen", "last_seen")
        items = [{name: utc_text(item[name]) if name in dated else item[name] for name in item} for item in items]
    show(items, form, columns)


def _by_plan(item: dict[str, Any]) -> dict[str, Any]:
    """A letter in one line: of who sent it again, the plan."""
    sent = item.get("redriven")
    return {**item, "redriven": sent["plan"]} if isinstance(sent, dict) else item
