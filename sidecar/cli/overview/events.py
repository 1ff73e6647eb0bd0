"""`tickover events`, over `GET /v1/events`: a line for each, until Ctrl-C; a lost connection is made anew."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import typer

from api.events.ring import RESET, EventName
from sidecar.cli.output import Failure, Form, OutputOption, say, show
from sidecar.cli.rest_client import Lost, Sidecar, TokenOption, UrlOption, connect
from sidecar.model.foreign_text import visible

AGAIN_S: Final = 2.0
LISTS: Final = ("added", "changed", "removed")


EventOption = Annotated[list[EventName] | None, typer.Option("--event", help="Events of this name; may be repeated.")]


def events(
    context: typer.Context,
    event: EventOption = None,
    url: UrlOption = "",
    token: TokenOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Follow what changes, a line for each event (with -o json: of JSON), until Ctrl-C. All events unless some are
    named. `reset`: what was missed isn't known.
    """
    with connect(context, url, token) as sidecar:
        try:
            for one in followed(sidecar, [name.value for name in event or ()]):
                _write(one, form)
        except KeyboardInterrupt:
            return


def followed(sidecar: Sidecar, names: list[str]) -> Iterator[dict[str, Any]]:
    """Events without an end, over lost connections. Raises `Failure`: it is refused, or has never answered."""
    last_id, has_answered, is_lost = "", False, False
    while True:
        try:
            with sidecar.lines("/v1/events", {"event": names}, {"Last-Event-ID": last_id} if last_id else {}) as lines:
                if is_lost:
                    say("it answers again")
                has_answered, is_lost = True, False
                for one in read_events(lines):
                    last_id = str(one["id"])
                    yield one
        except Lost as lost:
            if not has_answered:
                raise
            if not is_lost:
                say(f"{lost}; it is asked again every {AGAIN_S:.0f} s")
            is_lost = True
        time.sleep(AGAIN_S)


def read_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Server-sent events as documents: `id`, `event` and the fields of the data. What is cut off counts as not sent."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if line:
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield _document(fields)
        fields = {}


def _document(fields: dict[str, str]) -> dict[str, Any]:
    try:
        data = json.loads(fields["data"])
    except ValueError:
        data = None
    if not isinstance(data, dict) or not {"id", "event"} <= fields.keys():
        raise Failure("the answer is not a stream of events: is it a tickover sidecar?")
    return {"event": fields["event"], **data, "id": fields["id"]}


def _write(event: dict[str, Any], form: Form) -> None:
    match form:
        case Form.TABLE:
            print(visible(line(event)))
        case Form.YAML:
            print("---")
            show(event, form)
        case _:
            show(event, Form.JSONL)
    sys.stdout.flush()  # whoever reads a pipe waits for this line


def line(event: dict[str, Any]) -> str:
    """Words of an event."""
    told = [f"{name} {', '.join(map(str, event[name]))}" for name in LISTS if event.get(name)]
    if event.get("more"):
        told.append(f"{event['more']} more")
    words = "read all again" if event["event"] == RESET else "; ".join(told)
    return f"{event.get('at_utc') or event.get('at')} {event['event']}: {words}"
