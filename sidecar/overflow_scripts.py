"""What is done in Redis, one script a piece: every command that changes the overflow, and those that read it.

Slots and shards go in as numbers of keys. `overflow_layout.py` says what lies there.
"""

from typing import Final

_WRITE: Final = """
-- KEYS: hw, level b, level a, struck, slot hashes and shards of the index ...
-- ARGV: two numbers; how many arguments chunks, index and strikes take; then
--   per chunk: indexes of its level and its slot in KEYS, score, header, blob
--   per id: index of its shard in KEYS, field, place
--   per strike: score, offset, index of its id's shard in KEYS ('' when it has none), field, place
local chunks = 5 + tonumber(ARGV[3])
local ids = chunks + 1 + tonumber(ARGV[4])
for i = 6, chunks, 5 do
  redis.call('HSET', KEYS[tonumber(ARGV[i + 1])], ARGV[i + 3], ARGV[i + 4])
  redis.call('ZADD', KEYS[tonumber(ARGV[i])], ARGV[i + 2], ARGV[i + 3])
end
for i = chunks + 1, ids - 1, 3 do redis.call('HSET', KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2]) end
for i = ids, #ARGV, 5 do
  redis.call('ZADD', KEYS[4], ARGV[i], ARGV[i + 1])
  if ARGV[i + 2] ~= '' then
    local shard = KEYS[tonumber(ARGV[i + 2])]
    if redis.call('HGET', shard, ARGV[i + 3]) == ARGV[i + 4] then redis.call('HDEL', shard, ARGV[i + 3]) end
  end
end
redis.call('SET', KEYS[1], ARGV[2])
return hw
"""

APPLY: Final = (
    """
-- KEYS and ARGV: see the writing; the numbers are those of the first and the last block
-- Returns hw as it was. Writes only when the first block is the next one, and then all blocks.
local hw = tonumber(redis.call('GET', KEYS[1]) or '0')
if hw ~= tonumber(ARGV[1]) - 1 then return hw end
"""
    + _WRITE
)

FIND: Final = """
-- KEYS: hw, struck, the shard of each id    ARGV: fields
-- Returns hw and the places, false where there is none or where it is struck out.
local places = {}
for i = 1, #ARGV do
  local place = redis.call('HGET', KEYS[i + 2], ARGV[i])
  if place and redis.call('ZSCORE', KEYS[2], string.sub(place, 9)) then place = false end
  places[i] = place
end
return {tonumber(redis.call('GET', KEYS[1]) or '0'), places}
"""

FORGET: Final = """
-- KEYS: a shard of the index    ARGV: fields with the places they are to have ...
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return 0
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
-- KEYS: hw, struck, the slot hash of each header    ARGV: first and last due of all, headers
-- Returns hw, the blobs, false where there is none, and how many copies due then are struck out.
local blobs = {}
for i = 3, #ARGV do blobs[i - 2] = redis.call('HGET', KEYS[i], ARGV[i]) end
return {tonumber(redis.call('GET', KEYS[1]) or '0'), blobs, redis.call('ZCOUNT', KEYS[2], ARGV[1], ARGV[2])}
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

REDO: Final = (
    """
-- KEYS and ARGV: see the writing; the numbers are those of the last block before these and of the last of these
-- Returns hw as it was, -1 when it is gone. Writes only when the blocks before are here and these are not.
local hw = tonumber(redis.call('GET', KEYS[1]) or '-1')
if hw < tonumber(ARGV[1]) or hw >= tonumber(ARGV[2]) then return hw end
"""
    + _WRITE
)

CLEAR_ALL: Final = """
-- KEYS: hw, struck, all shards of the index
-- Removes them while hw is gone, and says so by a new hw of 0. Returns 0 when it is there.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('UNLINK', unpack(KEYS, 2))
redis.call('SET', KEYS[1], '0')
return 1
"""
