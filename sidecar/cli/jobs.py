"""What is the same for all jobs on the command line: watching one, showing it, ending as it did."""

import time
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

import typer

from sidecar.cli.connection import Sidecar
from sidecar.cli.failure import Failure, Status
from sidecar.cli.output import Form, say, show, utc_text

POLL_S: Final = 0.5
SAID_S: Final = 2.0  # between two lines of progress
ACTIVE: Final = frozenset({"planning", "canary", "running"})
WELL: Final = frozenset({"planned", "canaried", "done"})
TIMES: Final = ("created", "updated", "expires")

NoWait = Annotated[bool, typer.Option("--no-wait", help="Return when it has begun; `status` shows how far it is.")]


class Kind(NamedTuple):
    """Jobs of one kind: what people call one, where they are, and how far one is, in a line."""

    noun: str
    path: str
    progress: Callable[[dict[str, Any]], str]

    def of(self, id: str) -> str:
        """Where one of them is."""
        return f"{self.path}/{quote(id, safe='', errors='surrogateescape')}"


def finish(sidecar: Sidecar, document: dict[str, Any], kind: Kind, form: Form, no_wait: bool = False) -> None:
    """Watch it until nobody works on it any more, and end as it did."""
    said_s = time.monotonic()
    while document["state"] in ACTIVE and not no_wait:
        if time.monotonic() - said_s > SAID_S:
            say(kind.progress(document))
            said_s = time.monotonic()
        time.sleep(POLL_S)
        document = sidecar.document("GET", kind.of(document["id"]))
    show_job(document, form)
    state = document["state"]
    if state not in WELL | ACTIVE:
        raise Failure(f"the {kind.noun} is {state}: {document['reason'] or 'it was aborted'}", Status.FAILED)


def show_job(document: dict[str, Any], form: Form) -> None:
    """One of them."""
    if form is Form.TABLE:
        document = {name: utc_text(value) if name in TIMES else value for name, value in document.items()}
    show(document, form)


def show_jobs(items: list[dict[str, Any]], line: Callable[[dict[str, Any]], dict[str, Any]], form: Form) -> None:
    """All of them, in a table a line each."""
    show([line(item) for item in items] if form is Form.TABLE else items, form)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Without what was left out."""
    return {name: value for name, value in options.items() if value is not None}
