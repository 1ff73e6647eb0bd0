"""Screens about the sidecar itself: who did what, and settings and doctor."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, screen

FILTERS: Final = ("caller", "action", "outcome", "since", "until")
FIELDS: Final = ("actor", "action", "method", "path", "outcome", "problem", "client", "unrecorded")
OUTCOMES: Final = {"done": "ok", "refused": "warn", "failed": "bad", "unknown": "bad"}
KINDS: Final = {"ok": "ok", "warning": "warn", "error": "bad"}


async def audit(page: Page) -> Response:
    """Records of the audit topic, refusals included, the newest first."""
    asked = page.asked(*FILTERS)
    told = await page.get("/v1/audit", **asked, limit=50, cursor=page.query("cursor"))
    return page.show(
        "audit.html",
        asked=asked,
        told=told,
        items=[_whole(item) for item in told["items"]],
        kinds=OUTCOMES,
        cli=page.tickover("audit", asked),
        curl=page.curl("GET", "/v1/audit", asked),
    )


def _whole(item: Mapping[str, Any]) -> dict[str, Any]:
    """A record with all its fields: one of an older version, or of somebody else, may lack some."""
    facts = {name: item[name] if isinstance(item.get(name), dict) else {} for name in ("subject", "notes")}
    return {**dict.fromkeys(FIELDS), **item, **facts}


async def settings(page: Page) -> Response:
    """Findings of the doctor, then the settings in force, which admins see."""
    found, problem = await page.get_if_any("/v1/doctor", {"items": [], "at": None, "errors": 0, "warnings": 0})
    listed = (await page.get("/v1/settings"))["items"] if page.may("admin") else []
    has_all = page.query("all") == "true"
    shown = [item for item in listed if has_all or item["from"] != "default"]
    return page.show(
        "settings.html",
        found=found,
        problem=problem,
        wrong=[item for item in found["items"] if item["severity"] != "ok"],
        kinds=KINDS,
        shown=shown,
        left=len(listed) - len(shown),
        has_all=has_all,
    )


SCREENS: Final = (screen("/audit", audit, role="admin"), screen("/settings", settings))
