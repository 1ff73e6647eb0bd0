"""The forecast: what is due by minute, and where a peak doesn't fit into a policy's rate."""

from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, screen

MINUTES: Final = "60"
NOTHING: Final[dict[str, Any]] = {"items": [], "next": None}


async def forecast(page: Page) -> Response:
    """Held messages by when they are due."""
    asked = page.asked("source")
    minutes = page.query("minutes") or MINUTES
    told = await page.get("/v1/forecast", minutes=minutes, **asked)
    capacity, why = await page.get_if_any("/v1/capacity", NOTHING, minutes=minutes, cursor=page.query("cursor"))
    return page.show(
        "forecast.html",
        asked=asked,
        minutes=minutes,
        told=told,
        due=_rows(told["items"]),
        capacity=capacity,
        why=why,
        rows=[_rows(one["minutes"]) for one in capacity["items"]],
        cli=page.tickover("forecast", {"minutes": minutes, **asked}),
        curl=page.curl("GET", "/v1/forecast", {"minutes": minutes, **asked}),
        capacity_cli=page.tickover("capacity", {"minutes": minutes}),
        capacity_curl=page.curl("GET", "/v1/capacity", {"minutes": minutes}),
    )


def _rows(items: list[dict[str, Any]]) -> list[list[int]]:
    return [[one["minute"], one["held"]] for one in items]


SCREENS: Final = (screen("/forecast", forecast),)
