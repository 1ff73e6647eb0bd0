"""Redrives as a wizard: select, plan, canary, run, result. Its pages are those of plans: a link shows the same."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, Refused, action, screen
from api.console.rest import Refusal, path_of

LIMIT: Final = 50
EXAMPLE: Final = "orders-dlq"  # a topic, in a command
CANARY: Final = 10
STEPS: Final = ("Select", "Plan", "Canary", "Run", "Result")
STEP_OF: Final = {
    "planning": 2, "planned": 2, "canary": 3, "canaried": 3, "running": 4, "stopped": 4, "aborting": 4, "done": 5,
    "aborted": 5,
}  # fmt: skip
KIND_OF: Final = {"stopped": "bad", "aborted": "warn", "aborting": "warn", "done": "ok"}
ACTIVE: Final = ("planning", "canary", "running", "aborting")
STARTS: Final = ("planned", "canaried", "stopped")
FIELDS: Final = {
    "error": "Error, a part of it", "error_class": "Error class", "reason": "Reason", "policy": "Policy",
    "fingerprint": "Fingerprint", "id": "Id", "key_prefix": "Key begins with", "header": "Header, name=value",
}  # fmt: skip
FILTERS: Final = (*FIELDS, "since", "until")
NUMBERS: Final = ("rate", "stop_share")
TEXTS: Final = ("target", "ramp", "watch")
MARKS: Final = ("again", "confirm_all")
FORM: Final = ("topic", "action", "rate", "stop_share", *FILTERS, *TEXTS, *MARKS)


async def redrives(page: Page) -> Response:
    """All plans of the last 30 days."""
    told = await page.get("/v1/redrives", limit=LIMIT, cursor=page.query("cursor"))
    return page.show("redrives.html", told=told, kinds=KIND_OF)


async def new(page: Page) -> Response:
    """The first step: which letters, and how carefully."""
    return _form(page, page.request.query_params)


def _form(page: Page, given: Mapping[str, str], problem: str = "", status: int = 200) -> Response:
    asked = {name: given.get(name, "") for name in FORM}
    topic, discards = asked["topic"] or EXAMPLE, asked["action"] == "discard"
    filter = {name: text for name in FILTERS if (text := asked[name].strip())}
    limits = {name: asked[name] for name in (*TEXTS, "rate", "stop_share")}
    options = {"topic": topic, **filter, **limits, "discard": discards, "again": bool(asked["again"])}
    return page.show(
        "redrive_new.html", status, asked=asked, fields=FIELDS, steps=STEPS, problem=problem,
        command=page.tickover("redrive plan", {**options, "all": not filter}),
        call=page.curl("POST", "/v1/redrives", None, {"topic": topic, "filter": filter}),
    )  # fmt: skip


async def plan(page: Page) -> Response:
    """Make the plan of the form. A refusal is told above the form, which keeps what was written."""
    try:
        return await begin(page, _wanted(page))
    except (Refusal, Refused) as refusal:
        page.at = "/redrives/new"
        return _form(page, page.form, refusal.detail, refusal.status)


def _wanted(page: Page) -> dict[str, Any]:
    """The body of the call. Raises `Refused`."""
    form = {name: value.strip() for name, value in page.form.items() if value.strip()}
    body: dict[str, Any] = {name: form[name] for name in ("topic", "action", *TEXTS) if name in form}
    body["filter"] = {name: form[name] for name in FILTERS if name in form}
    body |= {name: _number(form[name], name) for name in NUMBERS if name in form}
    return body | {name: True for name in MARKS if name in form}


async def begin(page: Page, body: Mapping[str, Any]) -> Response:
    """Plan this, and show the plan."""
    told = await page.rest.post("/v1/redrives", body)
    return page.go("/redrives/{id}", "planned", id=told["id"])


async def redrive(page: Page) -> Response:
    """One plan: what it found, how far it is, and its next step; with `payload` by which key or header, which is
    recorded.
    """
    told = await _plan(page, payload=page.wants_payload)
    state, hides = told["state"], page.hides_words_of(told["filter"])
    show = page.show if state in ACTIVE else page.show_settled
    return show(
        "redrive.html", plan=told, steps=STEPS, step=STEP_OF[state], kind=KIND_OF.get(state, ""), left=_left(told),
        is_active=state in ACTIVE, starts=_may_start(told), canary=min(CANARY, _left(told)),
        may_abort=state in (*ACTIVE, *STARTS) and state != "aborting", command=_command(page, told), hides=hides,
    )  # fmt: skip


async def canary(page: Page) -> Response:
    """Send a few."""
    body = {"count": _number(page.form.get("letters", ""), "letters")}
    return await _go_on(page, "canary", body)


async def run(page: Page) -> Response:
    """Send the rest, once its number was typed."""
    left = _left(await _plan(page))
    if page.form.get("count", "").strip() != str(left):
        raise Refused(f"Type {left} to go on: so many letters are left.")
    return await _go_on(page, "run", None)


async def approve(page: Page) -> Response:
    """Let it begin, as somebody other than who planned it."""
    return await _go_on(page, "approve", None, "approved")


async def abort(page: Page) -> Response:
    """Ask for its end."""
    return await _go_on(page, "abort", None, "ended")


async def _go_on(page: Page, step: str, body: object, done: str = "begun") -> Response:
    id = str(page.request.path_params["id"])
    await page.rest.post(path_of("/v1/redrives/{id}/{step}", id=id, step=step), body)
    return page.go("/redrives/{id}", done, id=id)


async def _plan(page: Page, payload: bool = False) -> dict[str, Any]:
    path = path_of("/v1/redrives/{id}", id=str(page.request.path_params["id"]))
    told: dict[str, Any] = await page.get(path, payload="true" if payload else "")
    return told


def _left(told: Mapping[str, Any]) -> int:
    """Letters that the plan counted, and that were neither sent, discarded nor passed over since."""
    passed: int = sum(told["skipped"].values()) - sum(told["planned"]["skipped"].values())
    counted: int = told["planned"]["letters"]
    return max(counted - int(told["sent"]) - int(told["discarded"]) - max(passed, 0), 0)


def _may_start(told: Mapping[str, Any]) -> bool:
    return told["state"] in STARTS and _left(told) > 0 and not told["waits_for"]


def _command(page: Page, told: Mapping[str, Any]) -> str:
    """The plan as a command that would make it again."""
    limits = told["limits"]
    options: dict[str, object] = {"topic": told["topic"], "target": told["target"]}
    options |= {name: told["filter"].get(name) for name in FILTERS}
    options |= {"letter": told["letters"], "discard": told["action"] == "discard", "again": told["again"]}
    if told["edit"] is not None:
        options["edit"] = "edit.json"
    if not told["filter"] and not told["letters"]:
        options["all"] = True
    options |= {"rate": str(limits["rate"]), "ramp": f"{limits['ramp_ms']}ms", "watch": f"{limits['watch_ms']}ms"}
    return page.tickover("redrive plan", {**options, "stop_share": str(limits["stop_share"])})


def _number(text: str, name: str) -> int | float:
    try:
        return float(text) if name == "stop_share" else int(text)
    except ValueError:
        raise Refused(f"{name.replace('_', ' ')} must be a number.") from None


SCREENS: Final = (
    screen("/redrives", redrives),
    action("/redrives", plan),
    screen("/redrives/new", new, role="write"),
    screen("/redrives/{id}", redrive),
    action("/redrives/{id}/canary", canary),
    action("/redrives/{id}/run", run),
    action("/redrives/{id}/approve", approve),
    action("/redrives/{id}/abort", abort),
)
