"""Batches that a leader refuses, row by row; and what librdkafka really sends."""

import socket
from struct import pack, unpack
from typing import Any

import cramjam
import pytest
from confluent_kafka import Producer as RdKafka

from broker.records.batch_validation import RecordRules, RecordsRefused, analyze_batch, check_produced, validate_batch
from broker.records.compression import DECOMPRESSED_BYTES_MAX, FIRST_BYTES, CompressionType, compress, decompress
from broker.records.control_records import EndMarker, build_end_marker, read_end_marker
from broker.records.record_batch import (
    CONTROL,
    LOG_APPEND_TIME,
    SEQUENCE_MAX,
    TimestampType,
    encode_batch,
    increment_sequence,
    read_header,
    whole_batches,
)
from broker.records.records import TIMESTAMP_MAX, Record, build_batch, encode_records, read_records
from purgatory.errors import ApiError, Errors

NOW_MS = 1_700_000_000_000
RULES = RecordRules()


def batch(count=3, codec=CompressionType.NONE, key=b"k", **changed):
    data = build_batch([Record(index, NOW_MS + index, key, b"value", ()) for index in range(count)], codec)
    if changed:
        data = encode_batch(read_header(data)._replace(**changed), bytes(data[61:]))
    return data


def take(data, rules=RULES, *, is_from_client=True):
    check_produced(data, 9)
    [found] = whole_batches(data)
    analyze_batch(found, data, rules, is_from_client=is_from_client)
    return validate_batch(found, data, rules, NOW_MS, is_from_client=is_from_client)


def refusal(data, rules=RULES):
    with pytest.raises(ApiError) as refused:
        take(data, rules)
    return refused.value.error


def test_a_good_batch_is_taken():
    assert take(batch()) == NOW_MS + 2


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Errors.INVALID_RECORD),
        (batch() + batch(), Errors.INVALID_RECORD),
        (batch()[:-1], Errors.INVALID_RECORD),
        (batch() + bytes(17), Errors.CORRUPT_MESSAGE),
        (batch(base_offset=1), Errors.INVALID_RECORD),
        (batch(last_offset_delta=-1), Errors.INVALID_RECORD),
        (batch(record_count=0), Errors.INVALID_RECORD),
        (batch(record_count=2), Errors.INVALID_RECORD),
        (batch(record_count=4, last_offset_delta=3), Errors.INVALID_RECORD),
        (batch(record_count=2, last_offset_delta=1), Errors.INVALID_RECORD),
        (batch(attributes=CONTROL), Errors.INVALID_RECORD),
        (batch(producer_id=1, producer_epoch=0), Errors.INVALID_RECORD),
        (batch(attributes=LOG_APPEND_TIME), Errors.INVALID_TIMESTAMP),
        (batch(attributes=5), Errors.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(attributes=CompressionType.ZSTD), Errors.CORRUPT_MESSAGE),
        (batch(attributes=CompressionType.SNAPPY), Errors.CORRUPT_MESSAGE),
        (batch(base_timestamp=(1 << 63) - 1), Errors.INVALID_TIMESTAMP),
    ],
)
def test_refused(data, error):
    assert refusal(data) is error


def test_up_to_sixteen_bytes_of_rubbish_are_no_batch():
    assert take(batch() + b"\xff" * 16) == NOW_MS + 2


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_another_magic_is_refused(magic):
    data = batch()
    data[16] = magic
    assert refusal(data) is (Errors.CORRUPT_MESSAGE if magic > 2 else Errors.INVALID_RECORD)


def test_a_flipped_bit_is_corrupt():
    data = batch()
    data[-1] ^= 1
    assert refusal(data) is Errors.CORRUPT_MESSAGE


def test_too_large_by_a_byte():
    size = len(batch())
    assert refusal(batch(), RecordRules(max_message_bytes=size - 1)) is Errors.MESSAGE_TOO_LARGE
    assert take(batch(), RecordRules(max_message_bytes=size)) == NOW_MS + 2


def test_zstd_needs_version_7():
    data = batch(codec=CompressionType.ZSTD)
    check_produced(data, 7)
    with pytest.raises(ApiError) as refused:
        check_produced(data, 6)
    assert refused.value.error is Errors.UNSUPPORTED_COMPRESSION_TYPE


def test_timestamps_out_of_range_name_their_records():
    rules = RecordRules(timestamp_after_max_ms=0)
    with pytest.raises(RecordsRefused) as refused:
        take(batch(), rules)
    assert refused.value.error is Errors.INVALID_TIMESTAMP
    assert [index for index, _ in refused.value.record_errors] == [1, 2]
    assert take(batch(), RecordRules(timestamp_after_max_ms=0, timestamp_type=TimestampType.LOG_APPEND_TIME)) == NOW_MS


@pytest.mark.parametrize("timestamp", [-TIMESTAMP_MAX - 1, -2, NOW_MS + 3_600_001, TIMESTAMP_MAX])
def test_without_limits_a_timestamp_may_be_any(timestamp: int):
    data = build_batch([Record(0, timestamp, b"k", b"value")])
    assert take(data, RecordRules(timestamp_after_max_ms=TIMESTAMP_MAX)) == max(-1, timestamp)
    if timestamp != -2:
        assert refusal(data) is Errors.INVALID_TIMESTAMP


def test_a_compacted_topic_needs_keys():
    with pytest.raises(RecordsRefused) as refused:
        take(batch(key=None), RecordRules(needs_key=True))
    assert len(refused.value.record_errors) == 3


def test_records_are_not_looked_at_where_that_is_switched_off():
    assert take(batch(key=None), RecordRules(needs_key=True, looks_into_records=False)) == NOW_MS + 2


def test_offsets_within_a_batch_go_up_by_one():
    records = [Record(0, NOW_MS, b"", b""), Record(2, NOW_MS, b"", b"")]
    data = encode_batch(read_header(batch(2)), encode_records(records, 0, NOW_MS))
    assert refusal(data) is Errors.INVALID_RECORD


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_a_bomb_is_refused(codec):
    pack_of = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}[codec]
    bomb = bytes(pack_of.compress(bytes(DECOMPRESSED_BYTES_MAX + 1)))
    with pytest.raises(ApiError) as refused:
        decompress(codec, memoryview(bomb))
    assert refused.value.error is Errors.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CompressionType)
def test_what_unfolds_to_much_more_is_read(codec):
    data = bytes(5_000_000)
    assert bytes(decompress(codec, memoryview(compress(codec, data)))) == data


def test_rubbish_costs_no_large_buffer(monkeypatch):
    made: list[int] = []
    monkeypatch.setattr(
        "broker.records.compression.bytearray", lambda size: made.append(size) or bytearray(size), raising=False
    )
    for codec in (CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD):
        good = compress(codec, bytes(range(256)) * 40)
        for bad in (b"", b"rubbish", good[:-1]):
            with pytest.raises(ApiError):
                decompress(codec, memoryview(bad))
    assert max(made) == FIRST_BYTES


def test_a_snappy_bomb_is_refused_by_what_it_claims():
    with pytest.raises(ApiError):
        decompress(CompressionType.SNAPPY, memoryview(b"\xff\xff\xff\xff\x0f" + b"\x00"))


def test_a_record_without_a_count_of_headers_is_refused():
    data = encode_batch(read_header(batch(1)), bytes([10, 0, 0, 0, 1, 1]))
    assert refusal(data) is Errors.INVALID_RECORD


def test_sequences_go_round():
    assert increment_sequence(SEQUENCE_MAX, 1) == 0
    assert read_header(batch(base_sequence=SEQUENCE_MAX - 1)).last_sequence == 0


def test_an_end_marker_says_what_it_ends():
    for is_aborted in (True, False):
        data = build_end_marker(7, 3, EndMarker(is_aborted, 5), NOW_MS)
        header = read_header(data)
        assert (header.is_control, header.is_transactional, header.producer_id) == (True, True, 7)
        assert read_end_marker(header, data) == EndMarker(is_aborted, 5)
        assert take(data, is_from_client=False) == NOW_MS
        assert refusal(data) is Errors.INVALID_RECORD


class RdKafkaBytes:
    """librdkafka's producer on its own mock cluster, which keeps batches as they were sent."""

    def __init__(self, **settings):
        self.producer = RdKafka(
            {"test.mock.num.brokers": 1, "linger.ms": 20, "bootstrap.servers": "mock", "log_level": 0, **settings}
        )

    def produce(self, records):
        for key, value, headers in records:
            self.producer.produce("topic", value, key, partition=0, headers=headers)
        assert self.producer.flush(30) == 0

    def fetch(self):
        """A Fetch request of version 4, and the records in its answer."""
        [broker] = self.producer.list_topics(timeout=60).brokers.values()
        body = pack(">hhih", 1, 4, 7, -1) + pack(">iiiib", -1, 1000, 1, 1 << 20, 0)
        body += pack(">ih5s", 1, 5, b"topic") + pack(">iiqi", 1, 0, 0, 1 << 20)
        with socket.create_connection((broker.host, broker.port), timeout=60) as connection:
            connection.sendall(pack(">i", len(body)) + body)
            stream = connection.makefile("rb")
            answer = stream.read(unpack(">i", stream.read(4))[0])
        at = 4 + 4 + 4 + 2 + 5 + 4  # correlation id, throttle time, topics, name, partitions
        _, error, _, _, aborted = unpack(">ihqqi", answer[at : at + 26])
        assert error == 0
        at += 26 + max(aborted, 0) * 16
        [size] = unpack(">i", answer[at : at + 4])
        return bytearray(answer[at + 4 : at + 4 + size])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_sends(codec):
    sent: list[Any] = [(b"k%d" % index, b"value " * 20, [("h", b"1"), ("none", None)]) for index in range(50)]
    sent.append((None, None, []))
    world = RdKafkaBytes(**{"compression.type": codec, "enable.idempotence": True})
    world.produce(sent)
    data = world.fetch()
    found, kinds = [], set()
    for header, position in whole_batches(data):
        part = data[position : position + header.size]
        part[:8] = bytes(8)
        assert take(part, RecordRules(timestamp_after_max_ms=NOW_MS)) == header.max_timestamp
        kinds.add(header.codec)
        assert header.producer_id >= 0
        found += [(one.key, one.value, one.headers) for one in read_records(header, data, position)]
    assert found == [
        (key, value, tuple((name.encode(), data) for name, data in headers)) for key, value, headers in sent
    ]
    assert kinds >= {CompressionType[codec.upper()]}
