"""`tickover whoami` and `tickover config running`: what a sidecar that runs knows of its caller and of its settings."""

from typing import Annotated

import typer

from sidecar.cli.output import Form, OutputOption, show
from sidecar.cli.rest_client import TokenOption, UrlOption, connect
from sidecar.settings.listing import DEFAULT


def whoami(
    context: typer.Context, url: UrlOption = "", token: TokenOption = None, form: OutputOption = Form.YAML
) -> None:
    """Show who you are to a sidecar, what your role may do, and which process answers."""
    with connect(context, url, token) as sidecar:
        show(sidecar.document("GET", "/v1/whoami"), form)


def running(
    context: typer.Context,
    given_only: Annotated[bool, typer.Option("--given", help="Only what isn't left at its default.")] = False,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Show the settings in force in a sidecar that runs, and where each came from. Needs the role admin."""
    with connect(context, url, token) as sidecar:
        items = sidecar.document("GET", "/v1/settings").get("items", ())
    show([item for item in items if not given_only or item.get("from") != DEFAULT], form, ("setting", "value", "from"))
