"""Every part of the pages once, with invented figures: only with `api.console: parts`."""

from typing import Final

from starlette.responses import Response

from api.console.page import Page, screen


async def parts(page: Page) -> Response:
    """All macros of `parts.html`."""
    return page.show("all_parts.html", rows=[f"invoice-{88120 + i * 7}" for i in range(5)])


SCREENS: Final = (screen("/parts", parts),)
