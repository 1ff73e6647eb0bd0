"""Leader epochs in a file of their log, which follows every change but one: a leader's epoch that has no record yet.

Whoever opens the log forgets such an epoch at its end anyway, and brokers with thousands of partitions begin thousands
of epochs at once. The first record's append writes it.
"""

from pathlib import Path
from typing import Final

from broker.checked_file import read_json, write_json
from purgatory.leader_epochs import LeaderEpochCache

FILE: Final = "leader-epoch-checkpoint"


class LeaderEpochCheckpoint(LeaderEpochCache):
    """The cache of `ReplicaLog`, durable. `is_new`: nothing was written yet."""

    def __init__(self, directory: Path, *, is_new: bool = False) -> None:
        super().__init__()
        written = None if is_new else read_json(directory / FILE)
        for epoch, start_offset in written or ():
            super().assign(epoch, start_offset)
        self._path = directory / FILE
        self._written = self.entries

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

    def _write(self) -> None:
        if self.entries != self._written:
            self._written = self.entries
            write_json(self._path, self._written)
