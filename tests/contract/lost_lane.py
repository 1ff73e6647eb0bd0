"""A lane whose change blocks are in a ledger and whose payloads are in a source, in memory: for rebuilds by hand."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.engine.commit.block_builder import entry_columns
from sidecar.engine.partition.change_block import Loss
from sidecar.engine.storage.rebuild import LaneRebuild, RebuildPlan, Sources
from sidecar.ledger.block import NOTHING_SETTLED, STRUCK, Block, Settled, encode
from sidecar.ledger.topic import LedgerRecord, LedgerTopic
from sidecar.model.ports import SourceRecord
from sidecar.model.record import Held, Outcome, Position, Tombstone, TopicPartition
from sidecar.overflow.interface import Change, RebuildStore
from tests.contract.overflow_records import LANE
from tests.simulation.fake_kafka import CREATE_TIME, FakeRecord

BEFORE_ALL = Position(-1, -1)


@dataclass(slots=True)
class LostLane:
    """`blocks[n - 1]` are the records of change block n. It is the ledger's log and the source's at once."""

    lane: TopicPartition = LANE
    blocks: list[list[Held]] = field(default_factory=list)
    strikes: list[list[Tombstone]] = field(default_factory=list)
    struck_by: dict[int, int] = field(default_factory=dict)  # offset -> block
    _encoded: list[bytes] = field(default_factory=list)
    _records: dict[int, SourceRecord] = field(default_factory=dict)

    def add(self, records: Sequence[Held], leaving: Sequence[Held] = ()) -> None:
        """One more block; it strikes out those of earlier ones that are `leaving`."""
        records = sorted(records, key=lambda held: held.offset)
        self.blocks.append(records)
        number = len(self.blocks)
        topic, partition = self.lane
        entries = entry_columns(records)
        self.strikes.append([Tombstone(held.position, None) for held in leaving])
        self.struck_by |= {held.offset: number for held in leaving}
        settled = _cancelled(leaving)
        self._encoded.append(
            encode(Block("g", topic, "", partition, 0, 0, BEFORE_ALL, 0, 0, (), number, settled, entries))
        )
        for held in records:
            place = (topic, partition, held.offset)
            self._records[held.offset] = FakeRecord(
                place, (CREATE_TIME, 0), (held.key, held.value), [*held.headers, *held.trailer]
            )  # fmt: skip

    def changes(self, first: int, last: int) -> list[Change]:
        """Blocks first to last as they are applied."""
        return [
            Change(self.lane, number, self.blocks[number - 1], self.strikes[number - 1])
            for number in range(first, last + 1)
        ]

    def held(self, watermark: Position, last: int) -> list[Held]:
        """Records of blocks 1 to `last` beyond the watermark, in order, that no block of the ledger has struck out."""
        records = [held for block in self.blocks[:last] for held in block if held.position > watermark]
        return sorted((held for held in records if held.offset not in self.struck_by), key=lambda held: held.position)

    def rebuild(self, store: RebuildStore, hw: int, acknowledged: int, watermark: Position) -> LaneRebuild:
        """A rebuild that is ready to begin."""
        held = len(self.held(watermark, acknowledged))
        plan = RebuildPlan(
            self.lane, "", hw, acknowledged, watermark, watermark, frozenset(), held,
            recovery_pointer=len(self.blocks), rebuild_pointer=0, block_offset=len(self.blocks) - 1,
        )  # fmt: skip
        return LaneRebuild(plan, Sources(LedgerTopic("ledger", 1, "g"), self, self, store), Loss(hw, ""))

    # --- the ledger's log -----------------------------------------------------------------------------------------

    def bounds(self, partition: int) -> tuple[int, int]:
        return 0, len(self._encoded)

    def read(self, starts: Mapping[int, int], at_least: Mapping[int, int]) -> Iterator[LedgerRecord]:
        topic, partition = self.lane
        for offset in range(starts[0], len(self._encoded)):
            yield LedgerRecord(0, offset, f"{topic}/{partition}".encode(), self._encoded[offset])

    # --- the source's log -----------------------------------------------------------------------------------------

    def fetch(self, lane: TopicPartition, offsets: Sequence[int]) -> dict[int, SourceRecord]:
        return {offset: self._records[offset] for offset in offsets if offset in self._records}

    def release(self) -> None:
        """Nothing is held."""


def _cancelled(leaving: Sequence[Held]) -> Settled:
    if not leaving:
        return NOTHING_SETTLED
    rows = sorted(leaving, key=lambda held: held.offset)
    count = len(rows)
    return Settled(
        [held.offset for held in rows], [held.due_ms for held in rows], [Outcome.CANCELLED] * count, [STRUCK] * count,
        ["p@1"] * count, [""] * count, [0] * count, {}, {},
    )  # fmt: skip
