"""A part of a log: one file of batches, named by its first offset, and two sparse indexes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from broker.log.config import LogConfig
from broker.log.file import LogFile
from broker.log.index import OFFSET_ENTRY_BYTES, RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex
from broker.records.record_batch import (
    HEADER_BYTES,
    MAGIC,
    NO_TIMESTAMP,
    Batch,
    BatchHeader,
    Buffer,
    check_crc,
    read_header,
)
from broker.records.records import read_records
from purgatory.errors import ApiError

LOG_SUFFIX: Final = ".log"
CLEANED_SUFFIX: Final = ".cleaned"  # being compacted, not yet in place
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
WALK_BYTES: Final = 8192  # two index intervals: a look-up costs one read, mostly


class TimestampOffset(NamedTuple):
    """A record found by its time."""

    timestamp: int
    offset: int
    leader_epoch: int


class LogSegment:
    """Batches from `base_offset` on. `max_timestamp` is the greatest in it, -1 if it is empty."""

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        suffix: str = LOG_SUFFIX,
        *,
        is_new: bool = False,
    ) -> None:
        self.base_offset = base_offset
        self.path = directory / f"{base_offset:020d}{suffix}"
        self.file = LogFile(self.path, is_new=is_new)
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.first_timestamp: int | None = None  # of the first batch: age is counted from it
        self._max_timestamp_offset = base_offset
        self._interval = config.index_interval_bytes
        self._since_entry = 0
        self._offsets = OffsetIndex(base_offset, config.segment_index_bytes // OFFSET_ENTRY_BYTES)
        self._times = TimeIndex(base_offset)

    @property
    def size(self) -> int:
        """In bytes."""
        return self.file.size

    def must_roll(self, config: LogConfig, header: BatchHeader, size: int, last_offset: int) -> bool:
        """Whether `size` bytes that begin with this batch belong into a new segment."""
        if self.size > config.segment_bytes - size or last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return self.size > 0
        first = self.first_timestamp
        is_old = first is not None and header.max_timestamp - first > config.segment_ms - config.segment_jitter_ms
        return self.size > 0 and (is_old or self._offsets.is_full)

    def append(self, data: Buffer, batches: Sequence[Batch]) -> None:
        """Batches with their offsets. ApiError KAFKA_STORAGE_ERROR, and nothing is appended."""
        start = self.size
        self.file.append(data)
        for header, position in batches:
            self._take(header, start + position)

    def translate(self, offset: int) -> Batch | None:
        """The batch with this offset, or the first one after it; None at the end."""
        for batch in self.walk(self._offsets.floor(offset)):
            if batch.header.last_offset >= offset:
                return batch
        return None

    def find_time(self, timestamp: int, start_offset: int) -> TimestampOffset | None:
        """The first record of this time or later, from `start_offset` on."""
        for header, position in self.walk(self._offsets.floor(self._times.floor(timestamp))):
            if header.max_timestamp < timestamp or header.last_offset < start_offset or header.is_control:
                continue
            for record in read_records(header, self.file.read(position, header.size)):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimestampOffset(record.timestamp, record.offset, header.partition_leader_epoch)
        return None

    def walk(self, position: int = 0) -> Iterator[Batch]:
        """The headers from a batch's position on, as far as whole batches go."""
        chunk, chunk_start = b"", 0
        while position + HEADER_BYTES <= self.size:
            if position + HEADER_BYTES > chunk_start + len(chunk):
                chunk, chunk_start = self.file.read(position, WALK_BYTES), position
            header = read_header(chunk, position - chunk_start)
            end = position + header.size
            if header.magic != MAGIC or header.size < HEADER_BYTES or end > self.size:
                return
            yield Batch(header, position)
            position = end

    def truncate(self, position: int, next_offset: int) -> None:
        """Cut it at a batch's position; what is left of the indexes stays right."""
        self.unseal()
        self.file.truncate(position)
        self._offsets.truncate(position)
        self._times.truncate(next_offset)
        self._read_tail()
        self.next_offset = next_offset

    def recover(self, verified_to: int) -> bool:
        """Find the end: batches from offset `verified_to` on are checked in full, and the file is cut where one is
        not right. Whether it was cut. A missing index is made again, and needs a `seal`."""
        loaded = self._offsets.load(self._beside(INDEX_SUFFIX), self.size)
        if not (loaded and self._times.load(self._beside(TIME_INDEX_SUFFIX))):
            self._offsets = OffsetIndex(self.base_offset, self._offsets.entries_max)
            self._times = TimeIndex(self.base_offset)
        end = self._offsets.floor(verified_to)
        self._offsets.truncate(end + 1)
        offset = self.base_offset
        first = next(self.walk(end), None)
        if first is not None:
            offset = max(offset, first.header.base_offset)
            self._times.truncate(offset)
        self._set_first_timestamp()
        self.max_timestamp, self._since_entry = self._times.last_timestamp, 0
        for header, position in self.walk(end):
            is_verified = header.base_offset < verified_to or self._is_right(header, position)
            is_next = offset <= header.base_offset <= self.base_offset + RELATIVE_OFFSET_MAX
            if not (is_next and is_verified):
                break
            self._take(header, position, is_indexed=position == self._offsets.last_position and len(self._offsets) > 0)
            end, offset = position + header.size, header.last_offset + 1
        self.next_offset = offset
        if end == self.size:
            return False
        self.file.truncate(end)
        return True

    @property
    def is_sealed(self) -> bool:
        """Whether its indexes are written."""
        return self._beside(INDEX_SUFFIX).exists() and self._beside(TIME_INDEX_SUFFIX).exists()

    def unseal(self) -> None:
        """Something will be appended: the written indexes will no longer be complete."""
        self._beside(INDEX_SUFFIX).unlink(missing_ok=True)
        self._beside(TIME_INDEX_SUFFIX).unlink(missing_ok=True)

    def seal(self) -> None:
        """Write the indexes: nothing is appended any more, or the log is closed."""
        self._times.add(self.max_timestamp, self._max_timestamp_offset)
        self._offsets.write(self._beside(INDEX_SUFFIX))
        self._times.write(self._beside(TIME_INDEX_SUFFIX))

    def delete(self) -> None:
        """Remove it; regions that were read of it stay readable."""
        self.unseal()
        self.path.unlink(missing_ok=True)

    def rename(self, suffix: str) -> None:
        """Take another's place: from then on it is that segment."""
        self.unseal()
        self.path = self.path.replace(self._beside(suffix))
        self.file.path = self.path

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.base_offset:020d}{suffix}")

    def _is_right(self, header: BatchHeader, position: int) -> bool:
        try:
            check_crc(header, self.file.read(position, header.size))
        except ApiError:
            return False
        return True

    def _take(self, header: BatchHeader, position: int, *, is_indexed: bool = False) -> None:
        self._note_time(header)
        if self._since_entry > self._interval and not is_indexed:
            self._offsets.add(header.base_offset, position)
            self._times.add(self.max_timestamp, self._max_timestamp_offset)
            self._since_entry = 0
        self._since_entry += header.size
        self.next_offset = header.last_offset + 1
        if self.first_timestamp is None:
            self.first_timestamp = header.max_timestamp

    def _note_time(self, header: BatchHeader) -> None:
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.base_offset

    def _set_first_timestamp(self) -> None:
        first = next(self.walk(), None)
        self.first_timestamp = None if first is None else first.header.max_timestamp

    def _read_tail(self) -> None:
        """After a cut: what came after the last index entries is no longer known from appending it."""
        self._set_first_timestamp()
        self.max_timestamp, self._since_entry = self._times.last_timestamp, 0
        for header, _ in self.walk(self._offsets.last_position):
            self._note_time(header)
            self._since_entry += header.size
