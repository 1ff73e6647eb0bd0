"""Segments that a log may lose: those that are too old, those that make it too large, those below its start."""

from broker.log.log import Log
from broker.log.segment import LogSegment
from broker.records.record_batch import NO_TIMESTAMP
from purgatory.partition.replica_log import ReplicaLog


def apply_retention(log: Log, replica: ReplicaLog, now_ms: int) -> int:
    """Delete what may go; to be called every few minutes. The bytes that this has freed.

    Nothing above the high watermark goes. A whole log may: then a new segment begins where it ended.
    """
    log.state.producers.expire(now_ms - log.config.producer_id_expiration_ms)
    start = replica.log_start_offset
    if log.config.is_deleted:
        start = max(start, _start_after_retention(log, replica.high_watermark.offset, now_ms))
    if start > log.active.base_offset and log.active.size:
        log.roll()
        replica.log_end = log.log_end
    if start > replica.log_start_offset:
        replica.maybe_increment_log_start_offset(start)
    return log.advance_start(replica.log_start_offset)


def _start_after_retention(log: Log, high_watermark: int, now_ms: int) -> int:
    start = log.segments[0].base_offset
    too_much = log.size - log.config.retention_bytes if log.config.retention_bytes >= 0 else -1
    for segment in log.segments:
        is_too_large = too_much - segment.size >= 0
        if segment.next_offset > high_watermark or not segment.size:
            break
        if not (is_too_large or _is_too_old(segment, log.config.retention_ms, now_ms)):
            break
        too_much -= segment.size
        start = segment.next_offset
    return start


def _is_too_old(segment: LogSegment, retention_ms: int, now_ms: int) -> bool:
    if retention_ms < 0:
        return False
    newest = segment.max_timestamp
    if newest == NO_TIMESTAMP:
        newest = int(segment.path.stat().st_mtime * 1000)
    return now_ms - newest > retention_ms
