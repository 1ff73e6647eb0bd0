"""Records that no client would write: a produce request by hand, for what can reach a topic from elsewhere.

record batch = base offset int64 | length int32 | leader epoch int32 | magic 2 | crc32c of what follows
             | attributes int16 | last delta int32 | first, max timestamp int64
             | producer id int64 | epoch int16 | sequence int32 | count int32 | records
record       = length varint | attributes int8 | timestamp delta, offset delta varint
             | key | value | header count varint | (name, value) ...
key, value, name = length varint (-1: null) | bytes
"""

import socket
import struct
import time
from collections.abc import Sequence

_PRODUCE = 0
_VERSION = 3
_TIMEOUT_S = 60.0


def produce_raw(
    bootstrap: str,
    topic: str,
    value: bytes | None,
    headers: Sequence[tuple[bytes, bytes | None]],
    timestamp_ms: int | None = None,
    key: bytes | None = None,
) -> int:
    """Write one record with header names of any bytes and any timestamp (-1: none) to partition 0; returns its offset.

    Without a timestamp it is now.
    """
    batch = _batch(_record(key, value, headers), int(time.time() * 1000) if timestamp_ms is None else timestamp_ms)
    name = _string(topic.encode())
    body = struct.pack(">hhii", -1, -1, int(_TIMEOUT_S * 1000), 1) + name
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    request = struct.pack(">hhi", _PRODUCE, _VERSION, 1) + _string(b"raw") + body
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            answer = stream.read(int.from_bytes(stream.read(4), "big"))
    # correlation id, one topic with its name, one partition: number, error, offset
    error, offset = struct.unpack_from(">hq", answer, 4 + 4 + len(name) + 4 + 4)
    if error:
        raise ValueError(f"the broker refused the record with error {error}")
    return int(offset)


def _record(key: bytes | None, value: bytes | None, headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    body = b"\0" + _varint(0) + _varint(0) + _nullable(key) + _nullable(value) + _varint(len(headers))
    for name, content in headers:
        body += _nullable(name) + _nullable(content)
    return _varint(len(body)) + body


def _batch(records: bytes, timestamp_ms: int) -> bytes:
    checked = struct.pack(">hiqqqhii", 0, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1) + records
    tail = struct.pack(">ibI", 0, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(tail)) + tail


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _nullable(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 31)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
