"""Whether the brokers have transactions, without which schedules, redrives and changes don't work."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from sidecar.operations.jobs.transactional_sender import LOOK_S, NoTransactions, ShipmentFailed, TransactionalSender

LOOK_AGAIN_S: Final = 60.0
EXACTLY_ONCE: Final = "; nor does exactly_once, the guarantee of this process: set guarantee to at_least_once"

log = logging.getLogger("tickover.transactions")


def why_none(client: Mapping[str, Any], group: str) -> str:
    """Reason why there are no transactions; empty: brokers have them, or haven't said within `LOOK_S` seconds.

    The question takes a transactional id, one of those that schedules of the group may use, and sends nothing under it.
    """
    shipping = TransactionalSender(client, f"tickover.{group}.schedules.probe", "")
    try:
        shipping.init(LOOK_S)
    except NoTransactions as error:
        return str(error)
    except ShipmentFailed as error:
        log.debug("nobody says whether there are transactions", extra={"error": str(error)})
    finally:
        shipping.close()
    return ""


class TransactionWatch:
    """Asks at the start, then again while there are none: brokers may be upgraded. For one thread at a time."""

    def __init__(self, look: Callable[[], str], guarantee: str) -> None:
        self._look = look
        self._guarantee = guarantee
        self._is_known = False
        self.warnings: tuple[str, ...] = ()  # for /readyz, from any thread

    def step(self) -> None:
        """Ask, unless it is known that there are."""
        if self._is_known:
            return
        problem = self._look()
        if problem and self._guarantee == "exactly_once":
            problem += EXACTLY_ONCE
        if problem and not self.warnings:
            log.warning("features are missing", extra={"problem": problem})
        self._is_known, self.warnings = not problem, (problem,) if problem else ()
