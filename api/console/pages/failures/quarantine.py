"""Screens of the quarantine: why records could not be decided, and sending one to its source again, corrected."""

import json
from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, Refused, action, screen
from api.console.rest import Refusal, path_of

OPTIONS: Final = ("error", "reason", "fingerprint", "policy", "id", "key_prefix", "header")  # of the command, too
FILTERS: Final = (*OPTIONS, "since", "until", "open")
ONE: Final = "/v1/quarantine/{partition}/{offset}"
HEADERS_MAX: Final = 10  # that a form has room for
HEADERS_ASKED: Final = 2  # where nothing was written yet
CHANGED: Final = "yes"


async def quarantine(page: Page) -> Response:
    """Quarantined records, a page at a time."""
    asked = page.asked(*FILTERS)
    told = await page.get("/v1/quarantine", **asked, limit=50, cursor=page.query("cursor"))
    known = {name: value for name, value in asked.items() if name in OPTIONS}
    options: dict[str, object] = {**known, "open": asked.get("open") == "true"}
    return page.show(
        "quarantine.html",
        asked=asked,
        told=told,
        cli=page.tickover("quarantine list", options),
        curl=page.curl("GET", "/v1/quarantine", asked),
    )


async def quarantined(page: Page) -> Response:
    """One record, and the form that corrects it."""
    return await _record(page)


async def send(page: Page) -> Response:
    """Send it with what the form gives. A refusal is told above the form, which keeps what was written."""
    try:
        await page.rest.post(f"{_path(page)}/send", _correction(page))
    except (Refusal, Refused) as refusal:
        return await _record(page, refusal.detail, refusal.status)
    return page.go("/quarantine/{partition}/{offset}", "sent", **page.request.path_params)


def _path(page: Page) -> str:
    return path_of(ONE, **{name: str(page.request.path_params[name]) for name in ("partition", "offset")})


def _correction(page: Page) -> dict[str, Any]:
    """The body of the call. Raises `Refused`."""
    names, values = page.listed("name"), page.listed("header")
    headers = [[name, value] for name, value in zip(names, values, strict=False) if name]
    if any(value and not name for name, value in zip(names, values, strict=False)):
        raise Refused("A new value of a header needs the header's name.")
    body: dict[str, Any] = {"headers": headers, "without": page.form.get("without", "").split()}
    for part in ("key", "value"):
        if page.form.get(f"change_{part}") == CHANGED:
            body[part] = page.form.get(part, "")
        elif page.form.get(part):
            raise Refused(f"Another {part} was written: tick that it comes in place of the {part}, or empty the field.")
    return body


async def _record(page: Page, problem: str = "", status: int = 200) -> Response:
    path, place = _path(page), "{partition}/{offset}".format(**page.request.path_params)
    shows = page.query("payload") == "true" and page.may("write")
    record = await page.get(path, payload="true" if shows else "")
    names, values = page.listed("name"), page.listed("header")
    rows = [*zip(names, values, strict=False)] or [("", "")] * HEADERS_ASKED
    return page.show(
        "quarantined.html",
        status,
        record=record,
        payload=record.get("payload"),
        text=_text,
        problem=problem,
        rows=rows[:HEADERS_MAX],
        form=page.form,
        place=place,
        may_send=page.may("write") and not record["redriven"],
        cli=page.tickover("quarantine get", {"payload": shows}, place),
        send_cli=page.tickover("quarantine send", {"header": "tickover-delay=10m"}, place),
        curl=page.curl("GET", path, {"payload": "true"} if shows else None),
        send_curl=page.curl("POST", f"{path}/send", None, {"headers": {"tickover-delay": "10m"}}),
    )


def _text(value: object) -> str:
    """A key, value or header as it may be shown."""
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)


SCREENS: Final = (
    screen("/quarantine", quarantine),
    screen("/quarantine/{partition:int}/{offset:int}", quarantined),
    action("/quarantine/{partition:int}/{offset:int}/send", send),
)
