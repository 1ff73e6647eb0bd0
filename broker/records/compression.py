"""Kafka's codecs, and a limit on what a small batch may unfold to."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

import cramjam

from purgatory.errors import ApiError, Errors

DECOMPRESSED_BYTES_MAX: Final = 64 << 20  # far above any producer's batch.size, far below a broker's memory
FIRST_RATIO: Final = 8  # most batches unfold to less
FIRST_BYTES: Final = 64 << 10
BUFFER_FULL: Final = "write whole buffer"  # cramjam has one type of error for all
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"  # how Java frames snappy: magic, two versions, then blocks with their lengths
XERIAL_HEADER_BYTES: Final = 16


class CompressionType(IntEnum):
    """As in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(kind: CompressionType, data: bytes) -> bytes:
    """Compress a batch's records. Snappy without a frame, as librdkafka does; every client reads both."""
    match kind:
        case CompressionType.NONE:
            return data
        case CompressionType.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case CompressionType.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case CompressionType.LZ4:
            # Java's clients and brokers read no frame whose blocks depend on each other.
            frame = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
            frame.compress(data)
            return bytes(frame.finish())
        case CompressionType.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def decompress(kind: int, data: memoryview) -> memoryview:
    """A batch's records as they were. ApiError: unknown codec, not of this codec, or more than the limit."""
    match kind:
        case CompressionType.NONE:
            return data
        case CompressionType.GZIP:
            return _unfold(cramjam.gzip.decompress_into, data)
        case CompressionType.SNAPPY:
            return _snappy(data)
        case CompressionType.LZ4:
            return _unfold(cramjam.lz4.decompress_into, data)
        case CompressionType.ZSTD:
            return _unfold(cramjam.zstd.decompress_into, data)
    raise ApiError(Errors.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression type {kind}")


def _unfold(into: Callable[[Any, Any], int], data: memoryview) -> memoryview:
    """The codecs don't say how much will come, so a buffer that is too small is tried again eight times as large.
    Only then: what is no data of this codec must not cost the memory of the largest."""
    size = min(max(FIRST_BYTES, len(data) * FIRST_RATIO), DECOMPRESSED_BYTES_MAX)
    while True:
        buffer = bytearray(size)
        try:
            return memoryview(buffer)[: into(data, buffer)]
        except cramjam.DecompressionError as error:
            if size == DECOMPRESSED_BYTES_MAX or BUFFER_FULL not in str(error):
                raise _corrupt(str(error)) from error
            size = min(size * FIRST_RATIO, DECOMPRESSED_BYTES_MAX)


def _snappy(data: memoryview) -> memoryview:
    if bytes(data[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return memoryview(_snappy_block(data, DECOMPRESSED_BYTES_MAX))
    parts = bytearray()
    position = XERIAL_HEADER_BYTES
    while position < len(data):
        start = position + 4
        size = int.from_bytes(data[position:start], "big", signed=True)
        position = start + size
        if size < 0 or position > len(data):
            raise _corrupt("a block is longer than the data")
        parts += _snappy_block(data[start:position], DECOMPRESSED_BYTES_MAX - len(parts))
    return memoryview(parts)


def _snappy_block(data: memoryview, bytes_max: int) -> bytearray:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > bytes_max:
            raise _corrupt(f"{size} bytes")
        block = bytearray(size)
        del block[cramjam.snappy.decompress_raw_into(data, block) :]
    except cramjam.DecompressionError as error:
        raise _corrupt(str(error)) from error
    return block


def _corrupt(what: str) -> ApiError:
    return ApiError(Errors.CORRUPT_MESSAGE, f"records can't be decompressed to {DECOMPRESSED_BYTES_MAX} bytes: {what}")
