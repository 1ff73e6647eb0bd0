"""A socket to a broker without any client library: how long a request takes that asks for nothing, and when a record
can be fetched at the earliest.

Requests are of versions that every broker since 0.11 takes: ApiVersions 0, Fetch 4. Plain text only.
"""

import socket
import struct
import time
from collections.abc import Iterator
from statistics import median
from struct import Struct
from typing import Final

API_VERSIONS: Final = 18
FETCH: Final = 1
ANSWER_S: Final = 30.0
FETCH_WAIT_MS: Final = 500
FETCH_BYTES_MAX: Final = 1 << 20
ANSWER_BYTES_MAX: Final = 64 << 20
ROUND_TRIPS: Final = 200

_HEADER: Final = Struct(">hhih")  # api key, version, correlation id, no client id
_FETCH: Final = Struct(">iiiibi")  # replica, wait, bytes min, bytes max, isolation, topics
_FETCHED: Final = Struct(">ihqqi")  # partition, error, high watermark, last stable offset, aborted transactions
_BATCH: Final = Struct(">qi")  # base offset, length of what follows
_LAST_OFFSET_DELTA: Final = Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23
_BATCH_HEADER_BYTES: Final = 61


class LabError(Exception):
    """A measurement that came to nothing; the text says why."""


class BareConnection:
    """One connection; one request at a time. OSError when it breaks."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def close(self) -> None:
        """Twice is harmless."""
        self._socket.close()

    def round_trip_ms(self) -> float:
        """The median of requests that ask for nothing but an answer."""
        times = []
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            self._ask(API_VERSIONS, 0, b"")
            times.append((time.perf_counter() - start) * 1_000)
        return median(times)

    def arrivals(self, topic: str, count: int) -> Iterator[tuple[range, float]]:
        """Offsets of partition 0 and the time when they came (wall-clock seconds), from offset 0 on until `count` are
        there. One item for each fetch, also for one in which nothing came.
        """
        offset = 0
        while offset < count:
            answer = self._ask(FETCH, 4, _fetch_request(topic, offset))
            now = time.time()
            end = _end_of(answer, topic, offset)
            yield range(offset, end), now
            offset = end

    def _ask(self, api_key: int, version: int, body: bytes) -> memoryview:
        self._correlation_id += 1
        frame = _HEADER.pack(api_key, version, self._correlation_id, -1) + body
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(self._read(4), "big")
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise LabError(f"an answer of {size} bytes: this is no Kafka, or it wants TLS")
        return self._read(size)[4:]

    def _read(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        filled = 0
        while filled < size:
            received = self._socket.recv_into(data[filled:])
            if not received:
                raise LabError("the broker closed the connection")
            filled += received
        return data


def _fetch_request(topic: str, offset: int) -> bytes:
    name = topic.encode()
    parts = _FETCH.pack(-1, FETCH_WAIT_MS, 1, FETCH_BYTES_MAX, 0, 1) + len(name).to_bytes(2, "big") + name
    return parts + struct.pack(">iiqi", 1, 0, offset, FETCH_BYTES_MAX)


def _end_of(answer: memoryview, topic: str, offset: int) -> int:
    """The offset behind the last whole batch of a fetch's answer. Throttle time, one topic, one partition."""
    position = 4 + 4 + 2 + len(topic.encode()) + 4
    _, error, _, _, aborted = _FETCHED.unpack_from(answer, position)
    if error:
        raise LabError(f"a fetch was answered with error {error}")
    position += _FETCHED.size + 16 * max(aborted, 0)
    size = int.from_bytes(answer[position : position + 4], "big", signed=True)
    position += 4
    stop = position + max(size, 0)
    while position + _BATCH_HEADER_BYTES <= stop:
        base, length = _BATCH.unpack_from(answer, position)
        if position + _BATCH.size + length > stop:
            break  # cut at the end: Kafka sends what fits
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(answer, position + _LAST_OFFSET_DELTA_AT)
        offset = max(offset, base + delta + 1)
        position += _BATCH.size + length
    return offset
