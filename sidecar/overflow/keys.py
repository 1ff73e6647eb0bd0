"""Layout of the overflow in Redis: every key, every header, every command. Nothing else writes there.

Keys, per source partition (lane); the braces make one Cluster hash slot of them, so that a script may touch
all:

    {group:topic:p}:hw        string  number of the last change block applied: the loss detector; `+` before it says
                                      that b, a and x have their end members
    {group:topic:p}:b         ZSET    headers of the chunks of level b (slots of 1 h) by earliest due, ms
    {group:topic:p}:a         ZSET    headers of the chunks of level a (slots of 60 s) by earliest due, ms
    {group:topic:p}:b:<slot>  HASH    header -> blob (`chunk.py`) of one slot's chunks; slot = due // size
    {group:topic:p}:a:<slot>  HASH
    {group:topic:p}:x         ZSET    offsets (u64) of copies that are struck out, by due, ms: never to be promoted
    {group:topic:p}:i:<shard> HASH    xxh3 of an id (u64) -> due, offset (u64 each) of the latest record with this id

    ZSET ..:b   --score-->  [H1] [H2] [H3]     [H4]
                              |    |    |        |
    HASH ..:b:472222     {H1: ##, H2: ##, H3: ##}|      one slot: goes away as a whole
    HASH ..:b:472223                     {H4: ##}

Header: the member of the ZSET and the field of the HASH, 59 bytes, big endian, so that members of one score
sort by first position:

     0           8             16          24            32
    +-----------+-------------+-----------+-------------+-------------+
    | first due | first       | last due  | last        | slot        |
    | u64       | offset u64  | u64       | offset u64  | u64         |
    +-----------+--+----------+-+---------+--+---------++-------------+
    | count u16    | blob bytes | raw bytes  | format  | hash of the  |
    |              | u32        | u32        | u8      | blob, xxh3   |
    +--------------+------------+------------+---------+--------------+
     40             42           46           50        51             59

A chunk lies in one slot, so every chunk with records after a position C has its score in [start of the slot
that holds C, ...): that is how a range is found with one ordered read per level.

A server may lose a key and keep the others: by eviction, an operator's DEL, an expiry that somebody set. So each key
that would be missed without a trace has something in it that stays as long as the key does, and something elsewhere
that says so:

    key       what stays in it                     what says so                        looked at by
    b, a, x   END_MEMBER, behind all that is due   `+` in hw                           all scripts that read or write
                                                                                       blocks; NUMBER, each second
    i:<n>     a field END_FIELD                    a member `i:<n>` of x, behind all   FIND; SHARDS, at each tidying
                                                   that is due
    b:<slot>  blobs, until they are settled        their headers                       READ; SLOTS and PRESENT, some at
    a:<slot>                                                                           each tidying
    hw        the number                           what was acknowledged               all

A script writes these together with what it writes first; nothing but CLEAR and CLEAR_ALL takes them away, while hw is
gone. Members that are never taken away need no counting, so who repeats a script, a process that has lost its lane,
and a version that knows nothing of them change nothing about it. Such a version takes END_MEMBER for a chunk that is
due long after all it asks for, and writes hw without `+`: then nothing is missed until the next writing, or tidying,
gives the keys their end members again.

What keeps a reader right without a lock:
* header and blob come in one script and go in one script: there is never one without the other. A header
  whose blob is missing has therefore gone in the meantime (read again) or, if the header is still there,
  has lost it.
* cascade writes the fine copies first and removes the coarse ones after that was acknowledged; readers list
  coarse before fine. So every record is seen at least once, and copies of one offset are dropped.
* all scripts are idempotent under blind replay, and harmless from a process that has lost its lane. No script adds
  and unlinks: out of memory must not stop removal. (A rebuild's unlinks blobs that no header leads to any more.)
* hw = n says that everything of blocks 1 to n that is still held is here, and is raised only by the script that
  writes it. So whatever the server forgets (all, its last writes, everything since an older copy), hw says how much
  is left. Levels or strikes without hw are what a reset that broke off has left, perhaps of a former topic: nothing is
  written to them before they are cleared. What removes copies of what is held (REMOVE) sees to it itself that others
  are there, and what makes them (ADD) that what it copies is still there: it would bring back what was cleared away.
* an offset has one copy's worth of records here, ever: who is moved goes on under another offset. So what is struck out
  is known by its offset alone. It stays struck until everything due then is settled.
* the index only says where to look: what it points at may be settled, or gone.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position, TopicPartition
from sidecar.overflow.chunk import RAW_BYTES_MAX, RECORDS_MAX, Blob, raw_bytes_max
from sidecar.overflow.interface import NewerOverflowFormat

FORMAT: Final = 1
DUE_MAX_MS: Final = (1 << 53) - 1  # a score is a double: beyond this it would not be exact
SERVER_VERSION_MIN: Final = (6, 2)

# zstd makes of what can't be compressed a little more than it is: this much at most (ZSTD_compressBound).
BLOB_BYTES_MORE_MAX: Final = (RAW_BYTES_MAX >> 8) + 1_024

INDEX_SHARDS: Final = 64  # one hash of a million fields would stall the server when it grows

_HEADER: Final = struct.Struct(">QQQQQHIIBQ")
END_SCORE: Final = 1 << 62  # a double has it exactly, and no record is due so late
# A header of no rows: what an older version sees, reads and passes over.
END_MEMBER: Final = _HEADER.pack(END_SCORE, 0, END_SCORE, 0, 0, 0, 0, 0, FORMAT, 0)
END_FIELD: Final = "end"  # other fields have 8 bytes
_FORMAT_AT: Final = 50  # the format's place in a header of any format, also of those to come
_PLACE: Final = struct.Struct(">QQ")
_WORD: Final = struct.Struct(">Q")
_QUOTED: Final = str.maketrans({"{": "%7B", "}": "%7D", "%": "%25"})


class Level(NamedTuple):
    """One coarser level of the timing wheel."""

    name: str
    slot_ms: int
    place: int  # of its key in `LaneKeys.fixed`, from 1 on: as scripts count

    def start_ms(self, due_ms: int) -> int:
        """Where the slot begins that holds this due time."""
        return due_ms - due_ms % self.slot_ms


COARSE: Final = Level("b", 3_600_000, 2)
FINE: Final = Level("a", 60_000, 3)
LEVELS: Final = (COARSE, FINE)  # in the order of reading


class Header(NamedTuple):
    """Facts of a chunk that are known without reading it. Headers sort by first position."""

    first: Position
    last: Position
    slot: int
    rows: int
    blob_bytes: int
    raw_bytes: int
    content_hash: int
    member: bytes  # the packed form
    level: Level

    def blob(self, data: bytes, place: bytes = b"") -> Blob:
        """The chunk's content, to be checked against this header and, where it is signed, this place."""
        return Blob(data, self.raw_bytes, self.content_hash, self.rows, self.first, self.last, place)


class HeaderFormatError(Exception):
    """A header that this version does not know."""


def header_of(run: Sequence[Held], level: Level, blob: Blob) -> Header:
    """The header of a packed run."""
    first, last = run[0].position, run[-1].position
    fields = (first.due_ms // level.slot_ms, len(run), len(blob.data), blob.raw_bytes)
    member = _HEADER.pack(*first, *last, *fields, FORMAT, blob.content_hash)
    return Header(first, last, *fields, blob.content_hash, member, level)


def chunk_place(tag: str, header: Header) -> bytes:
    """Where a chunk lies and what its header says of it, but for the blob's own size and hash: what its signature is
    for, so that it can't be moved. `tag` is the lane's.
    """
    return f"{tag}:{header.level.name}:".encode() + _HEADER.pack(
        *header.first, *header.last, header.slot, header.rows, 0, header.raw_bytes, FORMAT, 0
    )


def read_header(member: bytes, level: Level) -> Header:
    """Raises HeaderFormatError for what is damaged, NewerOverflowFormat."""
    if len(member) > _FORMAT_AT and member[_FORMAT_AT] > FORMAT:
        raise NewerOverflowFormat(
            f"Redis has held records in format {member[_FORMAT_AT]} of a newer tickover; this one reads {FORMAT}: "
            "run the newer one"
        )
    if len(member) != _HEADER.size:
        raise HeaderFormatError(f"a chunk header of {len(member)} bytes, expected {_HEADER.size}")
    due, offset, last_due, last_offset, slot, count, size, raw, version, content_hash = _HEADER.unpack(member)
    if version != FORMAT:
        raise HeaderFormatError(f"a chunk of format {version}; this version reads {FORMAT}")
    first, last = Position(due, offset), Position(last_due, last_offset)
    is_end = member == END_MEMBER
    if not is_end and not (_is_sound(first, last, slot, level) and 0 < count <= RECORDS_MAX):
        raise HeaderFormatError("a chunk header that says what no chunk is")
    if raw > raw_bytes_max(count) or size > raw + BLOB_BYTES_MORE_MAX:
        raise HeaderFormatError(f"a chunk of {raw} bytes, {size} compressed: more than any that is written")
    return Header(first, last, slot, count, size, raw, content_hash, member, level)


def _is_sound(first: Position, last: Position, slot: int, level: Level) -> bool:
    """A chunk's records are in order, within what a score can express, and all in its slot."""
    in_range = last.due_ms <= DUE_MAX_MS and max(first.offset, last.offset) <= OFFSET_MAX
    return first <= last and in_range and slot == first.due_ms // level.slot_ms == last.due_ms // level.slot_ms


class LaneKeys:
    """The keys of one lane."""

    __slots__ = ("fixed", "hw", "struck", "tag")

    def __init__(self, group: str, lane: TopicPartition) -> None:
        # A brace in the group's name would end the hash tag early and scatter the lane over the Cluster.
        self.tag = f"{{{quoted(group)}:{lane.topic}:{lane.partition}}}"
        self.hw = f"{self.tag}:hw"
        self.struck = f"{self.tag}:x"
        self.fixed = (self.hw, self.level(COARSE), self.level(FINE), self.struck)  # as most scripts have them first

    def level(self, level: Level) -> str:
        return f"{self.tag}:{level.name}"

    def slot(self, header: Header) -> str:
        return f"{self.tag}:{header.level.name}:{header.slot}"

    def slot_at(self, level: Level, start_ms: int) -> str:
        """The slot that begins then."""
        return f"{self.tag}:{level.name}:{start_ms // level.slot_ms}"

    def index(self, shard: int) -> str:
        return f"{self.tag}:i:{shard}"

    def shards(self) -> list[str]:
        """All of the index."""
        return list(map(self.index, range(INDEX_SHARDS)))

    def indexed(self, message_id: str) -> tuple[str, bytes]:
        """Key and field of an id."""
        word = xxhash.xxh3_64_intdigest(message_id.encode(errors="surrogatepass"))
        return self.index(word % INDEX_SHARDS), _WORD.pack(word)


def quoted(group: str) -> str:
    """The group's name as it is in keys."""
    return group.translate(_QUOTED)


def pattern_of_hw(group: str) -> str:
    """A pattern that the `hw` keys of all lanes of a group match."""
    # A group's name has none of the characters that mean something in a pattern.
    return f"{{{quoted(group)}:*:hw"


def pattern_of_levels(group: str) -> str:
    """A pattern that the keys `a` and `b` of all lanes of a group match."""
    return pattern_of_hw(group).replace("hw", "[ab]")


def place_member(position: Position) -> bytes:
    """A record's place as the index has it."""
    return _PLACE.pack(*position)


def read_place(member: bytes) -> Position:
    """Record's place that an index entry names. Raises HeaderFormatError for what is no place."""
    if len(member) != _PLACE.size:
        raise HeaderFormatError(f"a place of {len(member)} bytes in the index, expected {_PLACE.size}")
    return Position(*_PLACE.unpack(member))


def offset_member(offset: int) -> bytes:
    """A copy that is struck out."""
    return _WORD.pack(offset)
