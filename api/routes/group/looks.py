"""Looks at the whole group, shared: however many ask at a time, the replicas are asked once a second."""

import asyncio
from collections.abc import Callable
from typing import Final

from api.lookup import LookUp
from api.ports import Group
from sidecar.overview.seen import Seen

KEPT_S: Final = 1.0
KNOWN_S: Final = 30.0  # what is older is told nobody who doesn't wait


class Overviews:
    """For one event loop. A look that is under way goes on when who asked for it is gone."""

    def __init__(self, group: Group, lookup: LookUp, monotonic_s: Callable[[], float]) -> None:
        self._group = group
        self._lookup = lookup
        self._monotonic_s = monotonic_s
        self._asked: asyncio.Future[Seen] | None = None
        self._asked_s = 0.0
        self._last: Seen | None = None
        self._last_s = 0.0

    async def seen(self) -> Seen:
        """The group as it is, or was `KEPT_S` ago. Raises LookUpUnavailable when too many look-ups are under way."""
        return await asyncio.shield(self._look())

    def known(self) -> Seen | None:
        """The last look, without waiting: none where it is older than `KNOWN_S`. Another begins where one is due."""
        self._look()
        return self._last if self._monotonic_s() - self._last_s < KNOWN_S else None

    def _look(self) -> asyncio.Future[Seen]:
        now_s = self._monotonic_s()
        if self._asked is None or (self._asked.done() and (now_s - self._asked_s >= KEPT_S or self._has_failed())):
            self._asked_s = now_s
            self._asked = asyncio.ensure_future(self._lookup.run(self._group.look))
            self._asked.add_done_callback(self._note)
        return self._asked

    def _note(self, asked: asyncio.Future[Seen]) -> None:
        if not asked.cancelled() and asked.exception() is None:
            self._last, self._last_s = asked.result(), self._monotonic_s()

    def _has_failed(self) -> bool:
        return self._asked is not None and (self._asked.cancelled() or self._asked.exception() is not None)
