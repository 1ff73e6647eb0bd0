"""Targets and what keeps messages from them; and everything that is paused: policies, sources, targets, schedules."""

from typing import Final

from starlette.responses import Response

from api.console.page import Page, action, screen
from api.console.rest import Refusal, path_of

LIMIT: Final = 100
PAUSE: Final = "/v1/pauses/{kind}/{name}"
CLOSE: Final = "/v1/targets/{name}/close-breaker"
OPEN: Final = "/v1/targets/{name}/open-breaker"
KINDS: Final = ("target", "policy", "source", "schedule")


async def targets(page: Page) -> Response:
    """All of them, and above them what is paused."""
    return await _show(page)


async def _show(page: Page, problem: str = "", status: int = 200) -> Response:
    listed = await page.get("/v1/targets", limit=LIMIT, cursor=page.query("cursor"))
    paused = await page.get("/v1/pauses", limit=LIMIT)
    return page.show(
        "targets.html", status, problem=problem, form={"name": page.query("name"), **page.form}, items=listed["items"],
        next=listed["next"], replica=listed["replica"],
        pauses=paused["items"], more=paused["next"] is not None, kinds=KINDS,
    )  # fmt: skip


async def pause(page: Page) -> Response:
    """Pause something, until somebody resumes it or until a time. A refusal is told beside the form, which keeps what
    was written.
    """
    path = path_of(PAUSE, kind=page.form.get("kind", ""), name=page.form.get("name", "").strip())
    until = page.form.get("until", "").strip()
    body = {"reason": page.form.get("reason", ""), **({"until": until} if until else {})}
    try:
        await page.rest.call("PUT", path, None, body)
    except Refusal as refusal:
        page.at = "/targets"
        return await _show(page, refusal.detail, refusal.status)
    return page.go("/targets", "paused")


async def resume(page: Page) -> Response:
    """Let it go on."""
    path = path_of(PAUSE, kind=page.form.get("kind", ""), name=page.form.get("name", ""))
    await page.rest.call("DELETE", path)
    return page.go("/targets", "resumed")


async def close_breaker(page: Page) -> Response:
    """Let retries to a target be tried now."""
    await page.rest.post(path_of(CLOSE, name=page.form.get("name", "")))
    return page.go("/targets", "breaker-closed")


async def open_breaker(page: Page) -> Response:
    """Hold up retries to a target until its breaker tries it by itself."""
    await page.rest.post(path_of(OPEN, name=page.form.get("name", "")))
    return page.go("/targets", "breaker-opened")


SCREENS: Final = (
    screen("/targets", targets),
    action("/targets/pause", pause, "admin"),
    action("/targets/resume", resume, "admin"),
    action("/targets/close-breaker", close_breaker, "admin"),
    action("/targets/open-breaker", open_breaker, "admin"),
)
