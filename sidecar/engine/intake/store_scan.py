"""Reading once what the overflow has of a lane, page by page, beside everything else that the engine does."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from policies.headers import OFFSET_MAX
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.storage.rebuild_worker import RebuildWorker
from sidecar.model.ports import is_over
from sidecar.model.record import Held, Position
from sidecar.overflow.interface import OverflowLoss, OverflowUnavailable, Promotion

log = logging.getLogger(__name__)

SCAN_RECORDS: Final = 10_000  # a page
RETRY_MS: Final = 500


class OverflowScan:
    """One lane's, from its cursor on. What is put there meanwhile may come, too; what is promoted meanwhile doesn't:
    it may be settled, and gone, before it is read here.
    """

    def __init__(self, lane: SourcePartition) -> None:
        self.after: Position | None = lane.promotion.cursor if lane.overflow_used else None  # None: all is read
        self._lane = lane
        self._page: Future[Promotion] | None = None
        self._at_ms = 0  # not before

    def step(self, rebuild: RebuildWorker, now_ms: int) -> Sequence[Held]:
        """The next page, once it is there; it has nothing that was struck or settled before it came."""
        lane = self._lane
        if self.after is None:
            return ()
        if self._page is None:
            self.after = max(self.after, lane.promotion.cursor)
            if lane.loss is None and is_over(now_ms, self._at_ms, RETRY_MS):
                self._page = rebuild.read(lane.id, self.after, SCAN_RECORDS, lane.acknowledged)
            return ()
        if not self._page.done():
            return ()
        done, self._page = self._page, None
        try:
            page = done.result()
        except OverflowLoss as error:
            lane.note_loss(error.hw, str(error))
            return ()
        except OverflowUnavailable as error:
            self._at_ms = now_ms + RETRY_MS
            log.warning(
                "what Redis holds of a partition isn't known yet", extra={"lane": str(lane.id), "problem": str(error)}
            )
            return ()
        self.after = None if page.cursor.offset == OFFSET_MAX else page.cursor
        # What is behind it is passed over: see `SourcePartition.promoted`.
        known_until, promotion = lane.offsets.base + len(lane.offsets.done), lane.promotion
        return [
            held
            for held in page.records
            if held.offset not in promotion.skip and held.position > promotion.cursor and held.offset < known_until
        ]
