"""The search box: an id, a place in Kafka, or words; it goes to the page that has it."""

import re
from typing import Final

from starlette.responses import Response

from api.console.page import Page, screen
from api.console.pages.messages import SEVERAL
from api.console.rest import Refusal, path_of

PLACE: Final = re.compile(r"([A-Za-z0-9._-]{1,249})/(\d{1,10})/(\d{1,19})")


async def search(page: Page) -> Response:
    """A message of this id; else a place; else held messages whose key begins so."""
    text = page.query("q").strip()
    if not text:
        return page.go("/messages")
    if (place := PLACE.fullmatch(text)) is not None:
        return page.go("/messages", source=place[1], partition=place[2], offset=place[3])
    try:
        await page.get(path_of("/v1/messages/{id}", id=text))
    except Refusal as refusal:
        if refusal.is_of(SEVERAL):
            return page.go("/messages", id=text)
        if refusal.status != 404:  # nobody can say now whether it is there
            raise
        return page.show("not_found.html", 404, text=text, detail=refusal.detail)
    return page.go("/messages/{id}", id=text)


SCREENS: Final = (screen("/search", search),)
