"""A partition's log in files: what `LogStorage` of `purgatory.partition.replica_log` asks for, and what keeps it within
limits.

    topic-0/
        00000000000000000000.log          a sealed segment, with both its indexes
        00000000000000000000.index
        00000000000000000000.timeindex
        00000000000000004711.log          the active one: its indexes are in memory until it is sealed
        00000000000000004711.snapshot     producers and transactions below 4711
        leader-epoch-checkpoint
        log-checkpoint                    log start, recovery point, high watermark

One thread. Nothing here reads a clock but through the function that it is given.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from broker.log.checked_file import sync_directory
from broker.log.config import LogConfig
from broker.log.file import FileRegion
from broker.log.segment import LogSegment, TimestampOffset
from broker.log.state import Checkpoint, LogState
from broker.records.batch_validation import analyze_batch, validate_batch
from broker.records.control_records import EndMarker, read_end_marker
from broker.records.record_batch import (
    Batch,
    Buffer,
    TimestampType,
    assign,
    check_crc,
    set_max_timestamp,
    whole_batches,
)
from purgatory.errors import ApiError, Errors, UnexpectedAppendOffset
from purgatory.log_offsets import LogOffsetMetadata
from purgatory.partition.replica_log import AppendInfo, BatchInfo, FetchDataInfo


@dataclass(frozen=True, slots=True)
class CoordinatorRecords:
    """Batches of the broker itself, which may hold end markers: groups, transactions."""

    data: Buffer


class Log:
    """The batches of one replica, in segments. `clock` gives wall-clock time in ms. Made by `log_loading.open_log`."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        clock: Callable[[], float],
        segments: Sequence[LogSegment],
        checkpoint: Checkpoint,
    ) -> None:
        self.directory = directory
        self.config = config
        self.clock = clock
        self.segments = list(segments)
        self.checkpoint = checkpoint
        self.state = LogState(directory)

    @property
    def active(self) -> LogSegment:
        """The one that is written."""
        return self.segments[-1]

    @property
    def log_end(self) -> LogOffsetMetadata:
        """Where the next batch goes."""
        return LogOffsetMetadata(self.active.next_offset, self.active.base_offset, self.active.size)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    # What a replica asks of a storage

    def append(self, records: Buffer | CoordinatorRecords, leader_epoch: int | None) -> AppendInfo:
        """As `LogStorage.append`. What can be written to (a bytearray, a view of one) is stamped where it is."""
        if leader_epoch is None:
            assert not isinstance(records, CoordinatorRecords)
            return self._append_as_follower(records)
        is_from_client = not isinstance(records, CoordinatorRecords)
        data = _writable(records.data if isinstance(records, CoordinatorRecords) else records)
        batches = list(whole_batches(data))
        if not batches:
            raise ApiError(Errors.INVALID_RECORD, "there is no whole record batch")
        greatest = []
        for batch in batches:
            analyze_batch(batch, data, self.config.records, is_from_client=is_from_client)
        for batch in batches:
            now_ms = int(self.clock())
            greatest.append(validate_batch(batch, data, self.config.records, now_ms, is_from_client=is_from_client))
        end = batches[-1].position + batches[-1].header.size
        if end > self.config.segment_bytes:
            raise ApiError(Errors.RECORD_LIST_TOO_LARGE, f"{end} bytes, a segment takes {self.config.segment_bytes}")
        duplicate = self._check_producers(batches, data, is_from_client=is_from_client)
        if duplicate is not None:
            return duplicate
        self._stamp(data, batches, greatest, leader_epoch)
        info = self._write(data[:end])
        if self.config.records.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return replace(info, log_append_time=greatest[-1])
        return info

    def read(self, offset: int, max_bytes: int, end: LogOffsetMetadata, *, min_one_message: bool) -> FetchDataInfo:
        """As `LogStorage.read`; the records are a `FileRegion`."""
        for segment in self.segments[self._index_of(offset) :]:
            found = segment.translate(offset)
            if found is not None:  # else compaction has left nothing of the rest of this segment
                header, position = found
                limit = max(max_bytes, header.size) if min_one_message else max_bytes
                size = max(0, min(self._readable_end(segment, end) - position, limit))
                start = LogOffsetMetadata(offset, segment.base_offset, position)
                return FetchDataInfo(start, FileRegion(segment.file, position, size), size, 0 < size < header.size)
        return FetchDataInfo(self.log_end)

    def locate(self, offset: int) -> LogOffsetMetadata:
        """As `LogStorage.locate`: where the batch with this offset begins, or the first one after it."""
        end = self.log_end
        if offset >= end.offset:
            return end if offset == end.offset else LogOffsetMetadata(offset)
        for segment in self.segments[self._index_of(offset) :]:
            found = segment.translate(offset)
            if found is not None:
                return LogOffsetMetadata(offset, segment.base_offset, found.position)
        return LogOffsetMetadata(offset, end.segment_base_offset, end.position)

    def truncate_to(self, offset: int) -> LogOffsetMetadata:
        """As `LogStorage.truncate_to`. The checkpoint is written first: nothing may count as known to be on disk
        that is appended in the place of what goes."""
        end = self.log_end.offset
        if offset >= end:
            return self.log_end
        if self.size == 0 or offset < self.segments[0].base_offset:
            return self.truncate_fully_and_start_at(offset)
        self._lower_checkpoint(offset)
        index = self._index_of(offset)
        for segment in self.segments[index + 1 :]:
            segment.delete()
        del self.segments[index + 1 :]
        found = self.active.translate(offset)
        start = self.checkpoint.log_start_offset
        if found is not None and found.header.base_offset < min(start, offset):
            return self.truncate_fully_and_start_at(start)  # what is left was deleted, and may not be appended again
        if found is not None:
            self.active.truncate(found.position, min(offset, found.header.base_offset))
            self._lower_checkpoint(self.active.next_offset)
        else:
            self.active.unseal()
            self.active.next_offset = offset
        self.state.rebuild(self.segments, self.log_end.offset)
        return self.log_end

    # What else a broker asks

    def truncate_fully_and_start_at(self, offset: int) -> LogOffsetMetadata:
        """Forget everything: a follower that is behind its leader's log start, or before its beginning."""
        for segment in self.segments:
            segment.delete()
        self.segments = [LogSegment(self.directory, offset, self.config)]
        self.checkpoint.start_at(offset)
        self.checkpoint.write(self.directory)
        self.state.forget_snapshots(-1)
        self.state.rebuild([], offset)
        return self.log_end

    def find_time(self, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """The first record of this time or later at or after `start_offset`, None if there is none."""
        for segment in self.segments:
            if segment.max_timestamp >= timestamp and segment.next_offset > start_offset:
                found = segment.find_time(timestamp, start_offset)
                if found is not None:
                    return found
        return None

    def roll(self) -> None:
        """Begin a new segment, if there is anything in the active one."""
        if self.active.base_offset == self.log_end.offset:
            return
        self.active.seal()
        self.state.snapshot(self.log_end.offset)
        self.segments.append(LogSegment(self.directory, self.log_end.offset, self.config))

    def flush(self) -> None:
        """Make the log survive a loss of power, without a need to check it when it is opened again."""
        for segment in self.segments[self._index_of(self.checkpoint.recovery_point) :]:
            segment.file.sync()
        sync_directory(self.directory)
        self.checkpoint.recovery_point = self.log_end.offset
        self.checkpoint.write(self.directory)

    def write_checkpoint(self, high_watermark: int) -> None:
        """To be called from time to time."""
        self.checkpoint.high_watermark = high_watermark
        self.checkpoint.write(self.directory)

    def advance_start(self, offset: int) -> int:
        """Records below are deleted: durable when this returns, and segments without others are gone. The bytes
        that this has freed."""
        if offset > self.checkpoint.log_start_offset:
            self.checkpoint.log_start_offset = offset
            self.checkpoint.write(self.directory)
        freed = 0
        while len(self.segments) > 1 and self.segments[1].base_offset <= self.checkpoint.log_start_offset:
            segment = self.segments.pop(0)
            freed += segment.size
            segment.delete()
        return freed

    def close(self, high_watermark: int) -> None:
        """Write everything down: the next start reads no batch."""
        end = self.log_end.offset
        if end:
            self.active.seal()
            self.state.snapshot(end)
        self.checkpoint.high_watermark = high_watermark
        if self.checkpoint.recovery_point < end:
            self.flush()
        else:
            self.checkpoint.write(self.directory)
        for segment in self.segments:
            segment.file.close()

    def _append_as_follower(self, records: Buffer) -> AppendInfo:
        batches = list(whole_batches(records))
        if not batches:
            return AppendInfo(self.log_end.offset, self.log_end.offset - 1, self.log_end, ())
        first, last = batches[0].header, batches[-1].header
        expected = self.log_end.offset
        if first.base_offset < expected:
            raise UnexpectedAppendOffset(first.base_offset, first.last_offset, expected)
        for header, position in batches:
            check_crc(header, records, position)
            if header.base_offset < expected or header.last_offset_delta < 0:
                raise ApiError(Errors.CORRUPT_MESSAGE, f"offset {header.base_offset} after {expected}")
            expected = header.last_offset + 1
        return self._write(memoryview(records)[: batches[-1].position + last.size])

    def _check_producers(self, batches: Sequence[Batch], data: Buffer, *, is_from_client: bool) -> AppendInfo | None:
        """Check that producers may append these batches; ApiError if not. Returns the answer if one is a duplicate."""
        for header, position in batches:
            duplicate = self.state.producers.find_duplicate(header) if is_from_client else None
            if duplicate is not None:
                return AppendInfo(duplicate.first_offset, duplicate.last_offset, self.log_end, ())
            marker = _marker(Batch(header, position), data)
            self.state.producers.check(header, marker, is_from_client=is_from_client)
        return None

    def _stamp(
        self, data: bytearray | memoryview, batches: Sequence[Batch], greatest: Sequence[int], leader_epoch: int
    ) -> None:
        offset = self.log_end.offset
        for (header, position), timestamp in zip(batches, greatest, strict=True):
            assign(data, position, offset, leader_epoch)
            set_max_timestamp(data, position, self.config.records.timestamp_type, timestamp)
            offset += header.last_offset_delta + 1

    def _write(self, data: Buffer) -> AppendInfo:
        batches = list(whole_batches(data))
        first, last = batches[0].header, batches[-1].header
        if self.active.must_roll(self.config, first, len(data), last.last_offset):
            self.roll()
        self.active.append(data, batches)
        infos: list[BatchInfo] = [self.state.take(batch.header, _marker(batch, data)) for batch in batches]
        if self.config.flush_messages == 1:
            self.active.file.sync()
        elif self.log_end.offset - self.checkpoint.recovery_point >= self.config.flush_messages:
            self.flush()
        return AppendInfo(first.base_offset, last.last_offset, self.log_end, infos)

    def _index_of(self, offset: int) -> int:
        """The segment in which an offset belongs."""
        return max(0, bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1)

    def _readable_end(self, segment: LogSegment, end: LogOffsetMetadata) -> int:
        """How far this segment may be read by who may not see `end`."""
        if end.message_offset_only:
            end = self.locate(end.offset)
        if end.segment_base_offset < segment.base_offset:
            return 0
        is_last = end.segment_base_offset == segment.base_offset
        return min(end.position, segment.size) if is_last else segment.size

    def _lower_checkpoint(self, offset: int) -> None:
        known = self.checkpoint
        if max(known.recovery_point, known.cleaned_to, known.high_watermark) > offset:
            known.recovery_point = min(known.recovery_point, offset)
            known.cleaned_to = min(known.cleaned_to, offset)
            known.high_watermark = min(known.high_watermark, offset)
            known.write(self.directory)


def _marker(batch: Batch, data: Buffer) -> EndMarker | None:
    header, position = batch
    return read_end_marker(header, data, position) if header.is_control else None


def _writable(data: Buffer) -> bytearray | memoryview:
    if isinstance(data, bytes) or (isinstance(data, memoryview) and data.readonly):
        return bytearray(data)
    return data
