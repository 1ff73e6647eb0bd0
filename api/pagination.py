"""Pages of lists: a cursor is opaque to callers and names the last item they have seen."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query

from api.problems import Problem, unprocessable

PAGE_MAX: Final = 500
PAGE_DEFAULT: Final = 100
CURSOR_LENGTH_MAX: Final = 2_048

Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
Cursor = Annotated[str | None, Query(max_length=CURSOR_LENGTH_MAX)]


def page(
    items: Sequence[Item], key: Callable[[Item], str], limit: int, cursor: str | None
) -> tuple[Sequence[Item], str | None]:
    """The next `limit` of `items` (sorted by `key`), and the cursor of what follows. Raises `Problem`."""
    after = None if cursor is None else decode(cursor)
    rest = items if after is None else [item for item in items if key(item) > after]
    taken = rest[:limit]
    return taken, encode(key(taken[-1])) if len(rest) > limit else None


def encode(key: str) -> str:
    """The cursor of a key."""
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def decode(cursor: str) -> str:
    """The key of a cursor. Raises `Problem`."""
    try:
        key = base64.b64decode(cursor + "=" * (-len(cursor) % 4), "-_", validate=True).decode()
    except (binascii.Error, ValueError):
        key = ""
    if not key:
        raise unknown_cursor()
    return key


def unknown_cursor() -> Problem:
    """Refusal of a cursor that means nothing."""
    return unprocessable("invalid-cursor", "The cursor is not one that this API gave.")
