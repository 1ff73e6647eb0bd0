"""What lies in Redis: every key, every header, every command of the overflow. Nothing else writes there.

Keys, per source partition (lane); the braces make one Cluster hash slot of them, so that a script may touch
all:

    {group:topic:p}:hw        string  number of the last change block applied: the loss detector
    {group:topic:p}:b         ZSET    headers of the chunks of level b (slots of 1 h) by earliest due, ms
    {group:topic:p}:a         ZSET    headers of the chunks of level a (slots of 60 s) by earliest due, ms
    {group:topic:p}:b:<slot>  HASH    header -> blob (`chunk.py`) of one slot's chunks; slot = due // size
    {group:topic:p}:a:<slot>  HASH

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

What keeps a reader right without a lock:
* header and blob come in one script and go in one script: there is never one without the other. A header
  whose blob is missing has therefore gone in the meantime (read again) or, if the header is still there,
  has lost it.
* cascade writes the fine copies first and removes the coarse ones after that was acknowledged; readers list
  coarse before fine. So every record is seen at least once, and copies of one offset are dropped.
* all scripts are idempotent under blind replay, and harmless from a process that has lost its lane. No script adds
  and unlinks: out of memory must not stop removal.
* hw = n says that everything of blocks 1 to n that is still held is here, and is raised only by the script that
  writes it. So whatever the server forgets (all, its last writes, everything since an older copy), hw says how much
  is left. What removes copies of what is held (REMOVE) sees to it itself that others are there.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from sidecar.chunk import Blob
from sidecar.record import Held, LaneId, Position

FORMAT: Final = 1
DUE_MAX_MS: Final = (1 << 53) - 1  # a score is a double: beyond this it would not be exact
SERVER_VERSION_MIN: Final = (6, 2)

_HEADER: Final = struct.Struct(">QQQQQHIIBQ")
_QUOTED: Final = str.maketrans({"{": "%7B", "}": "%7D", "%": "%25"})


class Level(NamedTuple):
    """One coarser level of the timing wheel."""

    name: str
    slot_ms: int

    def start_ms(self, due_ms: int) -> int:
        """Where the slot begins that holds this due time."""
        return due_ms - due_ms % self.slot_ms


COARSE: Final = Level("b", 3_600_000)
FINE: Final = Level("a", 60_000)
LEVELS: Final = (COARSE, FINE)  # in the order of reading


class Header(NamedTuple):
    """What is known of a chunk without reading it. Headers sort by first position."""

    first: Position
    last: Position
    slot: int
    rows: int
    blob_bytes: int
    raw_bytes: int
    content_hash: int
    member: bytes  # the packed form
    level: Level

    def blob(self, data: bytes) -> Blob:
        """The chunk's content, to be checked against this header."""
        return Blob(data, self.raw_bytes, self.content_hash)


class HeaderFormatError(Exception):
    """A header that this version does not know."""


def header_of(run: Sequence[Held], level: Level, blob: Blob) -> Header:
    """The header of a packed run."""
    first, last = run[0].position, run[-1].position
    fields = (first.due_ms // level.slot_ms, len(run), len(blob.data), blob.raw_bytes)
    member = _HEADER.pack(*first, *last, *fields, FORMAT, blob.content_hash)
    return Header(first, last, *fields, blob.content_hash, member, level)


def read_header(member: bytes, level: Level) -> Header:
    """Raises HeaderFormatError."""
    if len(member) != _HEADER.size:
        raise HeaderFormatError(f"a chunk header of {len(member)} bytes, expected {_HEADER.size}")
    due, offset, last_due, last_offset, slot, count, size, raw, version, content_hash = _HEADER.unpack(member)
    if version != FORMAT:
        raise HeaderFormatError(f"a chunk of format {version}; this version reads {FORMAT}")
    first, last = Position(due, offset), Position(last_due, last_offset)
    return Header(first, last, slot, count, size, raw, content_hash, member, level)


class LaneKeys:
    """The keys of one lane."""

    __slots__ = ("hw", "tag")

    def __init__(self, group: str, lane: LaneId) -> None:
        # A brace in the group's name would end the hash tag early and scatter the lane over the Cluster.
        self.tag = f"{{{group.translate(_QUOTED)}:{lane.topic}:{lane.partition}}}"
        self.hw = f"{self.tag}:hw"

    def level(self, level: Level) -> str:
        return f"{self.tag}:{level.name}"

    def slot(self, header: Header) -> str:
        return f"{self.tag}:{header.level.name}:{header.slot}"


# Scripts. Slots go in as numbers of keys, chunks as (slot's key, score, header, blob).

APPLY: Final = """
-- KEYS: hw, level b, level a, slot hashes ...
-- ARGV: first and last number, then per chunk: indexes of its level and its slot in KEYS, score, header, blob
-- Returns hw as it was. Writes only when the first block is the next one, and then all blocks.
local hw = tonumber(redis.call('GET', KEYS[1]) or '0')
if hw ~= tonumber(ARGV[1]) - 1 then return hw end
for i = 3, #ARGV, 5 do
  redis.call('HSET', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 3], ARGV[i + 4])
  redis.call('ZADD', KEYS[tonumber(ARGV[i])], ARGV[i + 2], ARGV[i + 3])
end
redis.call('SET', KEYS[1], ARGV[2])
return hw
"""

LIST: Final = """
-- KEYS: hw, level    ARGV: lowest score, highest score, count, last header seen or ''
-- Returns hw and the next headers by (score, header). Where the last one seen is gone, from its score again.
local hw = tonumber(redis.call('GET', KEYS[1]) or '0')
local rank = ARGV[4] ~= '' and redis.call('ZRANK', KEYS[2], ARGV[4])
if rank then
  local page = redis.call('ZRANGE', KEYS[2], rank + 1, rank + tonumber(ARGV[3]))
  return {hw, page}
end
return {hw, redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])}
"""

READ: Final = """
-- KEYS: hw, the slot hash of each header    ARGV: headers
-- Returns hw and the blobs, false where there is none.
local blobs = {}
for i = 1, #ARGV do blobs[i] = redis.call('HGET', KEYS[i + 1], ARGV[i]) end
return {tonumber(redis.call('GET', KEYS[1]) or '0'), blobs}
"""

ADD: Final = """
-- KEYS: level, slot hashes ...    ARGV: per chunk: index of its slot in KEYS, score, header, blob
for i = 1, #ARGV, 4 do
  redis.call('HSET', KEYS[tonumber(ARGV[i])], ARGV[i + 2], ARGV[i + 3])
  redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i + 2])
end
return #ARGV / 4
"""

REMOVE: Final = """
-- KEYS: level, the slot hash of each header, then of each copy
-- ARGV: how many headers, headers, headers of the chunks that hold copies of all their records
-- Removes exactly these chunks, or none when a copy isn't there. Returns how many it removed.
local count = tonumber(ARGV[1])
for i = count + 2, #ARGV do
  if redis.call('HEXISTS', KEYS[i], ARGV[i]) == 0 then return 0 end
end
for i = 2, count + 1 do
  redis.call('HDEL', KEYS[i], ARGV[i])
  redis.call('ZREM', KEYS[1], ARGV[i])
end
return count
"""

UNLINK: Final = """
-- KEYS: level, slot hashes that end with these headers ...    ARGV: headers
if #KEYS > 1 then redis.call('UNLINK', unpack(KEYS, 2)) end
if #ARGV > 0 then redis.call('ZREM', KEYS[1], unpack(ARGV)) end
return #ARGV
"""

# Rebuilding what the server has lost (`overflow_rebuild.py`). While hw is gone, nothing here counts: it is cleared
# away, then written again. Two may do so at once: whoever finds hw there goes on from it.

CLEAR: Final = """
-- KEYS: hw, level, the slot hash of each header    ARGV: headers
-- Removes these chunks while hw is gone. Returns 0 when it is there: somebody else writes already.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 1, #ARGV do
  if KEYS[i + 2] ~= KEYS[1] then redis.call('HDEL', KEYS[i + 2], ARGV[i]) end
  redis.call('ZREM', KEYS[2], ARGV[i])
end
return 1
"""

REDO: Final = """
-- KEYS: hw, level b, level a, slot hashes ...
-- ARGV: number of the last block before these, of the last of these, then per chunk as for APPLY
-- Returns hw as it was, -1 when it is gone. Writes only when the blocks before are here and these are not.
local hw = tonumber(redis.call('GET', KEYS[1]) or '-1')
if hw < tonumber(ARGV[1]) or hw >= tonumber(ARGV[2]) then return hw end
for i = 3, #ARGV, 5 do
  redis.call('HSET', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 3], ARGV[i + 4])
  redis.call('ZADD', KEYS[tonumber(ARGV[i])], ARGV[i + 2], ARGV[i + 3])
end
redis.call('SET', KEYS[1], ARGV[2])
return hw
"""
