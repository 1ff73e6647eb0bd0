"""`tickover pauses` and `targets`: stopping things for a while, what keeps messages from targets, breakers."""

from typing import Annotated, Any

import typer

from sidecar.cli.messages.options import time_checked
from sidecar.cli.output import Form, OutputOption, output_before, say, show_items, show_result
from sidecar.cli.rest_client import TokenOption, UrlOption, connect, given, step_of
from sidecar.model.condition import PauseKind

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Stop things for a while.")
app.callback()(output_before)
targets_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="See what keeps messages from targets; switch breakers."
)
targets_app.callback()(output_before)

Kind = Annotated[PauseKind, typer.Argument(help="What it is.")]
PausedName = Annotated[
    str, typer.Argument(metavar="NAME", help="Of a policy or schedule; the topic of a source or target.")
]

TargetName = Annotated[str, typer.Argument(metavar="NAME", help="Topic of the target.")]


@app.command("list")
def list_pauses(
    context: typer.Context, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.TABLE
) -> None:
    """List all that is paused: why, by whom, since when, and how many due messages wait at the replica that answers."""
    with connect(context, url, token) as sidecar:
        items = list(sidecar.items("/v1/pauses"))
    show_items(items, _pause_line, form)


@app.command()
def add(
    context: typer.Context,
    kind: Kind,
    name: PausedName,
    reason: Annotated[str, typer.Option(help="Why, for whoever finds it paused.")],
    until: Annotated[str | None, typer.Option(help="Goes on then: RFC 3339 with zone, or epoch milliseconds.")] = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Pause a policy, a source, a target or a schedule, on all replicas. What is held stays held."""
    body = {"reason": reason, **given({"until": time_checked("--until", until)})}
    with connect(context, url, token) as sidecar:
        answer = sidecar.document("PUT", _pause_path(kind, name), body)
    say(f"{kind} {name} paused")
    show_result(answer, form)


@app.command()
def remove(
    context: typer.Context,
    kind: Kind,
    name: PausedName,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Resume what is paused. What waits goes at once, in order of due, as fast as other limits let it."""
    with connect(context, url, token) as sidecar:
        sidecar.call("DELETE", _pause_path(kind, name))
    say(f"{kind} {name} resumed")
    show_result({"kind": kind.value, "name": name, "result": "resumed"}, form)


@targets_app.command("list")
def list_targets(
    context: typer.Context, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.TABLE
) -> None:
    """List targets: how many messages wait at the replica that answers, for what, and since when."""
    with connect(context, url, token) as sidecar:
        items = list(sidecar.items("/v1/targets"))
    show_items(items, _target_line, form)


@targets_app.command("close-breaker")
def close_breaker(
    context: typer.Context,
    name: TargetName,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Let retries to a target whose breaker is open be tried now, on all replicas: a few go as probes."""
    answer = _switched(context, name, "close-breaker", url, token)
    say(f"breaker of {name} closed: a few retries go as probes")
    show_result(answer, form)


@targets_app.command("open-breaker")
def open_breaker(
    context: typer.Context,
    name: TargetName,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Hold up retries to a target until its breaker tries it again by itself, on all replicas. Else pause it."""
    answer = _switched(context, name, "open-breaker", url, token)
    say(f"breaker of {name} opened: retries wait, and after its time a few go as probes")
    show_result(answer, form)


def _switched(context: typer.Context, target: str, how: str, url: UrlOption, token: TokenOption) -> dict[str, Any]:
    """Answer of a breaker that was switched."""
    with connect(context, url, token) as sidecar:
        return sidecar.document("POST", f"/v1/targets/{step_of(target)}/{how}")


def _pause_path(kind: PauseKind, name: str) -> str:
    return f"/v1/pauses/{kind}/{step_of(name)}"


def _pause_line(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    return {name: item[name] for name in ("kind", "name", "since", "until", "by", "waiting", "reason")}


def _target_line(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    told = {name: item[name] for name in ("name", "waiting", "rate", "breaker", "suspended_since")}
    return {**told, "paused": (item["paused"] or {}).get("reason")}
