"""The frame round a ledger block: whose it is, which version, and how it is packed.

+------+---------+---------+-------------------------------------------------------------------+
| "TL" | version | packing | body; packing 0: as it is, 1: one zstd frame that states its size |
|  2   | u8 = 3  |   u8    |                                                                   |
+------+---------+---------+-------------------------------------------------------------------+
"""

import threading
from typing import Final

import zstandard

BODY_BYTES_MAX: Final = 16 << 20
"""A body's size unpacked. A ledger record of a few kilobytes must not unpack to gigabytes."""

_MAGIC: Final = b"TL"
_VERSION: Final = 3
_PLAIN: Final = 0
_ZSTD: Final = 1
_HEAD_BYTES: Final = 4
_PLAIN_HEAD: Final = _MAGIC + bytes((_VERSION, _PLAIN))
_ZSTD_HEAD: Final = _MAGIC + bytes((_VERSION, _ZSTD))
_PLAIN_BYTES_MAX: Final = 384  # below, compressing takes as long as all the rest and saves 100 bytes
_LEVEL: Final = 1  # higher levels win under 1 % on columns


class LedgerFormatError(Exception):
    """Bytes or text that is no ledger block or commit of ours; `reason` says what is wrong with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NewerLedgerFormatError(LedgerFormatError):
    """Written by a newer tickover. Going on without it would lose settlements: stop, and upgrade."""


class _Compression(threading.local):
    # Making a compressor costs more than using it, and one must not be used by two threads at once.
    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_compression: Final = _Compression()


def pack_frame(body: bytes) -> bytes:
    """A ledger record's value. Raises ValueError when the body is larger than any reader would unpack."""
    if len(body) <= _PLAIN_BYTES_MAX:
        return _PLAIN_HEAD + body
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"a block of {len(body)} bytes, more than {BODY_BYTES_MAX}")
    return _ZSTD_HEAD + _compression.compress(body)


def unpack_frame(data: bytes | None) -> tuple[int, bytes]:
    """Version and body. Raises LedgerFormatError for what is no frame of this version or an earlier one."""
    if data is None or len(data) < _HEAD_BYTES or data[:2] != _MAGIC:
        raise LedgerFormatError("no ledger block")
    version, packing = data[2], data[3]
    if version > _VERSION:
        raise NewerLedgerFormatError(
            f"a ledger block of version {version} of a newer tickover; this one reads {_VERSION}: run the newer one"
        )
    if version < 1 or packing not in (_PLAIN, _ZSTD):
        raise LedgerFormatError(f"unknown version {version} or packing {packing}")
    body = data[_HEAD_BYTES:]
    if packing == _PLAIN:
        return version, body
    try:
        # The frame's own word for its size is what would be allocated: believe it only up to the limit.
        if not 0 <= zstandard.frame_content_size(body) <= BODY_BYTES_MAX:
            raise LedgerFormatError("an unpacked size that is unknown or over the limit")
        return version, _compression.decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise LedgerFormatError(f"not zstd: {error}") from error
