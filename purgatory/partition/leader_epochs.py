"""Parts of a log by the leader that wrote them: the start offset of each leader epoch.

A follower that lost its leader asks where the epoch of its last record ends. Beyond that its records are another
history, and it truncates them.

    epochs   0      3          4       7    9     10
    starts   0      2          8       13   14    17 = log end

    end_offset_for(3) = (3, 8)      the next epoch's start
    end_offset_for(5) = (4, 13)     no records of 5 here: those of the one before it end there
    end_offset_for(10) = (10, 17)   the latest ends where the log ends
    end_offset_for(11)              undefined
"""

from bisect import bisect_right

from purgatory.log_offsets import NO_EPOCH, EpochEndOffset


class LeaderEpochCache:
    """Epochs and their start offsets, both rising."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), in order."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest_epoch(self) -> int:
        """The latest epoch, -1 if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Begin an epoch here. Known epochs keep their start; what contradicts the new entry is forgotten."""
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def begin(self, epoch: int, log_end_offset: int) -> None:
        """A leader's epoch begins, and has no record yet: as `assign`, but nothing that must outlive a crash."""
        self.assign(epoch, log_end_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """The latest epoch up to this one, and where it ends."""
        if epoch == NO_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return EpochEndOffset()
        if epoch == self._epochs[-1]:
            return EpochEndOffset(epoch, log_end_offset)
        higher = bisect_right(self._epochs, epoch)
        found = self._epochs[higher - 1] if higher else epoch  # below the first: what was there has been deleted
        return EpochEndOffset(found, self._starts[higher])

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote this offset, -1 if unknown."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """The log ends here now."""
        while self._starts and self._starts[-1] >= end_offset:
            self._pop()

    def truncate_from_start(self, start_offset: int) -> None:
        """The log starts here now: the epoch that wrote this offset does too."""
        index = bisect_right(self._starts, start_offset) - 1
        if index >= 0:
            del self._epochs[:index], self._starts[:index]
            self._starts[0] = start_offset

    def _pop(self) -> None:
        self._epochs.pop()
        self._starts.pop()
