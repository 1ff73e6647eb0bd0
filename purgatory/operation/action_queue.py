"""Checks that must not run where they arise: an append holds locks, and so do operations that append."""

import logging
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class DelayedActionQueue:
    """Closures of all requests of a broker; whoever has handled a request drains them, its own or others'.

    An operation whose `on_complete` appends must drain from `on_expiration` too: expiry comes from the timer, behind
    which nobody drains.
    """

    def __init__(self) -> None:
        self._actions: deque[Callable[[], object]] = deque()

    def add(self, action: Callable[[], object]) -> None:
        """Leave an action for later."""
        self._actions.append(action)

    def try_complete_actions(self) -> None:
        """Run what is queued now; what these add is left for the next call. An action's error is logged and stops
        neither the others nor the caller, whose request it may not be."""
        for _ in range(len(self._actions)):
            try:
                action = self._actions.popleft()
            except IndexError:  # another thread took it
                return
            try:
                action()
            except Exception:  # noqa: BLE001 - whatever it is, the others go on
                _log.exception("a delayed action failed")
