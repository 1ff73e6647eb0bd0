"""Chunks: the unit in which held records rest in Redis, up to 512 of one slot, as columns, compressed.

Records of one topic look alike, and column beside column they compress to a third of what they take one by
one. A chunk is a *blob* and a *header* (`keys.py`) that says which positions it covers. The blob is one
zstd frame, and where `redis.signing_key_file` is set its signature (`signing.py`, 32 bytes). In the frame is this, all
integers little endian, the columns those of `ledger/columns.py`:

    0         4           8
    +---------+-----------+---------------------------+-----------------------------+
    | count   | columns   | columns                   | bytes                       |
    | u32     | size u32  | (columns size bytes)      | of all byte columns, joined |
    +---------+-----------+---------------------------+-----------------------------+

    columns   due, offset                             numbers, sorted by (due, offset)
              target partition, attempt,
              first failure, expires at, size         numbers
              target, policy, dead letter             words
              key, value, origin                      byte columns: values stored u32, 1 if all are the same;
                                                      numbers, the length of each, -1 for null
              headers, then trailer, each:
                  shapes u32, names per shape         numbers; a shape is a record's header names in order
                  names                               words: those of all shapes, joined
                  shape of each record                numbers
                  for each shape, for each name       byte column of the records that have this shape
              source                                  numbers; only when one of the records was moved

The same records give the same bytes, so what is written twice is written to the same place.
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from operator import lt
from typing import Any, Final, NamedTuple

import xxhash
import zstandard

from policies.fields import TOPIC_LENGTH_MAX, is_topic
from policies.headers import OFFSET_MAX
from policies.table import DEAD_LETTER_SUFFIX
from sidecar.ledger.columns import ColumnReader, pack_numbers, pack_words
from sidecar.ledger.frame import LedgerFormatError
from sidecar.model.record import NO_HEADERS, Headers, Held, Position, as_held
from sidecar.overflow.signing import CHUNK, SIGNATURE_BYTES, UNSIGNED, Signing

RECORDS_MAX: Final = 512
BYTES_MAX: Final = 256 * 1024  # uncompressed; a larger record has a chunk for itself
RECORD_BYTES_MAX: Final = 128 * 1024 * 1024  # a record's `size`: larger ones are set aside, and are never here
RAW_BYTES_MAX: Final = 256 * 1024 * 1024  # of a chunk with one such record: names of headers come on top
HEADERS_MAX: Final = 100_000  # of one record: more than `intake.headers_max` can't be
PARTITION_MAX: Final = (1 << 31) - 1
NAME_BYTES_MIN: Final = 4  # what a header's column takes at the least
ZSTD_LEVEL: Final = 1  # measured: 3 gains 2 % and takes a third more time

# A policy's default is a topic's name and a suffix, and that may be longer than a name can be: such a record leaves by
# its own exit when it is dead, as one whose dead-letter topic is missing.
_DEAD_LETTER: Final = re.compile(rf"[A-Za-z0-9._-]{{0,{TOPIC_LENGTH_MAX + len(DEAD_LETTER_SUFFIX)}}}")

_HEAD: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
_NOTHING_ELSE: Final = ("", -1, None, None, NO_HEADERS, "", None, 0, -1, NO_HEADERS, -1, "", 0, -1)

ByteColumn = Sequence[bytes | None]

# All that taking bytes apart may raise: whoever may write to Redis may write any bytes.
_UNREADABLE: Final = (
    zstandard.ZstdError, LedgerFormatError, struct.error, LookupError, ValueError, TypeError, OverflowError,
    StopIteration, RuntimeError,
)  # fmt: skip


class ChunkDamagedError(Exception):
    """A blob that isn't what its header says."""


class Blob(NamedTuple):
    """A packed run of records, and what its header says of it where it was read from somewhere."""

    data: bytes
    raw_bytes: int  # before compression
    content_hash: int  # xxh3, 64 bits, of `data`
    rows: int = 0  # 0: no header says
    first: Position = Position(-1, -1)
    last: Position = Position(-1, -1)
    place: bytes = b""  # for its signature


def raw_bytes_max(rows: int) -> int:
    """Bytes that a chunk of so many records unpacks to at the most: a reader allocates no more, whoever wrote it."""
    return BYTES_MAX if rows > 1 else RAW_BYTES_MAX


class ChunkCodec:
    """Packs and unpacks. Not for two threads at a time: it holds compression contexts. With `needles`, a chunk in which
    one of these texts doesn't stand counts as empty, at a tenth of the cost. With `places_only`, of what is unpacked
    only due times and offsets are there.
    """

    __slots__ = ("_compress", "_decompress", "_needles", "_places_only", "_signing")

    def __init__(self, needles: Sequence[bytes] = (), places_only: bool = False, signing: Signing = UNSIGNED) -> None:
        self._signing = signing
        self._needles = needles
        self._places_only = places_only
        self._compress = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def pack(self, records: Sequence[Held]) -> list[tuple[Sequence[Held], Blob]]:
        """Blobs for records of one slot sorted by position, each with the run of records that is in it."""
        packed: list[tuple[Sequence[Held], Blob]] = []
        for start in range(0, len(records), RECORDS_MAX):
            self._pack_run(records[start : start + RECORDS_MAX], packed)
        return packed

    def _pack_run(self, run: Sequence[Held], packed: list[tuple[Sequence[Held], Blob]]) -> None:
        raw = _pack_columns(run)
        if len(raw) > BYTES_MAX and len(run) > 1:
            middle = len(run) // 2
            self._pack_run(run[:middle], packed)
            self._pack_run(run[middle:], packed)
            return
        data = self._compress(raw)
        packed.append((run, Blob(data, len(raw), xxhash.xxh3_64_intdigest(data))))

    def signed(self, blob: Blob, place: bytes) -> Blob:
        """The blob with its signature for this place, where there are keys."""
        if not self._signing.is_on:
            return blob
        data = blob.data + self._signing.signature(CHUNK, place, blob.data)
        return blob._replace(data=data, content_hash=xxhash.xxh3_64_intdigest(data))

    def _frame(self, blob: Blob) -> bytes:
        """Signed part of a blob; without keys, all of it. Raises ChunkDamagedError where no key of ours signed it."""
        if not self._signing.is_on:
            return blob.data
        frame = blob.data[:-SIGNATURE_BYTES]
        if not self._signing.holds(CHUNK, blob.place, frame, blob.data[-SIGNATURE_BYTES:]):
            raise ChunkDamagedError("a chunk that none of our keys has signed for its place")
        return frame

    def unpack(self, blob: Blob, after: Position, until: Position) -> list[Held]:
        """The blob's records with after < position <= until. Raises ChunkDamagedError."""
        if xxhash.xxh3_64_intdigest(blob.data) != blob.content_hash:
            raise ChunkDamagedError("a chunk's content does not match its header")
        frame = self._frame(blob)
        try:
            # Looked at first: a damaged size must not make us allocate it, and nor must one that somebody made up.
            if zstandard.frame_content_size(frame) != blob.raw_bytes:
                raise ChunkDamagedError("a chunk's size does not match its header")
            if blob.raw_bytes > raw_bytes_max(blob.rows):
                raise ChunkDamagedError(f"a chunk claims {blob.raw_bytes} bytes, more than any that is written")
            raw = self._decompress(frame)
            if self._needles and not all(needle in raw for needle in self._needles):
                return []
            return _unpack_columns(raw, blob, (after, until), self._places_only)
        except _UNREADABLE as error:
            raise ChunkDamagedError(f"a chunk cannot be read: {error}") from error


# --- packing ----------------------------------------------------------------------------------------------


def _pack_columns(records: Sequence[Held]) -> bytes:
    columns: tuple[Any, ...] = tuple(zip(*records, strict=True))
    dues, offsets, targets, target_partitions, keys, values, headers = columns[:7]
    policies, origins, attempts, first_failures, trailers, expiries, dead_letters, sizes, sources = columns[7:]
    parts = [
        *map(pack_numbers, (dues, offsets, target_partitions, attempts, first_failures, expiries, sizes)),
        *map(pack_words, (targets, policies, dead_letters)),
    ]
    data: list[bytes] = []
    for column in (keys, values, origins):
        _pack_bytes(column, parts, data)
    _pack_headers(headers, parts, data)
    _pack_headers(trailers, parts, data)
    if max(sources) >= 0:
        parts.append(pack_numbers(sources))
    packed = b"".join(parts)
    return b"".join((_HEAD.pack(len(records), len(packed)), packed, *data))


def _pack_bytes(column: ByteColumn, parts: list[bytes], data: list[bytes]) -> None:
    first = column[0]
    if column[-1] == first and column.count(first) == len(column):
        column = column[:1]
    parts.append(_LENGTH.pack(len(column)))
    if None not in column:
        parts.append(pack_numbers(list(map(len, column))))  # type: ignore[arg-type]
        data.extend(column)  # type: ignore[arg-type]
        return
    parts.append(pack_numbers([-1 if value is None else len(value) for value in column]))
    data.extend(filter(None, column))


def _pack_headers(column: Sequence[Headers], parts: list[bytes], data: list[bytes]) -> None:
    shapes, shape_of_each = _shapes(column)
    parts.append(_LENGTH.pack(len(shapes)))
    parts.append(pack_numbers(list(map(len, shapes))))
    parts.append(pack_words([name for shape in shapes for name in shape]))
    parts.append(pack_numbers(shape_of_each))
    for number, shape in enumerate(shapes):
        if not shape:
            continue
        alike: Sequence[Headers] = column
        if len(shapes) > 1:
            alike = [headers for headers, own in zip(column, shape_of_each, strict=True) if own == number]
        for pairs in zip(*alike, strict=True):
            _pack_bytes([value for _, value in pairs], parts, data)


def _shapes(column: Sequence[Headers]) -> tuple[list[tuple[str, ...]], list[int]]:
    """The different sequences of header names, in order of first use, and which one each record has."""
    if not any(column):
        return [()], [0] * len(column)
    shapes: dict[tuple[str, ...], int] = {}
    own = [shapes.setdefault(tuple([name for name, _ in headers]), len(shapes)) for headers in column]
    return list(shapes), own


# --- unpacking --------------------------------------------------------------------------------------------


class _Rows:
    """Reads a chunk's columns: which rows are wanted, and where the joined bytes of its next byte column begin."""

    __slots__ = ("columns_end", "count", "place", "raw", "reader", "start", "stop")

    def __init__(self, raw: bytes) -> None:
        self.count, size = _HEAD.unpack_from(raw)
        # A column of one value costs no bytes, so only a limit keeps a count that was made up from a huge list.
        if not 0 < self.count <= RECORDS_MAX or size > len(raw):
            raise ChunkDamagedError(f"a chunk of {self.count} records in {size} bytes")
        self.raw = raw
        self.reader = ColumnReader(raw, _HEAD.size)
        self.place = self.columns_end = _HEAD.size + size
        self.start = 0
        self.stop = self.count

    def narrow(self, dues: list[int], offsets: list[int], after: Position, until: Position) -> None:
        """Keep rows with after < position <= until."""

        def position(row: int) -> Position:
            return Position(dues[row], offsets[row])

        rows = range(self.count)
        if position(0) <= after:
            self.start = bisect_right(rows, after, key=position)
        if position(self.count - 1) > until:
            self.stop = bisect_right(rows, until, lo=self.start, key=position)

    def numbers(self) -> list[int]:
        numbers = self.reader.numbers(self.count)
        return numbers if self.stop - self.start == self.count else numbers[self.start : self.stop]

    def words(self) -> list[str]:
        words = self.reader.words(self.count)
        return words if self.stop - self.start == self.count else words[self.start : self.stop]

    def values(self) -> ByteColumn:
        return self.byte_column(self.count, self.start, self.stop)

    def byte_column(self, count: int, start: int, stop: int) -> ByteColumn:
        """Rows start..stop of a byte column of `count` values."""
        if self.reader.length() == 1:
            return [self._same()] * (stop - start)
        return self._different(count, start, stop)

    def _same(self) -> bytes | None:
        """The value of a column in which all are the same: one object for all of them."""
        (length,) = self.reader.numbers(1)
        place = self.place
        self.place = place + max(length, 0)
        return self.raw[place : self.place] if length >= 0 else None

    def _different(self, count: int, start: int, stop: int) -> ByteColumn:
        lengths = self.reader.numbers(count)
        absent = -1 in lengths
        present = [length if length > 0 else 0 for length in lengths] if absent else lengths
        place = self.place
        self.place = place + sum(present)
        if stop - start < count:
            place += sum(present[:start])
            present, lengths = present[start:stop], lengths[start:stop]
        # One format for the whole column: a third of the time of slicing value by value.
        values = struct.unpack_from("%ds" * len(present) % tuple(present), self.raw, place)
        if absent:
            return [None if length < 0 else value for length, value in zip(lengths, values, strict=True)]
        return values

    def headers(self) -> list[Headers]:
        shapes = self._shapes()
        own = self.reader.numbers(self.count)
        _check_numbers(((own, 0, len(shapes) - 1),))
        if len(shapes) == 1:
            return self._alike(shapes[0], self.count, self.start, self.stop)
        found = []
        for number, shape in enumerate(shapes):
            count = own.count(number)
            found.append(iter(self._alike(shape, count, 0, count)))
        return [next(found[number]) for number in own][self.start : self.stop]

    def _shapes(self) -> list[tuple[str, ...]]:
        count = self.reader.length()
        if not 0 < count <= self.count:
            raise ChunkDamagedError(f"{count} shapes of headers in {self.count} records")
        sizes = self.reader.numbers(count)
        if not 0 <= min(sizes) <= max(sizes) <= HEADERS_MAX or sum(sizes) * NAME_BYTES_MIN > len(self.raw):
            raise ChunkDamagedError("more headers than a record may have")
        names = iter(self.reader.words(sum(sizes)))
        return [tuple(next(names) for _ in range(size)) for size in sizes]

    def _alike(self, shape: tuple[str, ...], count: int, start: int, stop: int) -> list[Headers]:
        if not shape:
            return [NO_HEADERS] * (stop - start)
        columns = [self._pairs(name, count, start, stop) for name in shape]
        return list(map(list, zip(*columns, strict=True)))

    def _pairs(self, name: str, count: int, start: int, stop: int) -> Iterable[tuple[str, bytes | None]]:
        if self.reader.length() == 1:
            return repeat((name, self._same()), stop - start)
        return zip(repeat(name), self._different(count, start, stop), strict=False)


def _unpack_columns(raw: bytes, blob: Blob, window: tuple[Position, Position], places_only: bool) -> list[Held]:
    rows = _Rows(raw)
    dues = rows.reader.numbers(rows.count)
    offsets = rows.reader.numbers(rows.count)
    _check_places(blob, dues, offsets)
    rows.narrow(dues, offsets, *window)
    if rows.start >= rows.stop:
        return []
    dues, offsets = dues[rows.start : rows.stop], offsets[rows.start : rows.stop]
    if places_only:
        return list(map(as_held, zip(dues, offsets, *map(repeat, _NOTHING_ELSE), strict=False)))
    target_partitions, attempts, first_failures, expiries, sizes = (rows.numbers() for _ in range(5))
    targets, policies, dead_letters = rows.words(), rows.words(), rows.words()
    keys, values, origins = rows.values(), rows.values(), rows.values()
    headers, trailers = rows.headers(), rows.headers()
    moved = rows.reader.place < rows.columns_end  # there is one more column
    sources = rows.numbers() if moved else [-1] * len(dues)
    if rows.place != len(raw) or rows.reader.place != rows.columns_end:
        raise ChunkDamagedError(f"a chunk has {len(raw) - rows.place} bytes too many")
    _check_numbers(((target_partitions, -1, PARTITION_MAX), (attempts, 0, OFFSET_MAX), (first_failures, -1, OFFSET_MAX),
                    (expiries, -1, OFFSET_MAX), (sizes, 0, RAW_BYTES_MAX), (sources, -1, OFFSET_MAX)))  # fmt: skip
    _check_topics({*targets}, {*dead_letters})
    columns = (
        dues, offsets, targets, target_partitions, keys, values, headers, policies, origins, attempts, first_failures,
        trailers, expiries, dead_letters, sizes, sources,
    )  # fmt: skip
    return list(map(as_held, zip(*columns, strict=True)))


def _check_places(blob: Blob, dues: list[int], offsets: list[int]) -> None:
    """Where records are is what everything else goes by: in order, each once, and where the header says."""
    in_order = all(map(lt, dues, islice(dues, 1, None)))  # of numbers: a third of the time of pairs
    if not in_order:
        places = list(zip(dues, offsets, strict=True))
        in_order = all(map(lt, places, islice(places, 1, None)))
    if not in_order or dues[0] < 0 or min(offsets) < 0:
        raise ChunkDamagedError("records out of order")
    found = len(dues), (dues[0], offsets[0]), (dues[-1], offsets[-1])
    if blob.rows and found != (blob.rows, blob.first, blob.last):
        raise ChunkDamagedError("other records than the header says")


def _check_numbers(columns: Iterable[tuple[Sequence[int], int, int]]) -> None:
    for numbers, lowest, highest in columns:
        first = numbers[0]
        is_constant = numbers.count(first) == len(numbers)  # as a rule: a tenth of the time of looking for both ends
        if not (lowest <= first <= highest if is_constant else lowest <= min(numbers) <= max(numbers) <= highest):
            raise ChunkDamagedError("a number that no record has")


def _check_topics(targets: set[str], dead_letters: set[str]) -> None:
    """A producer that is given something else raises what nobody expects of it."""
    if not (all(map(is_topic, targets)) and all(map(_DEAD_LETTER.fullmatch, dead_letters))):
        raise ChunkDamagedError("a target that is no topic's name")
