"""Compaction: of each key only the latest record stays.

    dirty          not compacted yet; its keys go into a map: key -> latest offset
    cleanable      sealed, below the last stable offset, older than min.compaction.lag

All cleanable segments are written anew without records that the map has a later one for. A tombstone, and the marker of
a transaction that has no records left, stays for delete.retention.ms after it was first seen here, so that every
consumer that began before sees it: the batch carries that time (its delete horizon). Of aborted transactions nothing
stays. A batch whose records are all gone stays as an empty one while it is its producer's last: it holds the sequence.

A group of segments becomes one: written beside, synced, renamed over the first, then the others are deleted. If that is
interrupted, the next start drops segments that begin within the one before them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.log.index import RELATIVE_OFFSET_MAX
from broker.log.log import Log
from broker.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, LogSegment
from broker.records.compression import CompressionType, compress
from broker.records.record_batch import DELETE_HORIZON, Batch, BatchHeader, TimestampType, encode_batch, whole_batches
from broker.records.records import Record, encode_records, read_records

KEYS_MAX: Final = 5_000_000  # of one pass, about 1 GB; what is beyond is the next pass's


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Result of compacting a log once."""

    bytes_before: int
    bytes_after: int
    cleaned_to: int


@dataclass(slots=True)
class _Pass:
    """One compaction of one log."""

    log: Log
    now_ms: int
    latest: dict[bytes, int] = field(default_factory=dict)
    cleaned_to: int = 0
    open_producers: set[int] = field(default_factory=set)  # with records of a transaction whose marker is to come


def clean_log(log: Log, last_stable_offset: int, now_ms: int, keys_max: int = KEYS_MAX) -> Cleaned | None:
    """Compact a log if enough of it is dirty, or has been for too long; None if not. To be called every few seconds."""
    if not log.config.is_compacted:
        return None
    cleanable = _cleanable(log, last_stable_offset, now_ms)
    dirty = [segment for segment in cleanable if segment.next_offset > log.checkpoint.cleaned_to]
    before = sum(segment.size for segment in cleanable)
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    oldest = dirty[0].first_timestamp
    is_overdue = oldest is not None and now_ms - oldest > log.config.max_compaction_lag_ms
    if not is_overdue and dirty_bytes < before * log.config.min_cleanable_dirty_ratio:
        return None
    work = _Pass(log, now_ms)
    _map_keys(work, dirty, keys_max)
    affected = [segment for segment in cleanable if segment.base_offset < work.cleaned_to]
    after = before
    for group in _groups(affected, log.config.segment_bytes):
        after -= sum(segment.size for segment in group)
        after += _replace(work, group).size
    log.checkpoint.cleaned_to = work.cleaned_to
    log.checkpoint.write(log.directory)
    return Cleaned(before, after, work.cleaned_to)


def _cleanable(log: Log, last_stable_offset: int, now_ms: int) -> list[LogSegment]:
    found = []
    for segment in log.segments[:-1]:
        is_fresh = (
            log.config.min_compaction_lag_ms and segment.max_timestamp > now_ms - log.config.min_compaction_lag_ms
        )
        if segment.next_offset > last_stable_offset or is_fresh:
            break
        found.append(segment)
    return found


def _map_keys(work: _Pass, dirty: Sequence[LogSegment], keys_max: int) -> None:
    start = work.log.checkpoint.cleaned_to
    for segment in dirty:
        for batch in segment.walk():
            header = batch.header
            if header.last_offset < start or header.is_control or _is_aborted(work.log, header):
                continue
            if work.latest and len(work.latest) + header.record_count > keys_max:
                work.cleaned_to = header.base_offset
                return
            for record in read_records(header, segment.file.read(batch.position, header.size)):
                if record.key is not None:
                    work.latest[record.key] = record.offset
        work.cleaned_to = segment.next_offset


def _is_aborted(log: Log, header: BatchHeader) -> bool:
    return header.is_transactional and any(
        ended.producer_id == header.producer_id and ended.first_offset <= header.base_offset <= ended.last_offset
        for ended in log.state.transactions.aborted
    )


def _groups(segments: Sequence[LogSegment], bytes_max: int) -> Iterator[list[LogSegment]]:
    group: list[LogSegment] = []
    for segment in segments:
        size = sum(one.size for one in group) + segment.size
        if group and (size > bytes_max or segment.next_offset - group[0].base_offset > RELATIVE_OFFSET_MAX):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def _replace(work: _Pass, group: Sequence[LogSegment]) -> LogSegment:
    log = work.log
    first = group[0]
    (log.directory / f"{first.base_offset:020d}{CLEANED_SUFFIX}").unlink(missing_ok=True)
    cleaned = LogSegment(log.directory, first.base_offset, log.config, CLEANED_SUFFIX)
    for segment in group:
        for batch in segment.walk():
            data = _cleaned_batch(work, batch, segment.file.read(batch.position, batch.header.size))
            if data:
                cleaned.append(data, list(whole_batches(data)))
    cleaned.next_offset = group[-1].next_offset
    cleaned.file.sync()
    cleaned.rename(LOG_SUFFIX)
    cleaned.seal()
    index = log.segments.index(first)
    log.segments[index : index + len(group)] = [cleaned]
    for segment in group[1:]:
        segment.delete()
    return cleaned


def _cleaned_batch(work: _Pass, batch: Batch, data: bytes) -> bytes | bytearray | None:
    """A batch as it stays, None if it goes."""
    header = batch.header
    if header.base_offset >= work.cleaned_to:
        return data
    horizon = header.delete_horizon_ms
    is_over = horizon is not None and work.now_ms > horizon
    if header.is_control:
        has_records = header.producer_id in work.open_producers
        work.open_producers.discard(header.producer_id)
        if has_records or (horizon is not None and not is_over):
            return data
        return None if is_over else _rebuilt(work, header, list(read_records(header, data)), is_to_go=True)
    records = [] if _is_aborted(work.log, header) else list(read_records(header, data))
    kept = [record for record in records if _stays(work, record, is_over=is_over)]
    if kept and header.is_transactional:
        work.open_producers.add(header.producer_id)
    has_tombstones = any(record.value is None for record in kept)
    if len(kept) == header.record_count and kept and not (has_tombstones and horizon is None):
        return data
    if kept:
        return _rebuilt(work, header, kept, is_to_go=has_tombstones)
    entry = work.log.state.producers.producers.get(header.producer_id)
    is_last = entry is not None and bool(entry.batches) and entry.batches[-1].last_offset == header.last_offset
    return _rebuilt(work, header, [], is_to_go=False) if is_last else None


def _stays(work: _Pass, record: Record, *, is_over: bool) -> bool:
    if record.key is None or work.latest.get(record.key, -1) > record.offset:
        return False
    return record.value is not None or not is_over


def _rebuilt(work: _Pass, header: BatchHeader, records: Sequence[Record], *, is_to_go: bool) -> bytearray:
    """The batch with these records only, at the same offsets. With `is_to_go` it gets a delete horizon if it has
    none; that takes the place of the base timestamp."""
    if is_to_go and header.delete_horizon_ms is None:
        horizon = work.now_ms + work.log.config.delete_retention_ms
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon)
    if records and header.timestamp_type is TimestampType.CREATE_TIME:
        header = header._replace(max_timestamp=max(record.timestamp for record in records))
    body = encode_records(records, header.base_offset, header.base_timestamp)
    codec = CompressionType(header.codec)
    return encode_batch(header._replace(record_count=len(records)), compress(codec, body))
