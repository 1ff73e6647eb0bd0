"""Failure groups: letters that failed alike, when they came, and where people stand with them."""

from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, Refused, action, screen
from api.console.rest import path_of
from sidecar.operations.dead_letters.groups import added_up

PAGES_MAX: Final = 5  # of the API that one page of the console reads
STATES: Final = {"new": "warn", "known": "", "resolved": "ok", "back_again": "bad"}
FILTERS: Final = ("topic", "error", "reason", "error_class", "policy")


async def failures(page: Page) -> Response:
    """All groups that fit, the most frequent first."""
    asked, state = page.asked(*FILTERS), page.query("state")
    groups, frame, remaining = await _groups(page, **asked)
    shown = [group for group in groups if not state or group["state"] == state]
    return page.show(
        "failures.html", groups=shown, all=groups, minutes=_minutes(groups, frame), remaining=remaining, states=STATES,
        asked=page.asked(*FILTERS, "state"), options=asked,
    )  # fmt: skip


async def failure(page: Page) -> Response:
    """One group: its trend, its words, and what can be done with its letters."""
    topic, fingerprint = page.request.path_params["topic"], page.request.path_params["fingerprint"]
    groups, frame, remaining = await _groups(page, topic=topic, fingerprint=fingerprint)
    if not groups:
        return page.show("failure_gone.html", 404, topic=topic, fingerprint=fingerprint, remaining=remaining)
    group = max(groups, key=lambda one: one["last_seen"])  # the same failure may have had several reasons
    figures = {name: sum(one[name] for one in groups) for name in ("count", "open", "redriven", "discarded")}
    return page.show(
        "failure.html", group=group, figures=figures, minutes=_minutes(groups, frame), hours=_hours(groups, frame),
        remaining=remaining, states=STATES, first_seen=min(one["first_seen"] for one in groups),
    )  # fmt: skip


async def say(page: Page) -> Response:
    """State and note of a group."""
    steps = {name: str(page.request.path_params[name]) for name in ("topic", "fingerprint")}
    state, note = page.form.get("state", ""), page.form.get("note", "").strip()
    if state not in STATES:
        raise Refused("Say new, known or resolved.")
    path = path_of("/v1/dead-letters/{topic}/groups/{fingerprint}", **steps)
    await page.rest.call("PUT", path, None, {"state": state, "note": note})
    return page.go("/failures/{topic}/{fingerprint}", "said", **steps)


async def _groups(page: Page, **query: str) -> tuple[list[dict[str, Any]], dict[str, int], int]:
    """Groups of as many pages as one look reads, their times, and how many records are left."""
    pieces: list[dict[str, Any]] = []
    cursor, told = "", {}
    for _ in range(PAGES_MAX):
        told = await page.get("/v1/dead-letters/groups", trend="true", cursor=cursor, **query)
        pieces += told["items"]
        cursor = told["next"]
        if not cursor:
            break
    groups = sorted(added_up(pieces), key=lambda group: (-group["count"], group["topic"], group["fingerprint"]))
    return groups, told["trend"], told["remaining"] if cursor else 0


def _minutes(groups: list[dict[str, Any]], frame: dict[str, int]) -> list[list[int]]:
    return _rows(groups, "minutes", frame["minutes_from"], 60_000)


def _hours(groups: list[dict[str, Any]], frame: dict[str, int]) -> list[list[int]]:
    return _rows(groups, "hours", frame["hours_from"], 3_600_000)


def _rows(groups: list[dict[str, Any]], name: str, begin_ms: int, width_ms: int) -> list[list[int]]:
    """Rows of a chart: the time, and how many letters came then."""
    sums = [sum(counts) for counts in zip(*(group["trend"][name] for group in groups), strict=True)]
    return [[begin_ms + width_ms * number, count] for number, count in enumerate(sums)]


SCREENS: Final = (
    screen("/failures", failures),
    screen("/failures/{topic}/{fingerprint}", failure),
    action("/failures/{topic}/{fingerprint}", say),
)
