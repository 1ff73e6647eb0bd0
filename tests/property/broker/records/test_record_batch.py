"""Batches as kafka-python writes and reads them, as we do, and as nobody should."""

import gzip
import warnings
from struct import pack
from typing import Any

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.records.batch_validation import RecordRules, analyze_batch, check_produced, validate_batch
from broker.records.compression import XERIAL_MAGIC, CompressionType
from broker.records.record_batch import HEADER_BYTES, TimestampType, assign, check_crc, read_header, seal, whole_batches
from broker.records.record_batch import set_max_timestamp as stamp
from broker.records.record_glance import glance
from broker.records.records import Producer, Record, build_batch, check_headers, read_records, spans
from purgatory.errors import ApiError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it reads its own files in a way that Python 3.11 calls old
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

NOW_MS = 1_700_000_000_000
RULES = RecordRules()

blobs = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8).map(str.encode), blobs), max_size=3).map(tuple)
times = st.integers(NOW_MS - 100_000, NOW_MS + 100_000) | st.just(0)
contents = st.lists(st.tuples(times, blobs, blobs, headers), min_size=1, max_size=12)
codecs = st.sampled_from(CompressionType)


def xerial(data: bytes) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 50])) for at in range(0, len(data), 50)]
    return XERIAL_MAGIC + pack(">ii", 1, 1) + b"".join(pack(">i", len(block)) + block for block in blocks)


COMPRESS: dict[CompressionType, Any] = {
    CompressionType.NONE: bytes,
    CompressionType.GZIP: gzip.compress,
    CompressionType.SNAPPY: xerial,
    CompressionType.LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
    CompressionType.ZSTD: zstandard.ZstdCompressor().compress,
}


def foreign(content: Any, codec: CompressionType = CompressionType.NONE, producer: Producer | None = None) -> bytearray:
    """A batch by kafka-python, its body compressed by other libraries than the broker's where there are any."""
    by = producer or Producer()
    builder = DefaultRecordBatchBuilder(
        2, 0, producer is not None, by.producer_id, by.producer_epoch, by.base_sequence, 1 << 24
    )
    for index, (timestamp, key, value, own) in enumerate(content):
        assert builder.append(index, timestamp, key, value, [(name.decode(), data) for name, data in own])
    data = bytearray(builder.build())
    body = COMPRESS[codec](bytes(data[HEADER_BYTES:]))
    data[HEADER_BYTES:] = body
    data[8:12] = pack(">i", len(data) - 12)
    data[22] |= codec
    seal(data, 0, len(data))
    return data


def expected(content: Any, base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + index, *parts) for index, parts in enumerate(content)]


def take(data: Any, rules: RecordRules = RULES) -> int:
    check_produced(data, 9)
    [batch] = whole_batches(data)
    analyze_batch(batch, data, rules, is_from_client=True)
    return validate_batch(batch, data, rules, NOW_MS, is_from_client=True)


@settings(deadline=None)
@given(contents, codecs)
def test_what_another_encoder_writes_is_taken_and_read(content, codec):
    data = foreign(content, codec)
    rules = RecordRules(timestamp_before_max_ms=NOW_MS)
    assert take(data, rules) == max(timestamp for timestamp, *_ in content)
    assert list(read_records(read_header(data), data)) == expected(content)


@settings(deadline=None)
@given(contents, codecs)
def test_what_we_write_another_decoder_reads(content, codec):
    if codec in (CompressionType.LZ4, CompressionType.SNAPPY):  # kafka-python has none of its own
        codec = CompressionType.GZIP
    data = build_batch(expected(content), codec, Producer(7, 2, 5))
    theirs = DefaultRecordBatch(bytes(data))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (7, 2, 5)
    found = [
        Record(one.offset, one.timestamp, one.key, one.value, tuple((n.encode(), v) for n, v in one.headers))
        for one in theirs
    ]
    assert found == expected(content)


@settings(deadline=None)
@given(contents, codecs, st.integers(0, 1 << 40), st.integers(0, 1 << 30))
def test_stamping_moves_offsets_and_leaves_the_crc_right(content, codec, base_offset, epoch):
    data = foreign(content, codec)
    body = bytes(data[HEADER_BYTES:])
    assign(data, 0, base_offset, epoch)
    check_crc(read_header(data), data)
    assert list(read_records(read_header(data), data)) == expected(content, base_offset)
    stamp(data, 0, TimestampType.LOG_APPEND_TIME, NOW_MS)
    check_crc(read_header(data), data)
    assert {record.timestamp for record in read_records(read_header(data), data)} == {NOW_MS}
    assert read_header(data).codec == codec
    assert bytes(data[HEADER_BYTES:]) == body
    assert DefaultRecordBatch(bytes(data)).validate_crc()


@settings(deadline=None)
@given(contents, codecs, st.data())
def test_a_changed_byte_is_noticed(content, codec, data):
    batch = foreign(content, codec)
    place = data.draw(st.integers(16, len(batch) - 1))
    batch[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ApiError):
        take(batch, RecordRules(timestamp_before_max_ms=NOW_MS))


@settings(deadline=None)
@given(contents, codecs, st.data())
def test_lies_under_a_right_crc_are_read_or_refused(content, codec, data):
    batch = foreign(content, codec)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(21, len(batch) - 1))
        batch[place] = data.draw(st.integers(0, 255))
    seal(batch, 0, len(batch))
    try:
        take(batch)
    except ApiError:
        return
    list(read_records(read_header(batch), batch))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data):
    with pytest.raises(ApiError):
        take(data)


@settings(deadline=None)
@given(contents, st.data())
def test_a_body_cut_or_lengthened_under_a_right_crc_is_refused(content, data):
    batch = foreign(content)
    if data.draw(st.booleans()):
        batch += data.draw(st.binary(min_size=1, max_size=5))
    else:
        del batch[-data.draw(st.integers(1, len(batch) - HEADER_BYTES)) :]
    batch[8:12] = pack(">i", len(batch) - 12)
    seal(batch, 0, len(batch))
    with pytest.raises(ApiError):
        take(batch)


@settings(deadline=None)
@given(st.lists(contents, min_size=1, max_size=4), st.data())
def test_whole_batches_of_any_cut(several, data):
    parts = [bytes(foreign(content)) for content in several]
    joined = b"".join(parts)
    cut = data.draw(st.integers(0, len(joined)))
    found = list(whole_batches(joined[:cut]))
    ends = [sum(map(len, parts[: index + 1])) for index in range(len(parts))]
    assert [batch.position + batch.header.size for batch in found] == [end for end in ends if end <= cut]


@settings(deadline=None)
@given(contents, st.data())
def test_a_glance_says_no_more_than_a_look(content, data):
    """Where a glance finds a body in order, the records are read, and are what it says."""
    content = [(*parts[:3], parts[3] if data.draw(st.integers(0, 9)) == 0 else ()) for parts in content]
    body = foreign(content)[HEADER_BYTES:]
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    facts = glance(body, len(content))
    if facts is None:
        return
    found = list(spans(body, len(content)))
    for span in found:
        check_headers(body, span)
    deltas = [span.timestamp_delta for span in found]
    assert [span.offset_delta for span in found] == list(range(len(content)))
    assert facts == (min(deltas), max(deltas), all(span.key_length >= 0 for span in found))


def test_a_glance_is_enough_for_plain_records():
    for size in (0, 10, 63, 64, 1000, 20_000):
        content = [(NOW_MS + index * 7, b"k" if index % 2 else None, bytes(size), ()) for index in range(200)]
        assert glance(foreign(content)[HEADER_BYTES:], 200) == (0, 199 * 7, False)
        keyed = [(NOW_MS - index, b"key", None, ()) for index in range(9000)]
    assert glance(foreign(keyed)[HEADER_BYTES:], 9000) == (-8999, 0, True)
