"""`tickover audit`: who did what over REST, and how it ended."""

import time
from typing import Annotated, Any, Final

import httpx
import typer

from policies.duration import parse_typed_duration
from policies.errors import FormatError
from sidecar.cli.output import Form, OutputOption, ProgressLine, say, show_items
from sidecar.cli.rest_client import PAGE_LIMIT, Options, TokenOption, UrlOption, connect, given, taking

COLUMNS: Final = ("time", "actor", "action", "outcome", "status", "subject", "problem", "client", "notes")
CONDITIONS: Final[Options] = {
    "caller": Annotated[str | None, typer.Option(help="Name of who asked for it.")],
    "action": Annotated[str | None, typer.Option(help="What was asked for, as a glob: put_policy, '*_redrive'.")],
    "outcome": Annotated[str | None, typer.Option(help="done, refused, failed or unknown.")],
    "since": Annotated[str | None, typer.Option(help="How long ago (2h), or a time: RFC 3339 or epoch ms.")],
    "until": Annotated[str | None, typer.Option(help="As --since; what is from then on is left out.")],
}


@taking("conditions", CONDITIONS)
def audit(
    context: typer.Context,
    conditions: dict[str, Any],
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """List who did what, the newest first, refusals included. Needs the role admin, and is recorded itself."""
    times: dict[str, Any] = {name: _time(conditions[name]) for name in ("since", "until") if name in conditions}
    asked: dict[str, Any] = {**conditions, **times}
    items: list[dict[str, Any]] = []
    cursor, scanned = None, 0
    with connect(context, url, token) as sidecar, ProgressLine() as progress:
        while len(items) < limit:
            query = {**asked, "limit": min(limit - len(items), PAGE_LIMIT), **given({"cursor": cursor})}
            page = sidecar.document("GET", f"/v1/audit?{httpx.QueryParams(query)}")
            items += page["items"]
            scanned += page["scanned"]
            cursor = page["next"]
            if not cursor:
                break
            progress.tell(f"{scanned} records read, {page['remaining']} to go")
    show_items(items, _line, form, COLUMNS)
    if cursor:
        say(f"there may be more: --limit {limit * 2}, or --until the time of the last")


def _time(text: str) -> str:
    """Epoch milliseconds of a duration ago; any other text as it is, which the sidecar reads."""
    try:
        return str(int(time.time() * 1_000) - parse_typed_duration(text))
    except FormatError:
        return text


def _line(item: dict[str, Any]) -> dict[str, Any]:
    """One line: what it was done to and what is noted of it as `name=value`."""
    told = {name: " ".join(f"{key}={value}" for key, value in (item.get(name) or {}).items()) or None
            for name in ("subject", "notes")}  # fmt: skip
    return {**item, **told}
