"""Changes of many held messages as steps: which ones, how many, confirmed by typing the count, run, receipts."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from api.console.csv_file import csv_response
from api.console.page import Page, Refused, action, screen, whole
from api.console.pages.messages import FILTERS, filters_in
from api.console.rest import Refusal, path_of

ACTIONS: Final = ("cancel", "reschedule", "fire")
TIMES: Final = ("delay", "deliver_at", "by")
STEPS: Final = ("Select", "Count", "Confirm", "Run", "Receipts")
STEP_OF: Final[Mapping[str, int]] = {"planning": 2, "planned": 3, "running": 4, "aborting": 4, "done": 6, "aborted": 6}
ACTIVE: Final = frozenset({"planning", "running", "aborting"})
CHANGE: Final = "/v1/changes/{id}"
RECEIPTS_SHOWN: Final = 50
RECEIPTS_PAGE: Final = 500
RECEIPTS_MAX: Final = 100_000  # of one file
COLUMNS: Final = ("id", "outcome", "state", "reason", "due", "due_utc", "position", "control")


async def changes(page: Page) -> Response:
    """All of them, the newest first."""
    found = await page.get("/v1/changes", limit=RECEIPTS_SHOWN, cursor=page.query("cursor"))
    return page.show(
        "changes.html", found=found, command=page.tickover("changes status"), call=page.curl("GET", "/v1/changes")
    )


async def select(page: Page) -> Response:
    """The first step: an action, and filters of the address."""
    return _selected(page, page.query("action", "cancel"), page.asked(*FILTERS), [])


async def select_ids(page: Page) -> Response:
    """The first step with the rows that were selected in a list."""
    ids = page.listed("ids")
    if not ids:
        raise Refused("No message is selected: tick those that are meant, or use the filters.")
    return _selected(page, page.form.get("action", "cancel"), filters_in(page.fields), ids)


def _selected(
    page: Page, act: str, asked: Mapping[str, str], ids: list[str], problem: str = "", status: int = 200
) -> Response:
    act = act if act in ACTIONS else ACTIONS[0]
    return page.show(
        "change_new.html",
        status,
        act=act,
        actions=ACTIONS,
        written={name: page.form.get(name, "") for name in (*TIMES, "rate", "confirm_all")},
        asked=asked,
        ids=ids,
        steps=STEPS,
        problem=problem,
        names=FILTERS,
        command=page.tickover(f"changes plan {act}", {**asked, **({"ids": "ids.txt"} if ids else {})}),
    )


async def plan(page: Page) -> Response:
    """Plan it: pins what is held now, and counts it. A refusal is told above the form, which keeps what was written."""
    form, asked, ids = page.form, filters_in(page.fields), page.listed("ids")
    filter: dict[str, Any] = dict(asked)
    if "partition" in filter:
        filter["partition"] = whole(filter["partition"])
    if ids:
        filter["ids"] = ids
    act = form.get("action", "")
    # A time with another action is refused, not left out: who wrote one means to reschedule.
    times = {name: text for name in TIMES if (text := form.get(name, "").strip())}
    body: dict[str, Any] = {"action": act, "filter": filter, **times}
    if rate := form.get("rate", "").strip():
        body["rate"] = whole(rate)
    if form.get("confirm_all"):
        body["confirm_all"] = True
    try:
        planned = await page.rest.post("/v1/changes", body)
    except Refusal as refusal:
        page.at = "/changes/new"
        return _selected(page, act, asked, ids, refusal.detail, refusal.status)
    return page.go("/changes/{id}", id=planned["id"])


async def one(page: Page) -> Response:
    """One change: its count to be confirmed, its progress, or its receipts; with `payload` by which key or header,
    which is recorded.
    """
    id = page.request.path_params["id"]
    told = await page.get(path_of(CHANGE, id=id), payload="true" if page.wants_payload else "")
    written: Mapping[str, Any] = {"items": [], "next": None}
    if told["outcomes"]:
        asked = {"limit": RECEIPTS_SHOWN, "cursor": page.query("cursor")}
        written = await page.get(path_of(f"{CHANGE}/receipts", id=id), **asked)
    is_active = told["state"] in ACTIVE
    show = page.show if is_active else page.show_settled
    return show(
        "change.html",
        told=told,
        step=STEP_OF.get(told["state"], 2),
        steps=STEPS,
        is_active=is_active,
        hides=page.hides_words_of(told["filter"]),
        receipts=written,
        done=sum(told["outcomes"].values()),
        command=page.tickover("changes status", {}, id),
        run=page.tickover("changes run", {}, id),
        call=page.curl("GET", CHANGE, {"id": id}),
    )


async def run(page: Page) -> Response:
    """Run it, if the count that was typed is the plan's."""
    id = page.form.get("id", "")
    told = await page.get(path_of(CHANGE, id=id))
    if page.form.get("count", "").replace(",", "").strip() != str(told["planned"]["messages"]):
        raise Refused(f"The count that was typed is not {told['planned']['messages']}. Nothing was changed.")
    await page.rest.post(path_of(f"{CHANGE}/run", id=id), {"token": page.form.get("token", "")})
    return page.go("/changes/{id}", id=id)


async def approve(page: Page) -> Response:
    """Let somebody else's plan be run."""
    id = page.form.get("id", "")
    await page.rest.post(path_of(f"{CHANGE}/approve", id=id))
    return page.go("/changes/{id}", "approved", id=id)


async def abort(page: Page) -> Response:
    """Ask for its end."""
    id = page.form.get("id", "")
    await page.rest.post(path_of(f"{CHANGE}/abort", id=id))
    return page.go("/changes/{id}", "aborting", id=id)


async def receipts(page: Page) -> Response:
    """All receipts as CSV, as far as one file goes."""
    id = page.request.path_params["id"]
    rows, is_whole = await page.collect(path_of(f"{CHANGE}/receipts", id=id), RECEIPTS_MAX, limit=RECEIPTS_PAGE)
    return csv_response(f"receipts-{id}", COLUMNS, rows, is_whole)


SCREENS: Final = (
    screen("/changes", changes),
    screen("/changes/new", select, "write"),
    action("/changes/new", select_ids),
    action("/changes/plan", plan),
    action("/changes/run", run),
    action("/changes/approve", approve),
    action("/changes/abort", abort),
    screen("/changes/{id}", one),
    screen("/changes/{id}/receipts.csv", receipts),
)
