"""Plan of a rebuild, the checksum that it keeps, and its result. `rebuild.py` does the work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.model.log_cuts import NO_CUTS, Cuts
from sidecar.model.ports import SourceLog, SourceRecord
from sidecar.model.record import Position, TopicPartition

DIGEST_MASK: Final = (1 << 64) - 1


def fetch(source: SourceLog, lane: TopicPartition, cuts: Cuts, offsets: Sequence[int]) -> dict[int, SourceRecord]:
    """`SourceLog.fetch` by the lane's own offsets. What a log lost that was cut back is left out."""
    if not cuts:
        return source.fetch(lane, offsets)
    own = {cuts.log_offset(offset): offset for offset in offsets if not cuts.is_lost(offset)}
    return {own[at]: record for at, record in source.fetch(lane, sorted(own)).items()} if own else {}


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """A lane as it was when its loss was found; all that the rebuild needs to know of it."""

    lane: TopicPartition
    topic_id: str
    hw: int  # see `Loss`
    acknowledged: int
    watermark: Position
    cursor: Position
    skip: frozenset[int]  # settled ahead of the watermark, or in the wheel with their offsets open
    held: int  # records beyond the cursor that the overflow should have
    recovery_pointer: int
    rebuild_pointer: int
    block_offset: int
    first_change: int = 0  # see `SourcePartition`
    cuts: Cuts = NO_CUTS


@dataclass(slots=True)
class RebuildChecksum:
    """Records found and written; the digest is a sum, so that order doesn't matter."""

    records: int = 0
    beyond: int = 0  # behind the cursor and not in `skip`: in the overflow's care alone
    digest: int = 0

    def add(self, places: Sequence[tuple[int, int]], plan: RebuildPlan) -> None:
        """Count these (due, offset)."""
        cursor, skip = plan.cursor, plan.skip
        self.records += len(places)
        if skip or min(places, default=cursor) <= cursor:
            self.beyond += sum(place > cursor and place[1] not in skip for place in places)
        else:
            self.beyond += len(places)
        self.digest = (self.digest + sum(map(hash, places))) & DIGEST_MASK  # of integers: the same in each process

    def agrees(self, other: "RebuildChecksum") -> bool:
        return self.records == other.records and self.digest == other.digest


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """The outcome. `held`: records beyond the cursor that the overflow has now."""

    held: int
    written: int
    lost_to_source: int
    lost_to_ledger: int
    first_lost_offset: int  # -1: none
    blocks_missing: int  # ledger offsets below its start
    reconciled: bool
