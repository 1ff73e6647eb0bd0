"""State of a log beside its batches: producers and transactions, in snapshots, and small numbers, in a checkpoint.

A snapshot holds everything about the batches below its offset, so a log that is opened, or truncated, reads only the
headers from the nearest snapshot on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.log.checked_file import read_json, write_json
from broker.log.leader_epoch_checkpoint import LeaderEpochCheckpoint
from broker.log.producer_state import ProducerState
from broker.log.segment import LogSegment
from broker.records.control_records import EndMarker, read_end_marker
from broker.records.record_batch import Batch, BatchHeader
from purgatory.errors import ApiError
from purgatory.partition.replica_log import BatchInfo
from purgatory.partition.transaction_offsets import EndedTransaction, TransactionOffsets

SNAPSHOT_SUFFIX: Final = ".snapshot"
CHECKPOINT: Final = "log-checkpoint"
SNAPSHOTS_KEPT: Final = 3
CHECKPOINT_VALUES: Final = ("log_start_offset", "recovery_point", "cleaned_to", "high_watermark")
NOTHING: Final = dict.fromkeys(CHECKPOINT_VALUES, 0)


@dataclass(slots=True)
class Checkpoint:
    """Where the log starts; below which offset it is known to be on disk; how far it was compacted; its high
    watermark when last written."""

    log_start_offset: int = 0
    recovery_point: int = 0
    cleaned_to: int = 0
    high_watermark: int = 0
    _written: dict[str, int] | None = field(default=None, repr=False, compare=False)

    @property
    def values(self) -> dict[str, int]:
        """As they are written."""
        return {name: getattr(self, name) for name in CHECKPOINT_VALUES}

    def write(self, directory: Path) -> None:
        """Durable when this returns. What is written already costs nothing, and of a log without records nothing is."""
        values = self.values
        if values != (self._written or NOTHING):
            write_json(directory / CHECKPOINT, values)
            self._written = values

    def start_at(self, offset: int) -> None:
        """Of a log that has nothing, and begins there."""
        self.log_start_offset = self.recovery_point = self.cleaned_to = self.high_watermark = offset

    @classmethod
    def read(cls, directory: Path) -> "Checkpoint":
        """Read the checkpoint that was written last; a new one for a new log."""
        found = read_json(directory / CHECKPOINT)
        return cls() if found is None else cls(**found, _written=found)


class LogState:
    """Producers, leader epochs and transactions of one log. Epochs and transactions are those of its `ReplicaLog`,
    which tells them of each append; here they are written down and built again."""

    def __init__(self, directory: Path) -> None:
        self.producers = ProducerState()
        self.epochs = LeaderEpochCheckpoint(directory)
        self.transactions = TransactionOffsets()
        self._directory = directory

    def take(self, header: BatchHeader, marker: EndMarker | None) -> BatchInfo:
        """Take in a batch at the end of the log. Returns what replication has to know of it."""
        self.producers.update(header, marker)
        ends = None if marker is None else ("abort" if marker.is_aborted else "commit")
        is_transactional = header.is_transactional and not header.is_control
        return BatchInfo(
            header.base_offset,
            header.last_offset,
            header.partition_leader_epoch,
            header.producer_id,
            is_transactional,
            ends,
        )

    def snapshot(self, offset: int) -> None:
        """Write down what is known of all batches below `offset`, and forget the oldest snapshots. Whoever has it
        doesn't read these batches: their epochs are on disk before."""
        self.epochs.sync()
        transactions = self.transactions
        aborted = [[getattr(ended, name) for name in EndedTransaction.__slots__] for ended in transactions.aborted]
        content = {
            "producers": self.producers.to_rows(),
            "ongoing": list(transactions.ongoing.items()),
            "aborted": aborted,
        }
        write_json(self._path(offset), content, is_synced=False)
        for old in self._offsets()[:-SNAPSHOTS_KEPT]:
            self._path(old).unlink(missing_ok=True)

    def rebuild(self, segments: Iterable[LogSegment], end: int) -> list[BatchInfo]:
        """Begin again for a log that ends at `end`. Of the batches since the snapshot the first of each epoch."""
        start = self._restore(end)
        told: list[BatchInfo] = []
        epoch = None
        for segment in segments:
            if segment.next_offset <= start:
                continue
            for batch in segment.walk():
                if batch.header.base_offset < start:
                    continue
                info = self.take(batch.header, marker_of(segment, batch))
                if info.ends is not None:
                    self.transactions.add_marker(info.producer_id, info.last_offset, is_aborted=info.ends == "abort")
                elif info.is_transactional:
                    self.transactions.add_records(info.producer_id, info.first_offset)
                if info.leader_epoch != epoch:
                    told.append(info)
                    epoch = info.leader_epoch
        return told

    def forget_snapshots(self, above: int) -> None:
        """The log ends there: snapshots above it were of batches that are gone."""
        for offset in self._offsets():
            if offset > above:
                self._path(offset).unlink()

    def _restore(self, end: int) -> int:
        """From the newest snapshot that is whole. The offset from which on batches are to be read."""
        self.forget_snapshots(end)
        for offset in reversed(self._offsets()):
            found = read_json(self._path(offset))
            if found is not None:
                self.producers.restore(found["producers"])
                self.transactions.restore(dict(found["ongoing"]), (EndedTransaction(*row) for row in found["aborted"]))
                return offset
        self.producers.restore([])
        self.transactions.restore({}, [])
        return 0

    def _offsets(self) -> list[int]:
        return sorted(int(path.stem) for path in self._directory.glob(f"*{SNAPSHOT_SUFFIX}"))

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def marker_of(segment: LogSegment, batch: Batch) -> EndMarker | None:
    """The end marker that a batch holds, if it is one. Unreadable ones end nothing."""
    header, position = batch
    if not header.is_control:
        return None
    try:
        return read_end_marker(header, segment.file.read(position, header.size))
    except ApiError:
        return None
