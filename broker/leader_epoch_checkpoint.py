"""Leader epochs in a file of their log, which follows every change: they are rare."""

from pathlib import Path
from typing import Final

from broker.checked_file import read_json, write_json
from purgatory.leader_epochs import LeaderEpochCache

FILE: Final = "leader-epoch-checkpoint"


class LeaderEpochCheckpoint(LeaderEpochCache):
    """The cache of `ReplicaLog`, durable."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        for epoch, start_offset in read_json(directory / FILE) or ():
            super().assign(epoch, start_offset)
        self._path = directory / FILE
        self._written = self.entries

    def assign(self, epoch: int, start_offset: int) -> None:
        """As the cache; written when it returns."""
        super().assign(epoch, start_offset)
        self._write()

    def truncate_from_end(self, end_offset: int) -> None:
        """As the cache; written when it returns."""
        super().truncate_from_end(end_offset)
        self._write()

    def truncate_from_start(self, start_offset: int) -> None:
        """As the cache; written when it returns."""
        super().truncate_from_start(start_offset)
        self._write()

    def _write(self) -> None:
        if self.entries != self._written:
            self._written = self.entries
            write_json(self._path, self._written)
