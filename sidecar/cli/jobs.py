"""Jobs of all kinds on the command line: watching one, showing it, ending as it did."""

import time
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import typer

from sidecar.cli.output import Failure, Form, OutputOption, ProgressLine, Status, say, show, show_items
from sidecar.cli.rest_client import Options, Sidecar, TokenOption, UrlOption, connect, step_of, taking

POLL_S: Final = 0.5
ACTIVE: Final = frozenset({"planning", "canary", "running", "aborting"})
WELL: Final = frozenset({"planned", "canaried", "done"})

WITH_KEYS: Final = "With the filter's key prefix and header, masked; it is recorded."
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return when it has begun; `status` shows how far it is.")]


class JobKind(NamedTuple):
    """Jobs of one kind: what people call one, where they are, and how far one is, in a line."""

    noun: str
    group: str  # of its commands
    path: str
    progress: Callable[[dict[str, Any]], str]

    def of(self, id: str) -> str:
        """Where one of them is."""
        return f"{self.path}/{step_of(id)}"

    def id_argument(self) -> Any:
        """The argument that names one of them."""
        return typer.Argument(help=f"Id of the {self.noun}, as `plan` and `status` show it.")


def finish(sidecar: Sidecar, document: dict[str, Any], kind: JobKind, form: Form, no_wait: bool = False) -> None:
    """Watch it until nobody works on it any more, and end as it did."""
    document = document if no_wait else watched(sidecar, document, kind)
    show(document, form)
    if waits_for := document.get("waits_for"):  # a sidecar of an older version tells none
        say(f"waits for {waits_for}: tickover {kind.group} approve {document['id']}")
    state = document["state"]
    if state not in WELL | ACTIVE:
        raise Failure(f"the {kind.noun} is {state}: {document['reason'] or 'it was aborted'}", Status.FAILED)


def watched(sidecar: Sidecar, document: dict[str, Any], kind: JobKind) -> dict[str, Any]:
    """A job once nobody works on it any more."""
    with ProgressLine() as progress:
        while document["state"] in ACTIVE:
            progress.tell(kind.progress(document))
            time.sleep(POLL_S)
            document = sidecar.document("GET", kind.of(document["id"]))
    return document


def add_step(
    app: typer.Typer, kind: JobKind, name: str, words: str, options: Options | None = None, **defaults: Any
) -> None:
    """A command by which one of them goes on; `options` are the fields of its body."""

    @app.command(name, help=words)
    @taking("body", options or {}, **defaults)
    def step(
        context: typer.Context,
        id: Annotated[str, kind.id_argument()],
        body: dict[str, Any],
        no_wait: NoWait = False,
        url: UrlOption = "",
        token: TokenOption = None,
        form: OutputOption = Form.TABLE,
    ) -> None:
        with connect(context, url, token) as sidecar:
            finish(sidecar, sidecar.document("POST", f"{kind.of(id)}/{name}", body or None), kind, form, no_wait)


def add_common(app: typer.Typer, kind: JobKind, line: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The commands `approve`, `abort` and `status`; `line` is one line of the list of all."""

    @app.command(help=f"Let a {kind.noun} run that somebody else has planned (`changes.approval: other`).")
    def approve(
        context: typer.Context,
        id: Annotated[str, kind.id_argument()],
        url: UrlOption = "",
        token: TokenOption = None,
        form: OutputOption = Form.TABLE,
    ) -> None:
        with connect(context, url, token) as sidecar:
            show(sidecar.document("POST", f"{kind.of(id)}/approve"), form)

    @app.command(help=f"End the {kind.noun}: once it is `aborted` no more is done. What was done stays done.")
    def abort(
        context: typer.Context,
        id: Annotated[str, typer.Argument(help="As `plan` and `status` show it.")],
        no_wait: NoWait = False,
        url: UrlOption = "",
        token: TokenOption = None,
        form: OutputOption = Form.TABLE,
    ) -> None:
        with connect(context, url, token) as sidecar:
            document = sidecar.document("POST", f"{kind.of(id)}/abort")
            document = document if no_wait else watched(sidecar, document, kind)
        show(document, form)
        if document["state"] == "done":
            raise Failure(f"the {kind.noun} is done: the abort came too late", Status.FAILED)

    @app.command(help=f"Show one {kind.noun}, or all of the last 30 days.")
    def status(
        context: typer.Context,
        id: Annotated[str | None, typer.Argument(help="As `plan` shows it. Default: list all.")] = None,
        payload: Annotated[bool, typer.Option("--payload", help=WITH_KEYS)] = False,
        url: UrlOption = "",
        token: TokenOption = None,
        form: OutputOption = Form.TABLE,
    ) -> None:
        if payload and id is None:
            raise Failure(f"--payload is about one {kind.noun}: say which", Status.USAGE)
        with connect(context, url, token) as sidecar:
            if id is not None:
                show(sidecar.document("GET", kind.of(id) + ("?payload=true" if payload else "")), form)
                return
            items = list(sidecar.items(kind.path))
        show_items(items, line, form)
