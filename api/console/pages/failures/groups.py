"""Failure groups: letters that failed alike, when they came, and where people stand with them."""

import time
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from api.console.page import Page, Refused, action, screen
from api.console.rest import path_of
from sidecar.operations.dead_letters.groups.group import added_up

PATIENCE_S: Final = 0.2  # after which a page is shown, and goes on reading
READ_FIRST: Final = 3_000  # letters until then, of those that the sidecar hasn't read before
PAGES_MAX: Final = 5  # of the API that one page of the console reads: each has 1,000 groups at most
LEFT: Final = "Console-Left"  # header of a page that goes on reading: how many records were left
STATES: Final = {"new": "warn", "known": "", "resolved": "ok", "back_again": "bad"}
FILTERS: Final = ("topic", "error", "reason", "error_class", "policy")


async def failures(page: Page) -> Response:
    """All groups that fit, the most frequent first."""
    asked, state = page.asked(*FILTERS), page.query("state")
    found = await _groups(page, **asked)
    shown = [group for group in found.groups if not state or group["state"] == state]
    return page.show(
        "failures.html", groups=shown, all=found.groups, found=found, states=STATES,
        asked=page.asked(*FILTERS, "state"), options=asked,
    )  # fmt: skip


async def failure(page: Page) -> Response:
    """One group: its trend, its words, and what can be done with its letters."""
    topic, fingerprint = page.request.path_params["topic"], page.request.path_params["fingerprint"]
    found = await _groups(page, topic=topic, fingerprint=fingerprint)
    if not found.groups:
        return page.show(
            "failure_gone.html", 200 if found.goes_on else 404, topic=topic, fingerprint=fingerprint, found=found
        )
    group = max(found.groups, key=lambda one: one["last_seen"])  # the same failure may have had several reasons
    figures = {name: sum(one[name] for one in found.groups) for name in ("count", "open", "redriven", "discarded")}
    return page.show(
        "failure.html", group=group, figures=figures, found=found,
        states=STATES, first_seen=min(one["first_seen"] for one in found.groups),
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


class Found(NamedTuple):
    """Groups of the letters that were read, when these times begin, and how many records are left.

    `goes_on`: who asks again will find fewer left.
    """

    groups: list[dict[str, Any]]
    frame: dict[str, int]
    remaining: int
    goes_on: bool

    @property
    def minutes(self) -> list[list[int]]:
        """Rows of a chart of the last hour."""
        return self._rows("minutes", 60_000)

    @property
    def hours(self) -> list[list[int]]:
        """Rows of a chart of the last day."""
        return self._rows("hours", 3_600_000)

    def _rows(self, name: str, width_ms: int) -> list[list[int]]:
        """The time, and how many letters came then."""
        begin_ms = self.frame[f"{name}_from"]
        sums = [sum(counts) for counts in zip(*(group["trend"][name] for group in self.groups), strict=True)]
        return [[begin_ms + width_ms * number, count] for number, count in enumerate(sums)]


async def _groups(page: Page, **query: str) -> Found:
    """Groups of as many pages as can be read while somebody waits. The sidecar keeps what it has read, so that who
    asks again finds more.
    """
    began_s = time.monotonic()
    pieces: list[dict[str, Any]] = []
    before = page.request.headers.get(LEFT, "")
    cursor, told, read = "", {}, {} if before else {"read_max": READ_FIRST}
    for _ in range(PAGES_MAX):
        told = await page.get("/v1/dead-letters/groups", trend="true", cursor=cursor, **read, **query)
        pieces += told["items"]
        cursor = told["next"]
        if not cursor or time.monotonic() - began_s > PATIENCE_S:
            break
    groups = sorted(added_up(pieces), key=lambda group: (-group["count"], group["topic"], group["fingerprint"]))
    left = told["remaining"] if cursor else 0
    return Found(groups, told["trend"], left, left > 0 and (not before.isdecimal() or left < int(before)))


SCREENS: Final = (
    screen("/failures", failures),
    screen("/failures/{topic}/{fingerprint}", failure),
    action("/failures/{topic}/{fingerprint}", say),
)
