"""The commands, over `GET /v1/overview` and `GET /v1/replicas`."""

import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.live import Live

from sidecar.cli.output import Failure, Form, OutputOption, is_terminal, say, show, show_items
from sidecar.cli.overview.figures import (
    CAPACITY_COLUMNS,
    REPLICA_COLUMNS,
    capacity_line,
    digest,
    problem_lines,
    replica_line,
)
from sidecar.cli.overview.screen import View, screen
from sidecar.cli.overview.terminal import Ended, keys, wait
from sidecar.cli.rest_client import Sidecar, TokenOption, UrlOption, connect

REFRESH_S: Final = 2.0

IntervalOption = Annotated[float, typer.Option(help="Seconds between two looks.", min=0.5, max=3_600)]


def overview(
    context: typer.Context, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.TABLE
) -> None:
    """Show the whole group at a glance: what all replicas hold, how late it is, and what is wrong."""
    with connect(context, url, token) as sidecar:
        _show_overview(sidecar.document("GET", "/v1/overview"), form)


def replicas(
    context: typer.Context, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.TABLE
) -> None:
    """List the processes of the group: partitions, lag, memory, recoveries and rebuilds."""
    with connect(context, url, token) as sidecar:
        show_items(list(sidecar.items("/v1/replicas")), replica_line, form, REPLICA_COLUMNS)


def capacity(
    context: typer.Context,
    minutes: Annotated[int, typer.Option(help="How many minutes ahead.", min=1, max=1_440)] = 60,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show where more is due than the rate of a policy lets through, and the spread with which it would fit."""
    with connect(context, url, token) as sidecar:
        items = list(sidecar.items("/v1/capacity", {"minutes": minutes}))
    show_items(items, capacity_line, form, CAPACITY_COLUMNS)


def top(
    context: typer.Context,
    interval: IntervalOption = REFRESH_S,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Watch the whole group on a terminal, refreshed until q, Ctrl-C or SIGTERM. Elsewhere, or with -o, once."""
    with connect(context, url, token) as sidecar:
        if form is Form.TABLE and is_terminal():
            _watch(sidecar, interval)
        else:
            _show_overview(sidecar.document("GET", "/v1/overview"), form)


def _show_overview(document: dict[str, Any], form: Form) -> None:
    show(digest(document) if form is Form.TABLE else document, form)
    if form is Form.TABLE:
        for line in problem_lines(document):
            say(line)


def _watch(sidecar: Sidecar, interval_s: float) -> None:
    """Ends in order when it is asked to; a sidecar that doesn't answer any more is waited for."""
    view = _look(sidecar)
    console = Console(file=sys.stdout, highlight=False)
    try:
        with keys(), Live(screen(view), console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(view), refresh=True)
                wait(interval_s)
                try:
                    view = _look(sidecar)
                except Failure as failure:
                    view = view._replace(stale=str(failure))
    except Ended:
        return


def _look(sidecar: Sidecar) -> View:
    return View(sidecar.document("GET", "/v1/overview"), list(sidecar.items("/v1/replicas")))
