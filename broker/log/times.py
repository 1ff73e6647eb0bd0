"""The record with the greatest timestamp of a log."""

from broker.log.log import Log
from broker.log.segment import TimestampOffset
from broker.records.record_batch import NO_TIMESTAMP


def find_max_timestamp(log: Log, start_offset: int) -> TimestampOffset | None:
    """The first record of the greatest time at or after `start_offset`, None if there are none."""
    newest = max(log.segments, key=lambda segment: segment.max_timestamp)  # of several the first
    if newest.max_timestamp == NO_TIMESTAMP:
        return None
    return log.find_time(newest.max_timestamp, start_offset)
