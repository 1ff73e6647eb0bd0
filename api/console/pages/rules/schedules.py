"""Schedules: the list, one with its next and last runs and what was missed, and an editor."""

from secrets import token_urlsafe
from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, action, screen
from api.console.pages.rules.editing import SCHEDULE, at, delete, save, written
from api.console.rest import Refusal
from policies.topic.difference import text_of

LIMIT: Final = 100
NEXT: Final = 5
NEW: Final = """\
name: daily-report
cron: 0 9 * * MON-FRI
time_zone: Europe/Berlin
target: reports
value: make the report
"""


async def schedules(page: Page) -> Response:
    """All of them."""
    listed = await page.get("/v1/schedules", limit=LIMIT, cursor=page.query("cursor"))
    return page.show("schedules.html", items=listed["items"], next=listed["next"])


async def schedule(page: Page) -> Response:
    """One of them: when it fires, when it did, and what nobody was there to write."""
    name = page.request.path_params["name"]
    answer = await page.rest.call("GET", at(SCHEDULE, name))
    nothing: dict[str, list[Any]] = {"items": [], "missed": []}
    coming, why = await page.get_if_any(f"{at(SCHEDULE, name)}/next", nothing, n=NEXT)
    runs, _ = await page.get_if_any(f"{at(SCHEDULE, name)}/runs", nothing)
    return page.show(
        "schedule.html", name=name, one=answer.document, etag=answer.headers["etag"], coming=coming["items"], why=why,
        runs=runs["items"], missed=runs["missed"], key=token_urlsafe(12),
    )  # fmt: skip


async def edit(page: Page) -> Response:
    """The editor: of the schedule that the address names, else of a new one. It shows the payload: recorded."""
    name = page.query("name")
    if not name:
        return _editor(page, NEW, "")
    answer = await page.rest.call("GET", at(SCHEDULE, name), {"payload": "true"})
    hidden = ", ".join(answer.document.get("masked", ()))
    if hidden:
        file = "change it with its file and `tickover schedules apply`"
        detail = f"Parts of it are masked ({hidden}), and would be lost: {file}."
        return page.show("refused.html", 409, title="Not here", detail=detail, written=[], logs_in=False)
    return _editor(page, text_of(answer.document), answer.headers["etag"], name)


async def store(page: Page) -> Response:
    """Write a new version."""
    text, etag, name = (page.form.get(field, "") for field in ("text", "etag", "name"))
    found = written(SCHEDULE, text)
    if found.fault:
        return _editor(page, text, etag, name, found.fault)
    try:
        await save(page, SCHEDULE, found.document)
    except Refusal as refusal:
        return _editor(page, text, etag, name, refusal.detail)
    return page.go("/schedules/{name}", "schedule-written", name=found.document["name"])


async def run(page: Page) -> Response:
    """Send its message now, once for the key of the form."""
    name = page.request.path_params["name"]
    sent = await page.rest.post(f"{at(SCHEDULE, name)}/run", None, Idempotency_Key=page.form.get("idempotency_key", ""))
    return page.go("/messages/{id}", "schedule-run", id=sent["id"])


async def remove(page: Page) -> Response:
    """Delete it; what is written ahead of its time still fires."""
    await delete(page, SCHEDULE, page.request.path_params["name"])
    return page.go("/schedules", "schedule-deleted")


def _editor(page: Page, text: str, etag: str, name: str = "", fault: str = "") -> Response:
    return page.show("schedule_editor.html", text=text, etag=etag, name=name, fault=fault)


SCREENS: Final = (
    screen("/schedules", schedules),
    screen("/schedules/_edit", edit, "admin"),
    action("/schedules/_write", store, "admin"),
    screen("/schedules/{name}", schedule),
    action("/schedules/{name}/run", run, "write"),
    action("/schedules/{name}/delete", remove, "admin"),
)
