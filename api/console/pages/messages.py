"""Held messages, and one message with all that is known of it, what makes it late, and what may be done with it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from starlette.responses import Response

from api.console.csv_file import csv_response
from api.console.page import Page, action, screen
from api.console.rest import Refusal, path_of
from sidecar.model.condition import CAUSES

FILTERS: Final = (
    "source", "partition", "policy", "target", "id", "key_prefix", "header", "error_class", "due_from", "due_to",
)  # fmt: skip
NEED_WRITE: Final = ("key_prefix", "header")
PAGE: Final = 50
SOON_S: Final = 2  # until a page asks again for a message that was just written
EXPORTED_MAX: Final = 10_000
EXPORT_PAGE: Final = 500
COLUMNS: Final = (
    "id", "source", "partition", "offset", "due", "due_utc", "tier", "target", "policy", "attempt", "error_class",
    "size",
)  # fmt: skip
MESSAGE: Final = "/v1/messages/{id}"
SEVERAL: Final = "held-in-several-places"  # the problem of an id that more than one held message has

# What an event of a timeline says. Others are shown by their name.
EVENTS: Final[Mapping[str, str]] = {
    "dead-before": "A message with this id was given up before, and sent to {target}: it had come as",
    "first-failure": "Delivery 1 failed",
    "attempt": "Delivery {attempt} went to {target} and failed; its record had come as",
    "attempts-unknown": "{which} failed. More is not known here: the ledger isn't remembered that far, or the id was "
    "another",
    "accepted": "Arrived in its source",
    "overflow": "Held in Redis, and in the ledger",
    "due": "Due",
    "moved": "Given another due time",
    "not-found": "A control record for this id found nothing",
    "emitted": "Handed to its target",
    "dead": "Gave up: sent to the dead letters",
    "quarantined": "Put into the quarantine",
    "cancelled": "Cancelled",
    "replaced": "Replaced by a later message with its id",
}
BAD: Final = frozenset({
    "dead", "quarantined", "not-found", "dead-before", "first-failure", "attempt", "attempts-unknown",
})  # fmt: skip


async def held(page: Page) -> Response:
    """The list, with filters of the address."""
    if page.query("offset"):
        return await _at_place(page)
    if (name := page.query("add")) in FILTERS:
        return page.go("/messages", **{**page.asked(*FILTERS), name: page.query("value").strip()})
    asked = page.asked(*FILTERS)
    found = await page.get("/v1/messages", **asked, limit=PAGE, cursor=page.query("cursor"), count="true")
    every, _ = (found, "") if not asked else await page.get_if_any("/v1/messages", {}, limit=1, count="true")
    names = [name for name in FILTERS if page.may("write") or name not in NEED_WRITE]
    return page.show(
        "messages.html",
        asked=asked,
        found=found,
        every=every.get("count"),
        names=names,
        exported_max=EXPORTED_MAX,
        command=page.tickover("messages list", asked),
        call=page.curl("GET", "/v1/messages", asked),
    )


async def _at_place(page: Page) -> Response:
    """The message that came at a place, as the ledger or the look-up knows it."""
    place = "/".join(page.query(name) for name in ("source", "partition", "offset"))
    told = await page.get("/v1/lateness", position=place)
    if not told.get("id"):
        return page.show("not_found.html", text=place, detail="The message at this place has no id.")
    return page.go("/messages/{id}", id=told["id"], source=told["source"])


async def export(page: Page) -> Response:
    """The list as CSV, as far as one file goes."""
    rows, is_whole = await page.collect("/v1/messages", EXPORTED_MAX, **page.asked(*FILTERS), limit=EXPORT_PAGE)
    return csv_response("messages", COLUMNS, ({**row, **row["position"]} for row in rows), is_whole)


async def one(page: Page) -> Response:
    """One message; with `payload` in the address its key, value and headers, too."""
    id, places = page.request.path_params["id"], page.asked("source", "partition")
    shows = bool(page.query("payload")) and page.may("write")
    try:
        answer = await page.rest.call("GET", path_of(MESSAGE, id=id), {**places, "payload": "true" if shows else ""})
    except Refusal as refusal:
        if refusal.is_of(SEVERAL):
            return page.go("/messages", id=id, **places)
        if refusal.status == 404 and page.done:  # written a moment ago, and not read yet
            return page.show_then("soon.html", page.here(), SOON_S)
        raise
    told = answer.document
    late, why_not = await page.get_if_any("/v1/lateness", None, id=id, **places)
    return page.show(
        "message.html",
        id=id,
        places=places,
        told=told,
        etag=answer.headers.get("etag", ""),
        late=late,
        why_not=why_not,
        parts_of_lateness=list(_parts(late or {})),
        rows=list(_rows(told, page.now_ms)),
        value=_text(told.get("payload")) if shows else None,
        command=page.tickover("messages get", {**places, "payload": shows}, id),
        why=page.tickover("messages why", places, id),
        call=page.curl("GET", MESSAGE, {"id": id, **places}),
    )


def _rows(told: Mapping[str, Any], now_ms: int) -> Iterator[tuple[int | str, str, str]]:
    """Lines of the timeline: when, how it looks, what happened."""
    for event in told.get("timeline", ()):
        name, time = event["event"], event["time"]
        is_next = name == "due" and time is not None and time > now_ms
        kind = "bad" if name in BAD else "next" if is_next else ""
        yield time if time is not None else "–", kind, " ".join(_words(name, event))


def _words(name: str, event: Mapping[str, Any]) -> Iterator[str]:
    first, last = event.get("first"), event.get("last")
    which = f"Delivery {first}" if first == last else f"Deliveries {first} to {last}"
    yield EVENTS.get(name, name).format_map({**event, "which": which})
    if name == "first-failure" and event["position"]:
        yield "and came to tickover as"
    for place in ("position", "control", "by"):
        if isinstance(at := event.get(place), Mapping):
            yield "{topic}/{partition}/{offset}".format(**at)
        elif at:  # who has paused it
            yield f"{place} {at}"
    if name == "emitted" and event.get("target"):
        yield str(event["target"])
    if event.get("reason"):
        yield f"({event['reason'].replace('_', ' ')})"
    if at := event.get("ledger"):
        yield f"· ledger {at['partition']}/{at['offset']}"


def _parts(late: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Parts of a lateness in words, the longest first."""
    for cause, ms in late.get("by_cause", {}).items():
        yield {"cause": cause.replace("_", " "), "ms": ms, "why": CAUSES.get(cause, "")}


def _text(payload: Any) -> Any:
    """A payload with JSON laid out for reading."""
    if not payload:
        return payload
    pretty = {
        name: content if isinstance(content := payload[name], str | None) else json.dumps(content, indent=2)
        for name in ("key", "value")
    }
    headers = [
        (name, content if isinstance(content, str | None) else json.dumps(content))
        for name, content in payload["headers"]
    ]
    return {**pretty, "headers": headers}


# --- actions ------------------------------------------------------------------------------------------------------


def _named(page: Page) -> tuple[str, Mapping[str, str], dict[str, str]]:
    """The message that a form names: its id, where it is looked for, and its ETag as a condition."""
    places = {name: page.form[name] for name in ("source", "partition") if page.form.get(name)}
    condition = {"If-Match": page.form["etag"]} if page.form.get("etag") else {}
    return page.form.get("id", ""), places, condition


async def _act(page: Page, method: str, path: str, done: str, body: object = None) -> Response:
    id, places, condition = _named(page)
    answer = await page.rest.call(method, path_of(path, id=id), places, body, condition)
    is_pending = answer.document["outcome"] == "pending"
    return page.go("/messages/{id}", "pending" if is_pending else done, id=id, **places)


async def fire(page: Page) -> Response:
    """Emit it now."""
    return await _act(page, "POST", f"{MESSAGE}/fire", "fired")


async def cancel(page: Page) -> Response:
    """Cancel it: it will not be emitted."""
    return await _act(page, "DELETE", MESSAGE, "cancelled")


async def reschedule(page: Page) -> Response:
    """Give it another due time."""
    when = {name: text for name in ("delay", "deliver_at") if (text := page.form.get(name, "").strip())}
    return await _act(page, "PATCH", MESSAGE, "rescheduled", when)


def filters_in(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Filters that a form carries on."""
    return {name: value for name, value in fields if name in FILTERS and value}


SCREENS: Final = (
    screen("/messages", held),
    screen("/export/messages.csv", export),
    screen("/messages/{id:path}", one),
    action("/act/fire", fire),
    action("/act/cancel", cancel),
    action("/act/reschedule", reschedule),
)
