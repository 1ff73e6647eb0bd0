"""`tickover redrive`: sending dead letters again, carefully."""

from typing import Annotated, Any, Final

import typer

from sidecar.cli.dead_letters import (
    ErrorClassOption,
    FingerprintOption,
    PolicyOption,
    ReasonOption,
    SinceOption,
    UntilOption,
    selection,
    times,
)
from sidecar.cli.jobs import Kind, NoWait, add_common, finish
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, utc_text
from sidecar.cli.rest_client import TokenOption, UrlOption, connect, given

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Send dead letters again.")
app.callback()(output_before)
Id = Annotated[str, typer.Argument(help="Id of the redrive, as `plan` and `status` show it.")]


# The parameters of a command are its options: they cannot be fewer than what the user may say.
@app.command()
def plan(
    context: typer.Context,
    topic: Annotated[str, typer.Option(help="Dead-letter topic.")],
    target: Annotated[str | None, typer.Option(help="For all letters. Default: each goes where it belongs.")] = None,
    reason: ReasonOption = None,
    fingerprint: FingerprintOption = None,
    error_class: ErrorClassOption = None,
    policy: PolicyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Every letter of the topic is meant.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also letters that some plan has sent.")] = False,
    rate: Annotated[int | None, typer.Option(min=0, help="Letters a second at most; 0: no limit.")] = None,
    ramp: Annotated[str | None, typer.Option(help="From a tenth of the rate to all of it: 30s, 5m.")] = None,
    stop_share: Annotated[float | None, typer.Option(min=0, max=1, help="More of them failed again: stop.")] = None,
    watch: Annotated[str | None, typer.Option(help="How long to wait for what fails again, after the last.")] = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Say which letters are to be sent again, and count them. Nothing is sent."""
    chosen = {**selection(reason, fingerprint, error_class, policy), **times(since, until)}
    if not given(chosen) and not everything:
        raise Failure("no filter given: if every letter of the topic is meant, say --all", Status.USAGE)
    limits = {"target": target, "rate": rate, "ramp": ramp, "stop_share": stop_share, "watch": watch}
    said = {"topic": topic, "filter": given(chosen), "confirm_all": everything, "again": again}
    body: dict[str, Any] = {**said, **given(limits)}
    with connect(context, url, token) as sidecar:
        finish(sidecar, sidecar.document("POST", "/v1/redrives", body), _KIND, form)


@app.command()
def canary(
    context: typer.Context,
    id: Id,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="How many letters.")] = 10,
    no_wait: NoWait = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Send a few letters, and watch what becomes of them."""
    with connect(context, url, token) as sidecar:
        finish(sidecar, sidecar.document("POST", f"{_KIND.of(id)}/canary", {"count": count}), _KIND, form, no_wait)


@app.command()
def run(
    context: typer.Context,
    id: Id,
    no_wait: NoWait = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Send the rest, until it is done or too much of it fails again. Ctrl-C ends the watching, not the redrive."""
    with connect(context, url, token) as sidecar:
        finish(sidecar, sidecar.document("POST", f"{_KIND.of(id)}/run"), _KIND, form, no_wait)


def _progress(document: dict[str, Any]) -> str:
    records = document["records"]
    return (
        f"{document['state']}: {document['sent']} sent, {document['failed_again']} failed again, "
        f"{records['remaining']} of {records['read'] + records['remaining']} records to go"
    )


def _line(item: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    told = {name: item[name] for name in ("id", "state", "topic", "sent", "failed_again", "author", "reason")}
    return {**told, "planned": item["planned"]["letters"], "created": utc_text(item["created"])}


_KIND: Final = Kind("redrive", "/v1/redrives", _progress)
add_common(app, _KIND, _line)
