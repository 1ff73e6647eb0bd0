"""Logs in real files with small segments, and what goes into them."""

from pathlib import Path
from typing import Any

from broker.log.config import LogConfig
from broker.log.loading import open_replica_log
from broker.log.log import CoordinatorRecords, Log
from broker.records.batch_validation import RecordRules
from broker.records.compression import CompressionType
from broker.records.control_records import EndMarker, build_end_marker
from broker.records.record_batch import TRANSACTIONAL, whole_batches
from broker.records.records import Producer, Record, build_batch, read_records
from purgatory.log_offsets import LogOffsetMetadata
from purgatory.partition.replica_log import ReplicaLog
from tests.unit.purgatory_tasks import Clock

NOW_MS = 1_700_000_000_000


def batch(
    *values: bytes | None,
    key: bytes | None = b"key",
    timestamp: int = NOW_MS,
    producer: Producer | None = None,
    codec: CompressionType = CompressionType.NONE,
    is_transactional: bool = False,
) -> bytearray:
    """A producer's batch: a record for each value."""
    records = [Record(index, timestamp + index, key, value) for index, value in enumerate(values or (b"value",))]
    return build_batch(records, codec, producer, TRANSACTIONAL if is_transactional else 0)


def pairs(content: list[tuple[bytes, bytes | None]], timestamp: int = NOW_MS, **about: Any) -> bytearray:
    """A batch of keys and values."""
    return build_batch([Record(index, timestamp, *pair) for index, pair in enumerate(content)], **about)


def marker(producer_id: int, *, is_aborted: bool, epoch: int = 0, coordinator_epoch: int = 0) -> CoordinatorRecords:
    """The end of a transaction."""
    return CoordinatorRecords(build_end_marker(producer_id, epoch, EndMarker(is_aborted, coordinator_epoch), NOW_MS))


class LogWorld:
    """One replica's log. Small: a segment takes 1,000 bytes, an index entry stands for 100."""

    def __init__(self, directory: Path, rules: RecordRules | None = None, **config: Any) -> None:
        self.directory = directory
        self.clock = Clock(NOW_MS)
        settings = {"segment_bytes": 1000, "index_interval_bytes": 100, **config}
        self.config = LogConfig(rules or RecordRules(), **settings)
        self.log: Log
        self.replica: ReplicaLog
        self.open()

    def open(self) -> None:
        """Also after a crash: what the process had in memory is gone, what it wrote is there."""
        self.log, self.replica = open_replica_log(self.directory, self.config, self.clock)

    def reopen(self) -> None:
        self.log.close(self.replica.high_watermark.offset)
        self.open()

    def append(self, data: Any, epoch: int = 0) -> int:
        """As leader, replicated at once. The base offset."""
        info = self.replica.append_as_leader(data, epoch)
        self.replica.maybe_increment_high_watermark(self.replica.log_end)
        return info.first_offset

    def read_bytes(self, offset: int, max_bytes: int = 1 << 20, end: LogOffsetMetadata | None = None) -> bytes:
        """One read."""
        found = self.log.read(offset, max_bytes, end or self.log.log_end, min_one_message=True)
        assert len(found.records.read() if found.size else b"") == found.size
        return found.records.read() if found.size else b""

    def records(self) -> list[Record]:
        """All that a consumer sees, markers left out, aborted records not."""
        found: list[Record] = []
        offset = self.replica.log_start_offset
        while offset < self.log.log_end.offset:
            data = self.read_bytes(offset)
            if not data:
                break
            for header, position in whole_batches(data):
                if not header.is_control:
                    found += [one for one in read_records(header, data, position) if one.offset >= offset]
                offset = header.last_offset + 1
        return found

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]

    def files(self, suffix: str = ".log") -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob(f"*{suffix}"))
