"""The overview and the replicas: what is wrong first, figures after it, charts after these."""

from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, screen

SECONDS: Final = 60  # of the figures of the last minute
REPLICAS_MAX: Final = 500  # of one page
STATES: Final = {"running": "ok", "recovering": "warn", "rebuilding": "warn", "waiting": "warn"}  # all others are bad


async def overview(page: Page) -> Response:
    """The whole group at a glance."""
    told = await page.get("/v1/overview")
    return page.show(
        "overview.html",
        told=told,
        rates={name: told["last_minute"][name] / SECONDS for name in ("emitted", "retried")},
        due=[[one["minute"], one["near"], one["held"] - one["near"]] for one in told["due"]["minutes"]],
        late=[[one["minute"], one["lateness_ms"]["p50"], one["lateness_ms"]["p99"]] for one in told["hour"]["minutes"]],
        left=[
            [one["minute"], *(one[name] for name in ("emitted", "retried", "dead", "quarantined"))]
            for one in told["hour"]["minutes"]
        ],
        is_idle=_is_idle(told),
        cli=page.tickover("overview"),
        curl=page.curl("GET", "/v1/overview"),
    )


async def replicas(page: Page) -> Response:
    """Each process of the group."""
    told = await page.get("/v1/replicas", limit=REPLICAS_MAX, cursor=page.query("cursor"))
    return page.show(
        "replicas.html",
        told=told,
        seconds=SECONDS,
        states=STATES,
        cli=page.tickover("replicas"),
        curl=page.curl("GET", "/v1/replicas"),
    )


def _is_idle(told: dict[str, Any]) -> bool:
    """Nothing is held and nothing was emitted for an hour: somebody has just begun."""
    return not (told["held"]["wheel"] or told["held"]["overflow"] or told["hour"]["emitted"])


SCREENS: Final = (screen("/", overview), screen("/replicas", replicas))
