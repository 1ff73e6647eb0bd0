"""Scripts of the overflow in Redis, one a piece of work: every command that changes it, and those that read it.

Slots and shards go in as numbers of keys. `keys.py` says what lies there. "The lane's keys" are
`LaneKeys.fixed`: hw, level b, level a, struck. Where an answer is hw, a number below 0 says that a key has gone that
was there: -2 the second of KEYS, -3 the third, and so on.
"""

from typing import Final

from sidecar.overflow.keys import COARSE, DUE_MAX_MS, END_FIELD, END_MEMBER, END_SCORE, FINE

_LAST: Final = "".join(f"\\{byte:03d}" for byte in END_MEMBER)
_LOOK: Final = f"""
local last, last_score = '{_LAST}', '{END_SCORE}'
local number = redis.call('GET', KEYS[1])
if number and not (#number <= 17 and string.find(number, '^%+?%d+$')) then number = false end
local hw = tonumber(number or '0')
local has_ends = number and string.sub(number, 1, 1) == '+'
if has_ends then
  for i = 2, 4 do
    if not redis.call('ZSCORE', KEYS[i], last) then hw = -i end
  end
end
"""

_SHARD: Final = f"""
local field = '{END_FIELD}'
local function name_of(shard) return string.match(shard, 'i:%d+$') end
"""

# Somebody was clearing them away: nothing may be written to what is left.
_CLEARED: Final = """
if not number and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then hw = -1 end
"""

NUMBER: Final = (
    """
-- KEYS: the lane's keys
-- Returns hw, -1 where it has gone and others have not; and the number as it stands there, -1 where there is none.
"""
    + _LOOK
    + _CLEARED
    + """
return {hw, number and tonumber(number) or -1}
"""
)

_ENDS: Final = """
if not has_ends then
  for i = 2, 4 do redis.call('ZADD', KEYS[i], last_score, last) end
end
"""

_WRITE: Final = f"""
-- KEYS: the lane's keys, slot hashes and shards of the index ...
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
local known = {{}}
for i = chunks + 1, ids - 1, 3 do
  local shard = KEYS[tonumber(ARGV[i])]
  if not known[shard] then
    known[shard] = true
    if not redis.call('ZSCORE', KEYS[4], name_of(shard)) then
      redis.call('HSET', shard, field, string.sub(last, 1, 16))
      redis.call('ZADD', KEYS[4], last_score, name_of(shard))
    end
  end
  redis.call('HSET', shard, ARGV[i + 1], ARGV[i + 2])
end
for i = ids, #ARGV, 5 do
  redis.call('ZADD', KEYS[4], ARGV[i], ARGV[i + 1])
  if ARGV[i + 2] ~= '' then
    local shard = KEYS[tonumber(ARGV[i + 2])]
    if redis.call('HGET', shard, ARGV[i + 3]) == ARGV[i + 4] then redis.call('HDEL', shard, ARGV[i + 3]) end
  end
end
{_ENDS}
redis.call('SET', KEYS[1], '+' .. ARGV[2])
return hw
"""

APPLY: Final = (
    """
-- KEYS and ARGV: see the writing; the numbers are those of the first and the last block
-- Returns hw as it was, -1 where it has gone and others of the lane's keys have not. Writes only when the first block
-- is the next one, and then all blocks.
"""
    + _LOOK
    + _CLEARED
    + _SHARD
    + """
if hw ~= tonumber(ARGV[1]) - 1 then return hw end
"""
    + _WRITE
)

FIND: Final = (
    """
-- KEYS: the lane's keys, the shard of each id    ARGV: fields
-- Returns hw and the places, false where there is none or where it is struck out.
"""
    + _LOOK
    + _SHARD
    + """
if hw < 0 then return {hw, {}} end
local places = {}
for i = 1, #ARGV do
  local shard = KEYS[i + 4]
  local found = redis.call('HMGET', shard, ARGV[i], field)
  if not found[2] and redis.call('ZSCORE', KEYS[4], name_of(shard)) then return {-(i + 4), {}} end
  local place = found[1]
  if place and redis.call('ZSCORE', KEYS[4], string.sub(place, 9)) then place = false end
  places[i] = place
end
return {hw, places}
"""
)

SHARDS: Final = (
    """
-- KEYS: the lane's keys, all shards of the index
-- Returns hw, and 1 where the keys have their end members.
"""
    + _LOOK
    + _SHARD
    + """
if hw >= 0 and redis.call('ZCOUNT', KEYS[4], last_score, last_score) > 1 then
  for i = 5, #KEYS do
    if redis.call('HEXISTS', KEYS[i], field) == 0 and redis.call('ZSCORE', KEYS[4], name_of(KEYS[i])) then
      return {-i, 1}
    end
  end
end
return {hw, has_ends and 1 or 0}
"""
)

ENDS: Final = (
    """
-- KEYS: the lane's keys
-- Gives the keys their end members where a version has written hw that knows none.
"""
    + _LOOK
    + """
if not number or has_ends then return hw end
"""
    + _ENDS
    + """
redis.call('SET', KEYS[1], '+' .. number)
return hw
"""
)

SLOTS: Final = (
    """
-- KEYS: the lane's keys    ARGV: the level's place among them, its slots' size in ms, from when on (ms), how many
-- Returns hw and the first header of each of the next slots.
"""
    + _LOOK
    + f"""
if hw < 0 then return {{hw, {{}}}} end
local level, size, low = KEYS[tonumber(ARGV[1])], tonumber(ARGV[2]), tonumber(ARGV[3])
local members = {{}}
while #members < tonumber(ARGV[4]) do
  local first = redis.call('ZRANGEBYSCORE', level, low, '{DUE_MAX_MS}', 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[1] then break end
  members[#members + 1] = first[1]
  low = first[2] - first[2] % size + size
end
return {{hw, members}}
"""
)

PRESENT: Final = (
    """
-- KEYS: the lane's keys, slot hashes ...    ARGV: the level's place among them, its slots' size in ms, their starts
-- Returns hw; below 0 where a slot has headers and no hash.
"""
    + _LOOK
    + """
if hw < 0 or redis.call('EXISTS', unpack(KEYS, 5)) == #KEYS - 4 then return hw end
for i = 5, #KEYS do
  local headers = redis.call('ZCOUNT', KEYS[tonumber(ARGV[1])], ARGV[i - 2], ARGV[i - 2] + ARGV[2] - 1)
  if headers > 0 and redis.call('EXISTS', KEYS[i]) == 0 then return -i end
end
return hw
"""
)

FORGET: Final = """
-- KEYS: a shard of the index    ARGV: fields with the places they are to have ...
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return 0
"""

LIST: Final = (
    """
-- KEYS: the lane's keys
-- ARGV: the level's place among them, lowest score, highest score, count, last header seen or ''
-- Returns hw and the next headers by (score, header). Where the last one seen is gone, from its score again.
"""
    + _LOOK
    + """
if hw < 0 then return {hw, {}} end
local level = KEYS[tonumber(ARGV[1])]
local rank = ARGV[5] ~= '' and redis.call('ZRANK', level, ARGV[5])
if rank then return {hw, redis.call('ZRANGE', level, rank + 1, rank + tonumber(ARGV[4]))} end
return {hw, redis.call('ZRANGEBYSCORE', level, ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])}
"""
)

READ: Final = (
    """
-- KEYS: the lane's keys, the slot hash of each header    ARGV: first and last due of all, headers
-- Returns hw, the blobs, and how many copies due then are struck out. In place of a blob: false where there is none,
-- its size where that isn't what the header says. Such a blob isn't sent: it may have any size.
"""
    + _LOOK
    + """
if hw < 0 then return {hw, {}, 0} end
local blobs = {}
for i = 3, #ARGV do
  local blob = redis.call('HGET', KEYS[i + 2], ARGV[i])
  local a, b, c, d = string.byte(ARGV[i], 43, 46)
  if blob and #blob ~= ((a * 256 + b) * 256 + c) * 256 + d then blob = #blob end
  blobs[i - 2] = blob
end
return {hw, blobs, redis.call('ZCOUNT', KEYS[4], ARGV[1], ARGV[2])}
"""
)

ADD: Final = """
-- KEYS: the finer level, the coarser one, slot hashes ...
-- ARGV: how many headers, headers of the coarser level whose records these are; then
--   per chunk: index of its slot in KEYS, score, header, blob
-- Writes nothing where one of them has gone: somebody else has moved it, or cleared it away. Returns how many it wrote.
local count = tonumber(ARGV[1])
for i = 2, count + 1 do
  if not redis.call('ZSCORE', KEYS[2], ARGV[i]) then return 0 end
end
for i = count + 2, #ARGV, 4 do
  redis.call('HSET', KEYS[tonumber(ARGV[i])], ARGV[i + 2], ARGV[i + 3])
  redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i + 2])
end
return (#ARGV - count - 1) / 4
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
-- KEYS: level, slot hashes that end with these headers ...    ARGV: slots' size in ms, start of each slot, headers
-- A slot stays where somebody has put a chunk into it since these headers were listed: no header without its content.
if #ARGV > #KEYS then redis.call('ZREM', KEYS[1], unpack(ARGV, #KEYS + 1)) end
for i = 2, #KEYS do
  if redis.call('ZCOUNT', KEYS[1], ARGV[i], ARGV[i] + ARGV[1] - 1) == 0 then redis.call('UNLINK', KEYS[i]) end
end
return #ARGV - #KEYS
"""

# Rebuilding what the server has lost (`rebuild_store.py`). While hw is gone, nothing here counts: it is cleared
# away, then written again. Two may do so at once: whoever finds hw there goes on from it.

_STRANGE: Final = """
local function is_strange(answer)
  return type(answer) == 'table' and answer.err and string.find(answer.err, 'WRONGTYPE') ~= nil
end
"""

CLEAR_STRANGE: Final = (
    """
-- KEYS: hw, level b, level a, struck, all shards of the index
-- Removes what somebody else put in place of these keys, and is of another type, while hw is gone.
"""
    + _STRANGE
    + f"""
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 2, #KEYS do
  local command = 'HGET'
  if i <= 4 then command = 'ZSCORE' end
  if is_strange(redis.pcall(command, KEYS[i], '{END_FIELD}')) then redis.call('UNLINK', KEYS[i]) end
end
return 1
"""
)

CLEAR: Final = (
    """
-- KEYS: hw, level, the slot hash of each header    ARGV: headers
-- Removes these chunks while hw is gone. Returns 0 when it is there: somebody else writes already.
"""
    + _STRANGE
    + """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
for i = 1, #ARGV do
  local slot = KEYS[i + 2]
  if slot ~= KEYS[1] and is_strange(redis.pcall('HDEL', slot, ARGV[i])) then redis.call('UNLINK', slot) end
  redis.call('ZREM', KEYS[2], ARGV[i])
end
return 1
"""
)

REDO: Final = (
    """
-- KEYS and ARGV: see the writing; the numbers are those of the last block before these and of the last of these
-- Returns hw as it was, -1 when it is gone. Writes only when the blocks before are here and these are not. Blobs of a
-- slot without a header are left of a level that has gone: nobody needs them.
"""
    + _LOOK
    + _SHARD
    + f"""
if not number then hw = -1 end
if hw < tonumber(ARGV[1]) or hw >= tonumber(ARGV[2]) then return hw end
local sizes = {{[{COARSE.place}] = {COARSE.slot_ms}, [{FINE.place}] = {FINE.slot_ms}}}
for i = 6, 5 + tonumber(ARGV[3]), 5 do
  local level, slot, size = tonumber(ARGV[i]), KEYS[tonumber(ARGV[i + 1])], sizes[tonumber(ARGV[i])]
  local start = ARGV[i + 2] - ARGV[i + 2] % size
  if redis.call('EXISTS', slot) == 1 and redis.call('ZCOUNT', KEYS[level], start, start + size - 1) == 0 then
    redis.call('UNLINK', slot)
  end
end
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
