"""One replica's log as replication sees it: its ends, epochs and transactions. The bytes are in a `LogStorage`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from purgatory.errors import ApiError, Errors, UnexpectedAppendOffset
from purgatory.log_offsets import Isolation, LogOffsetMetadata, LogOffsetSnapshot
from purgatory.partition.leader_epochs import LeaderEpochCache
from purgatory.partition.transaction_offsets import EndedTransaction, TransactionOffsets


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """Facts of an appended batch that replication has to know. `ends` of a control batch: "commit" or "abort"."""

    first_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int = -1
    is_transactional: bool = False
    ends: str | None = None


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """Result of an append. `log_end` is where the log ends after it. No batches: it was a duplicate. `log_append_time`
    in ms is what the records got, -1 if they keep their own."""

    first_offset: int
    last_offset: int
    log_end: LogOffsetMetadata
    batches: Sequence[BatchInfo]
    log_append_time: int = -1


@dataclass(frozen=True, slots=True)
class FetchDataInfo:
    """Result of a read. `records` is the storage's own: bytes, a view or a file region of `size` bytes."""

    start: LogOffsetMetadata
    records: Any = b""
    size: int = 0
    first_entry_incomplete: bool = False


class LogStorage(Protocol):
    """Where the records are: in memory, in files, or in a test's list."""

    def append(self, records: Any, leader_epoch: int | None) -> AppendInfo:
        """Append what a producer sent, with offsets and this leader epoch, or (None) what a leader sent, as it is.
        ApiError if it is refused, UnexpectedAppendOffset if a leader's does not follow; nothing is appended then."""

    def read(self, offset: int, max_bytes: int, end: LogOffsetMetadata, *, min_one_message: bool) -> FetchDataInfo:
        """Read from the batch with `offset` on, before `end` and within one segment, at most `max_bytes`, cut
        wherever that is; with `min_one_message` at least the whole first batch."""

    def locate(self, offset: int) -> LogOffsetMetadata:
        """The place of an offset, which lies in the log or at its end."""

    def truncate_to(self, offset: int) -> LogOffsetMetadata:
        """Remove everything from this offset on. Where the log ends now: below the offset if a batch spans it. An
        empty log may be given an earlier offset, and begins there."""


class ReplicaLog:
    """Log start, high watermark, last stable offset and log end, in this order, and what moves them.

    The log start offset is the caller's to persist, the high watermark to checkpoint.
    """

    def __init__(self, storage: LogStorage, log_start_offset: int = 0, log_end_offset: int = 0) -> None:
        self.storage = storage
        self.log_start_offset = log_start_offset
        self.log_end = storage.locate(log_end_offset)
        self.epochs = LeaderEpochCache()
        self.transactions = TransactionOffsets()
        self._high_watermark = storage.locate(log_start_offset)

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log_end.offset

    @property
    def high_watermark(self) -> LogOffsetMetadata:
        """Everything below is on all replicas that count."""
        return self._high_watermark

    @property
    def last_stable(self) -> LogOffsetMetadata:
        """Everything below is also of ended transactions only."""
        first_unstable = self.transactions.first_unstable_offset
        if first_unstable is None or first_unstable >= self._high_watermark.offset:
            return self._high_watermark
        return self.storage.locate(max(first_unstable, self.log_start_offset))

    def snapshot(self) -> LogOffsetSnapshot:
        """All ends at this moment."""
        return LogOffsetSnapshot(self.log_start_offset, self.log_end, self._high_watermark, self.last_stable)

    def append_as_leader(self, records: Any, leader_epoch: int) -> AppendInfo:
        """Append what a producer sent."""
        info = self.storage.append(records, leader_epoch)
        self.take_in(info.batches, info.log_end)
        return info

    def append_as_follower(self, records: Any) -> AppendInfo:
        """Append what the leader sent. An empty log may be moved down to a batch that spans its start, since the
        leader's log start can lie within a batch; anything else that does not fit raises UnexpectedAppendOffset."""
        try:
            info = self.storage.append(records, None)
        except UnexpectedAppendOffset as error:
            end = self.log_end_offset
            if not (end == self.log_start_offset and error.first_offset < end <= error.last_offset):
                raise
            self.log_start_offset = error.first_offset
            self.log_end = self.storage.truncate_to(error.first_offset)
            self._set_high_watermark(self.log_end)
            info = self.storage.append(records, None)
        self.take_in(info.batches, info.log_end)
        return info

    def take_in(self, batches: Sequence[BatchInfo], log_end: LogOffsetMetadata) -> None:
        """Take in batches that are at the end of the log, which ends at `log_end` now."""
        for batch in batches:
            self.epochs.assign(batch.leader_epoch, batch.first_offset)
            if batch.ends is not None:
                self.transactions.add_marker(batch.producer_id, batch.last_offset, is_aborted=batch.ends == "abort")
            elif batch.is_transactional:
                self.transactions.add_records(batch.producer_id, batch.first_offset)
        self.log_end = log_end

    def maybe_increment_high_watermark(self, new: LogOffsetMetadata) -> bool:
        """Move it forward, or to a newer segment at the same offset (after a roll). Whether it has moved."""
        if new.offset > self.log_end_offset:
            raise ValueError(f"high watermark {new.offset} above the log end {self.log_end_offset}")
        old = self._high_watermark
        if not (old.offset < new.offset or (old.offset == new.offset and old.on_older_segment(new))):
            return False
        self._set_high_watermark(new)
        return True

    def update_high_watermark(self, offset: int) -> bool:
        """Take the leader's, or a checkpoint's, as far as this log goes. Whether it has moved."""
        bounded = max(self.log_start_offset, min(offset, self.log_end_offset))
        moved = bounded != self._high_watermark.offset
        self._set_high_watermark(self.storage.locate(bounded))
        return moved

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Records below are deleted. Whether it has moved. OFFSET_OUT_OF_RANGE above the high watermark."""
        if offset > self._high_watermark.offset:
            raise ApiError(Errors.OFFSET_OUT_OF_RANGE, f"{offset} is above {self._high_watermark.offset}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.transactions.truncate_from_start(offset)
        return True

    def truncate_to(self, offset: int) -> bool:
        """Remove everything from this offset on. Whether there was anything.

        An epoch that begins at the log's end goes too: a leader that wrote nothing before it was replaced has one, the
        next leader doesn't, and each fetch that names it would be told again that the histories part.
        """
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)
            return False
        self.log_end = self.storage.truncate_to(max(offset, self.log_start_offset))
        self.epochs.truncate_from_end(self.log_end_offset)
        self.transactions.truncate_to(self.log_end_offset)
        if self._high_watermark.offset >= self.log_end_offset:
            self._set_high_watermark(self.log_end)
        return True

    def read(
        self, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> tuple[FetchDataInfo, list[EndedTransaction]]:
        """Read what is at `offset`, up to where this reader may see, and the aborted transactions in it.

        At the end, or between that end and the log's, there is nothing; elsewhere OFFSET_OUT_OF_RANGE.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ApiError(
                Errors.OFFSET_OUT_OF_RANGE, f"{offset} is not in {self.log_start_offset}..{self.log_end_offset}"
            )
        end = self.snapshot().end_for(isolation)
        if offset >= end.offset:
            return FetchDataInfo(end if offset == end.offset else self.storage.locate(offset)), []
        data = self.storage.read(offset, max_bytes, end, min_one_message=min_one_message)
        aborted = []
        if isolation is Isolation.TXN_COMMITTED:
            aborted = self.transactions.aborted_between(offset, end.offset)
        return data, aborted

    def _set_high_watermark(self, new: LogOffsetMetadata) -> None:
        self._high_watermark = new
        self.transactions.replicated_to(new.offset)
