"""Records within a batch: reading, checking and writing them.

    length         varint   of what follows
    attributes     1        unused
    timestamp      varlong  minus the batch's base timestamp
    offset         varint   minus the batch's base offset
    key            varint length (negative: null), bytes
    value          the same
    headers        varint count, of each: varint length, bytes; varint length (negative: null), bytes

Varints are zigzag-coded, seven bits a byte, lowest first.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.records.compression import CompressionType, compress, decompress
from broker.records.record_batch import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    TimestampType,
    encode_batch,
)
from purgatory.errors import ApiError, Errors

VARINT_BITS: Final = 32
VARLONG_BITS: Final = 64
TIMESTAMP_MAX: Final = (1 << 63) - 1

Headers = Sequence[tuple[bytes, bytes | None]]


class Record(NamedTuple):
    """One record. The timestamp is in ms, -1 if unknown."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class RecordSpan(NamedTuple):
    """Where a record stands in a batch's (decompressed) body, without its headers. Lengths below 0 mean null."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int
    value_start: int
    value_length: int
    headers_start: int


def body_of(header: BatchHeader, data: Buffer, position: int = 0) -> memoryview:
    """A batch's records, decompressed. ApiError as of `decompress`."""
    body = memoryview(data)[position + HEADER_BYTES : position + header.size]
    return decompress(header.codec, body)


def spans(body: Buffer, count: int) -> Iterator[RecordSpan]:
    """All records of a body. INVALID_RECORD where it is not `count` records and nothing else."""
    position, end = 0, len(body)
    for _ in range(count):
        try:
            span = _span(body, position)
        except IndexError:
            raise _invalid("a record is cut") from None
        if span.end > end:
            raise _invalid("a record is longer than its batch")
        position = span.end
        yield span
    if position != end:
        raise _invalid("more bytes than records")


def read_records(header: BatchHeader, data: Buffer, position: int = 0) -> Iterator[Record]:
    """The records of a batch, as consumers see them. ApiError as of `spans` and `body_of`."""
    body = bytes(body_of(header, data, position))
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    for span in spans(body, header.record_count):
        timestamp = header.max_timestamp if is_append_time else header.base_timestamp + span.timestamp_delta
        key = None if span.key_length < 0 else body[span.key_start : span.key_start + span.key_length]
        value = None if span.value_length < 0 else body[span.value_start : span.value_start + span.value_length]
        yield Record(header.base_offset + span.offset_delta, timestamp, key, value, _headers(body, span))


def check_headers(body: Buffer, span: RecordSpan) -> None:
    """INVALID_RECORD unless a record's headers fill the rest of it."""
    if body[span.headers_start] == 0 and span.headers_start + 1 == span.end:
        return
    _headers(body, span)


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytes:
    """A body that is not compressed yet."""
    out = bytearray()
    for record in records:
        inner = bytearray(1)
        _put_varint(inner, record.timestamp - base_timestamp)
        _put_varint(inner, record.offset - base_offset)
        _put_bytes(inner, record.key)
        _put_bytes(inner, record.value)
        _put_varint(inner, len(record.headers))
        for name, value in record.headers:
            _put_bytes(inner, name)
            _put_bytes(inner, value)
        _put_varint(out, len(inner))
        out += inner
    return bytes(out)


class Producer(NamedTuple):
    """Producer of a batch, if it is idempotent."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE


def build_batch(
    records: Sequence[Record],
    codec: CompressionType = CompressionType.NONE,
    producer: Producer | None = None,
    attributes: int = 0,
) -> bytearray:
    """A batch of these records, of which there must be one; further `attributes` as in a header."""
    first = records[0]
    timestamps = [record.timestamp for record in records]
    body = compress(codec, encode_records(records, first.offset, first.timestamp))
    by = producer or Producer()
    header = BatchHeader(
        base_offset=first.offset,
        batch_length=0,
        partition_leader_epoch=-1,
        magic=0,
        crc=0,
        attributes=attributes | codec,
        last_offset_delta=records[-1].offset - first.offset,
        base_timestamp=first.timestamp,
        max_timestamp=max(timestamps, default=NO_TIMESTAMP),
        producer_id=by.producer_id,
        producer_epoch=by.producer_epoch,
        base_sequence=by.base_sequence,
        record_count=len(records),
    )
    return encode_batch(header, body)


def _span(body: Buffer, start: int) -> RecordSpan:
    """Dense, with one look at the first byte of each number: a produce request pays for it per record."""
    length = body[start]
    position = start + 1
    if length < 0x80:
        length = (length >> 1) ^ -(length & 1)
    else:
        length, position = read_varint(body, start, VARINT_BITS)
    end = position + length
    position += 1  # attributes
    timestamp, position = read_varint(body, position, VARLONG_BITS)
    offset, position = read_varint(body, position, VARINT_BITS)
    key_length, key_start = read_varint(body, position, VARINT_BITS)
    position = key_start + key_length if key_length > 0 else key_start
    value_length, value_start = read_varint(body, position, VARINT_BITS)
    position = value_start + value_length if value_length > 0 else value_start
    if position >= end:
        raise _invalid("a record's parts are longer than the record")
    return RecordSpan(start, end, timestamp, offset, key_start, key_length, value_start, value_length, position)


def _headers(body: Buffer, span: RecordSpan) -> Headers:
    try:
        count, position = read_varint(body, span.headers_start, VARINT_BITS)
        if count < 0 or count > span.end - position:
            raise _invalid(f"{count} headers")
        headers = []
        for _ in range(count):
            length, start = read_varint(body, position, VARINT_BITS)
            if length < 0:
                raise _invalid("a header without a name")
            name = bytes(body[start : start + length])
            length, position = read_varint(body, start + length, VARINT_BITS)
            value = None if length < 0 else bytes(body[position : position + length])
            position += max(length, 0)
            headers.append((name, value))
            if position > span.end:
                break
    except IndexError:
        raise _invalid("a header is cut") from None
    if position != span.end:
        raise _invalid("a record is not as long as its parts")
    return tuple(headers)


def read_varint(body: Buffer, position: int, bits: int) -> tuple[int, int]:
    """A number and where it ends. IndexError at the end of the body, INVALID_RECORD if it is too long."""
    byte = body[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    result = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if shift >= bits:
            raise _invalid("a number is too long")
        byte = body[position]
        position += 1
        result |= (byte & 0x7F) << shift
        shift += 7
    return (result >> 1) ^ -(result & 1), position


def _put_varint(out: bytearray, number: int) -> None:
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        _put_varint(out, -1)
        return
    _put_varint(out, len(data))
    out += data


def _invalid(what: str) -> ApiError:
    return ApiError(Errors.INVALID_RECORD, what)
