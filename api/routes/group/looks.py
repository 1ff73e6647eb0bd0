"""Looks at the whole group, shared: however many ask at a time, the replicas are asked once a second."""

import asyncio
from collections.abc import Callable
from typing import Final

from api.lookup import LookUp
from api.ports import Group
from sidecar.overview.seen import Seen

KEPT_S: Final = 1.0


class Overviews:
    """For one event loop. A look that is under way goes on when who asked for it is gone."""

    def __init__(self, group: Group, lookup: LookUp, monotonic_s: Callable[[], float]) -> None:
        self._group = group
        self._lookup = lookup
        self._monotonic_s = monotonic_s
        self._asked: asyncio.Future[Seen] | None = None
        self._asked_s = 0.0

    async def seen(self) -> Seen:
        """The group as it is, or was `KEPT_S` ago. Raises LookUpUnavailable when too many look-ups are under way."""
        now_s = self._monotonic_s()
        if self._asked is None or (self._asked.done() and (now_s - self._asked_s >= KEPT_S or self._has_failed())):
            self._asked_s = now_s
            self._asked = asyncio.ensure_future(self._lookup.run(self._group.look))
        return await asyncio.shield(self._asked)

    def _has_failed(self) -> bool:
        return self._asked is not None and (self._asked.cancelled() or self._asked.exception() is not None)
