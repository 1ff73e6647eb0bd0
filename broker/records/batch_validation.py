"""Refusals of a leader to append, in Kafka's order and with Kafka's errors."""

from dataclasses import dataclass
from typing import Final

from broker.records.compression import CompressionType
from broker.records.record_batch import (
    MAGIC,
    MAGIC_END,
    NO_TIMESTAMP,
    Batch,
    BatchHeader,
    Buffer,
    TimestampType,
    check_crc,
    whole_batches,
)
from broker.records.record_glance import glance
from broker.records.records import TIMESTAMP_MAX, RecordSpan, body_of, check_headers, spans
from purgatory.errors import ApiError, Errors

ZSTD_PRODUCE_VERSION: Final = 7
RECORD_ERRORS_MAX: Final = 100  # a batch may have 100,000 bad records: the answer names the first


@dataclass(frozen=True, slots=True)
class RecordRules:
    """A topic's rules about batches and the records in them. Times are in ms."""

    max_message_bytes: int = 1_048_588
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = TIMESTAMP_MAX
    timestamp_after_max_ms: int = 3_600_000
    needs_key: bool = False  # compacted topics
    looks_into_records: bool = True  # without, a batch's records are not read, but its header and CRC are


class RecordsRefused(ApiError):
    """Records of a batch are refused: (index within the batch, why) of each, up to a limit."""

    def __init__(self, error: Errors, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(error, "One or more records have been rejected")
        self.record_errors = record_errors


def check_produced(data: Buffer, version: int) -> None:
    """Check a produce request's records for one partition by its version: one batch of magic 2. ApiError otherwise."""
    if len(data) < MAGIC_END:
        raise ApiError(Errors.INVALID_RECORD, "there is no record batch")
    batches = list(whole_batches(data))
    if len(batches) != 1:
        raise ApiError(Errors.INVALID_RECORD, f"{len(batches)} record batches instead of one")
    if version < ZSTD_PRODUCE_VERSION and batches[0].header.codec == CompressionType.ZSTD:
        raise ApiError(Errors.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {ZSTD_PRODUCE_VERSION}")


def analyze_batch(batch: Batch, data: Buffer, rules: RecordRules, *, is_from_client: bool) -> None:
    """Whether the batch itself can be taken: its base offset, size, CRC. ApiError if not."""
    header, position = batch
    if is_from_client and header.base_offset != 0:
        raise ApiError(Errors.INVALID_RECORD, f"the base offset is {header.base_offset} and should be 0")
    if header.size > rules.max_message_bytes:
        raise ApiError(Errors.MESSAGE_TOO_LARGE, f"{header.size} bytes, at most {rules.max_message_bytes}")
    check_crc(header, data, position)


def validate_batch(batch: Batch, data: Buffer, rules: RecordRules, now_ms: int, *, is_from_client: bool) -> int:
    """The greatest timestamp of its records, or `now_ms` for log append time. ApiError or RecordsRefused."""
    header = batch.header
    _validate_header(header, is_from_client=is_from_client)
    greatest = _validate_records(batch, data, rules, now_ms) if rules.looks_into_records else header.max_timestamp
    return now_ms if rules.timestamp_type is TimestampType.LOG_APPEND_TIME else greatest


def _validate_header(header: BatchHeader, *, is_from_client: bool) -> None:
    count, offsets = header.record_count, header.last_offset_delta + 1
    if header.magic != MAGIC:
        raise ApiError(Errors.INVALID_RECORD, f"magic {header.magic}")
    if is_from_client:
        if offsets <= 0:
            raise ApiError(Errors.INVALID_RECORD, f"an invalid offset range of {offsets}")
        if count <= 0:
            raise ApiError(Errors.INVALID_RECORD, f"a count of {count} records")
        if offsets != count:
            raise ApiError(Errors.INVALID_RECORD, f"{offsets} offsets for {count} records")
        if header.is_control:
            raise ApiError(Errors.INVALID_RECORD, "clients may not write control records")
        if header.has_producer_id and header.base_sequence < 0:
            raise ApiError(Errors.INVALID_RECORD, f"sequence {header.base_sequence} of an idempotent producer")
    if header.codec > CompressionType.ZSTD:
        raise ApiError(Errors.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression type {header.codec}")


def _validate_records(batch: Batch, data: Buffer, rules: RecordRules, now_ms: int) -> int:
    header, position = batch
    greatest = NO_TIMESTAMP
    refused: list[tuple[int, str]] = []
    error = Errors.INVALID_RECORD
    needs_key = rules.needs_key and not header.is_control
    lowest, highest = _timestamp_bounds(header, rules, now_ms)
    base = header.base_timestamp
    body = body_of(header, data, position)
    facts = glance(body, header.record_count)
    if (
        facts is not None
        and (facts.has_keys or not needs_key)
        and lowest <= base + facts.lowest_delta
        and base + facts.greatest_delta <= highest
    ):
        return max(NO_TIMESTAMP, base + facts.greatest_delta)
    for index, span in enumerate(spans(body, header.record_count)):
        check_headers(body, span)
        timestamp = base + span.timestamp_delta
        if timestamp > greatest:
            greatest = timestamp
        is_timely = timestamp == NO_TIMESTAMP or lowest <= timestamp <= highest
        if is_timely and span.offset_delta == index and not (needs_key and span.key_length < 0):
            continue
        refused.append((index, _why(span, index, needs_key=needs_key)))
        if not is_timely:
            error = Errors.INVALID_TIMESTAMP
        if len(refused) == RECORD_ERRORS_MAX:
            break
    if refused:
        raise RecordsRefused(error, tuple(refused))
    return greatest


def _timestamp_bounds(header: BatchHeader, rules: RecordRules, now_ms: int) -> tuple[int, int]:
    """A topic of log append time takes any timestamp that fits; a producer must not claim to be that topic.

    So does one without limits: how long ago a timestamp is wraps around in Java's arithmetic, and nothing is too old.
    """
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME and not header.is_control:
        raise RecordsRefused(Errors.INVALID_TIMESTAMP, ((0, "producers may not send log append time"),))
    has_limits = min(rules.timestamp_before_max_ms, rules.timestamp_after_max_ms) < TIMESTAMP_MAX
    if rules.timestamp_type is TimestampType.LOG_APPEND_TIME or header.is_control or not has_limits:
        return -TIMESTAMP_MAX - 1, TIMESTAMP_MAX
    lowest = max(now_ms - rules.timestamp_before_max_ms, -TIMESTAMP_MAX - 1)
    return lowest, min(now_ms + rules.timestamp_after_max_ms, TIMESTAMP_MAX)


def _why(span: RecordSpan, index: int, *, needs_key: bool) -> str:
    if needs_key and span.key_length < 0:
        return "a compacted topic takes no record without a key"
    if span.offset_delta != index:
        return f"offset delta {span.offset_delta} instead of {index}"
    return "the timestamp is out of range"
