"""The end of intake: a record that is decided goes into its partition's wheel, or on its way to the overflow."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.intake.key_order import Ordering
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.record import Held

_due_ms: Final = itemgetter(Held._fields.index("due_ms"))


class Holding:
    """Owned by the engine's thread."""

    def __init__(self, emitter: Emitter, ordering: Ordering) -> None:
        self._emitter = emitter
        self._ordering = ordering

    def hold_all(self, lane: SourcePartition, records: Sequence[Held], near_ms: int) -> None:
        """Hold records as they were read: those due until `near_ms` (epoch milliseconds) in the wheel, others in the
        overflow.
        """
        near = records
        if records and max(map(_due_ms, records)) > near_ms:
            near = [held for held in records if held.due_ms <= near_ms]
            lane.put([held for held in records if held.due_ms > near_ms])
        if near:
            self._emitter.to_wheel(lane, near)

    def hold(self, lane: SourcePartition, held: Held) -> None:
        """Hold one record that had to wait for something before, or that others may wait for."""
        if lane.order is not None and self._ordering.holds_up(lane, held):
            return
        if held.due_ms <= lane.promotion.reach.due_ms:
            self._emitter.to_wheel(lane, [held])
        else:
            lane.put([held])
            lane.ids.know((held,))
