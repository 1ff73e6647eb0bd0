"""Record batches of magic 2: their headers, finding them in bytes, stamping them with what only the leader knows.

     0  base offset        8 |
     8  batch length       4 | of what follows this field
    12  leader epoch       4 |
    16  magic              1 |
    17  CRC-32C            4 | of all that follows this field
    21  attributes         2 | 0-2 codec, 3 log append time, 4 transactional, 5 control, 6 delete horizon set
    23  last offset delta  4 |
    27  base timestamp     8 | or the delete horizon, in ms
    35  max timestamp      8 |
    43  producer id        8 |
    51  producer epoch     2 |
    53  base sequence      4 |
    57  record count       4 |
    61  records              | all of them compressed as one

Base offset and leader epoch lie outside the CRC: the leader sets them without touching anything else.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from purgatory.errors import ApiError, Errors

HEADER: Final = Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
LOG_OVERHEAD: Final = 12  # base offset and batch length
MAGIC: Final = 2
MAGIC_END: Final = 17  # with fewer bytes there is nothing to be seen of a batch
LEGACY_RECORD_BYTES_MIN: Final = 14  # the smallest batch length of any magic
CRC_START: Final = 21
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
SEQUENCE_MAX: Final = (1 << 31) - 1

_OFFSET = Struct(">q")
_INT = Struct(">i")
_UNSIGNED = Struct(">I")
_SHORT = Struct(">h")

Buffer = bytes | bytearray | memoryview


class TimestampType(IntEnum):
    """Origin of a record's timestamp: when it was made, or when the log took it."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """A batch's header as it stands in the bytes."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Also that of a record that compaction has removed."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """The compression type's number, which may be one that doesn't exist."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Origin of the batch's timestamps."""
        is_append_time = self.attributes & LOG_APPEND_TIME
        return TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it holds an end marker and no records of users."""
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop its tombstones or marker, if it has been through once."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent producer sent it."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """After the greatest int comes 0."""
        return increment_sequence(self.base_sequence, self.last_offset_delta)


class Batch(NamedTuple):
    """A whole batch within bytes: its header and where it begins."""

    header: BatchHeader
    position: int


def increment_sequence(sequence: int, count: int) -> int:
    """Sequences go round within an int's positive half."""
    return sequence if sequence == NO_SEQUENCE else (sequence + count) % (SEQUENCE_MAX + 1)


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, where 61 bytes must be."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


def whole_batches(data: Buffer, batch_bytes_max: int = SEQUENCE_MAX) -> Iterator[Batch]:
    """The batches in `data`, without a last one that is cut. CORRUPT_MESSAGE: what should be a batch can't be one;
    INVALID_RECORD: one of an older magic."""
    position, end = 0, len(data)
    while end - position >= MAGIC_END:
        length = _INT.unpack_from(data, position + 8)[0]
        magic = data[position + 16]
        if length < LEGACY_RECORD_BYTES_MIN or length > batch_bytes_max:
            raise ApiError(Errors.CORRUPT_MESSAGE, f"a batch of {length} bytes")
        if magic > MAGIC:
            raise ApiError(Errors.CORRUPT_MESSAGE, f"a batch of magic {magic}")
        if position + LOG_OVERHEAD + length > end:
            return
        if magic < MAGIC:
            raise ApiError(Errors.INVALID_RECORD, f"a batch of magic {magic}, which is no longer taken")
        if length + LOG_OVERHEAD < HEADER_BYTES:
            raise ApiError(Errors.CORRUPT_MESSAGE, f"a batch of {length} bytes")
        yield Batch(read_header(data, position), position)
        position += LOG_OVERHEAD + length


def check_crc(header: BatchHeader, data: Buffer, position: int = 0) -> None:
    """CORRUPT_MESSAGE unless the bytes are those that were sent."""
    found = crc32c(memoryview(data)[position + CRC_START : position + header.size])
    if found != header.crc:
        raise ApiError(Errors.CORRUPT_MESSAGE, f"CRC {found:08x}, the batch says {header.crc:08x}")


def assign(data: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write what the leader decides, outside the CRC."""
    _OFFSET.pack_into(data, position, base_offset)
    _INT.pack_into(data, position + LOG_OVERHEAD, leader_epoch)


def set_max_timestamp(data: bytearray | memoryview, position: int, kind: TimestampType, max_timestamp: int) -> None:
    """Write the greatest timestamp, or for log append time that of all records. Only a change costs a new CRC."""
    header = read_header(data, position)
    if header.timestamp_type is kind and header.max_timestamp == max_timestamp:
        return
    is_append_time = LOG_APPEND_TIME if kind is TimestampType.LOG_APPEND_TIME else 0
    _SHORT.pack_into(data, position + 21, header.attributes & ~LOG_APPEND_TIME | is_append_time)
    _OFFSET.pack_into(data, position + 35, max_timestamp)
    seal(data, position, header.size)


def seal(data: bytearray | memoryview, position: int, size: int) -> None:
    """Write the CRC of the batch of `size` bytes."""
    crc = crc32c(memoryview(data)[position + CRC_START : position + size])
    _UNSIGNED.pack_into(data, position + 17, crc)


def encode_batch(header: BatchHeader, body: bytes) -> bytearray:
    """A batch of this header and (compressed) body; length and CRC are computed."""
    length = HEADER_BYTES - LOG_OVERHEAD + len(body)
    batch = bytearray(HEADER.pack(*header._replace(batch_length=length, magic=MAGIC, crc=0)))
    batch += body
    seal(batch, 0, len(batch))
    return batch
