"""Leader epochs in a file of their log, which follows every change but one: a leader's epoch that has no record yet.

Whoever opens the log forgets such an epoch at its end anyway, and brokers with thousands of partitions begin thousands
of epochs at once. The first record's append writes it.

A log's first epochs are not flushed to disk either, since opening the log finds them again in its batches: it reads
those since the newest snapshot, so they are flushed before there is one.
"""

from pathlib import Path
from typing import Final

from broker.log.checked_file import read_json, write_json
from purgatory.partition.leader_epochs import LeaderEpochCache

FILE: Final = "leader-epoch-checkpoint"


class LeaderEpochCheckpoint(LeaderEpochCache):
    """The cache of `ReplicaLog`, durable."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        for epoch, start_offset in read_json(directory / FILE) or ():
            super().assign(epoch, start_offset)
        self._path = directory / FILE
        self._written = self.entries
        self._is_synced = bool(self._written)  # then what replaces it must not be lost either

    def assign(self, epoch: int, start_offset: int) -> None:
        """As the cache; written when it returns."""
        super().assign(epoch, start_offset)
        self._write()

    def begin(self, epoch: int, log_end_offset: int) -> None:
        """As the cache; not written."""
        super().assign(epoch, log_end_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """As the cache; written when it returns."""
        super().truncate_from_end(end_offset)
        self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """As the cache; written when it returns."""
        super().truncate_from_start(start_offset)
        self._write()

    def sync(self) -> None:
        """Make what is written survive a loss of power. To be called before a snapshot is written."""
        if self._written and not self._is_synced:
            self._is_synced = True
            write_json(self._path, self._written)

    def _write(self) -> None:
        if self.entries != self._written:
            self._written = self.entries
            write_json(self._path, self._written, is_synced=self._is_synced)
