"""Answers by Idempotency-Key, kept for a day in Redis where every replica finds them.

One HASH per key, changed only by scripts, so that two replicas never both believe they are the first:

    tickover:<group>:idempotency:<sha256 of caller and key>
        fingerprint   of the body; another one is a mismatch
        timestamp_ms  of the first try; a retry sends the record with it and so asks for the same due time
        busy_until    a lease: who got it has so long to answer; after a crash the next retry goes on
        holder        whose lease it is; nobody else ends it
        response      the answer, once there is one

Every script may run twice (redis-py repeats commands whose reply was lost). A repeated `begin` would find its
own lease and call itself busy, so the lease names its holder.
"""

import asyncio
import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import redis
import redis.exceptions

from api.ports import Answered, Busy, Fresh, IdempotencyUnavailable, Mismatch

KEPT_S: Final = 24 * 3_600
LEASE_MS: Final = 30_000
THREADS: Final = 4
# A Cluster that is away is no RedisError.
AWAY: Final = (redis.exceptions.RedisError, redis.exceptions.RedisClusterException, OSError)

# KEYS: 1 the hash.  ARGV: 1 fingerprint, 2 now_ms of the caller, 3 lease ms, 4 seconds kept, 5 holder
# -> {"fresh", timestamp_ms} | {"answered", response} | {"busy"} | {"mismatch"}
BEGIN: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local had = redis.call('HMGET', KEYS[1], 'fingerprint', 'response', 'busy_until', 'timestamp_ms', 'holder')
if not had[1] then
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[1], 'timestamp_ms', ARGV[2],
             'busy_until', now + ARGV[3], 'holder', ARGV[5])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  return {'fresh', ARGV[2]}
end
if had[1] ~= ARGV[1] then return {'mismatch'} end
if had[2] then return {'answered', had[2]} end
if tonumber(had[3]) > now and had[5] ~= ARGV[5] then return {'busy'} end
redis.call('HSET', KEYS[1], 'busy_until', now + ARGV[3], 'holder', ARGV[5])
return {'fresh', had[4]}
"""

# KEYS: 1 the hash.  ARGV: 1 holder, 2 response
# The first answer stays. Nothing is written under a key that has expired, nor by a try whose lease is its successor's.
FINISH: Final = """
if redis.call('HMGET', KEYS[1], 'holder')[1] == ARGV[1] then redis.call('HSETNX', KEYS[1], 'response', ARGV[2]) end
return 1
"""

# KEYS: 1 the hash.  ARGV: 1 holder
# A try that comes late must not end the lease of its successor.
RELEASE: Final = """
if redis.call('HMGET', KEYS[1], 'holder')[1] == ARGV[1] then redis.call('HSET', KEYS[1], 'busy_until', 0) end
return 1
"""

# KEYS: 1 the hash.  ARGV: 1 holder
# Nor delete what the successor has answered, or is about to.
FORGET: Final = """
local had = redis.call('HMGET', KEYS[1], 'holder', 'response')
if had[1] == ARGV[1] and not had[2] then redis.call('DEL', KEYS[1]) end
return 1
"""


class RedisIdempotency:
    """Over any synchronous redis-py client (`Redis` or `RedisCluster`), in threads of its own: a Redis that
    hangs must not use up the threads that others wait for.
    """

    def __init__(self, client: Any, group: str) -> None:
        self._client = client
        self._prefix = f"tickover:{group}:idempotency:"
        self._threads = ThreadPoolExecutor(THREADS, "api-idempotency")

    def stop(self) -> None:
        """Twice is harmless. The client belongs to whoever made it."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def begin(self, key: str, fingerprint: bytes, now_ms: int) -> Fresh | Answered | Busy | Mismatch:
        """Raises `IdempotencyUnavailable`."""
        holder = secrets.token_hex(16)
        word, *rest = await self._run(BEGIN, key, fingerprint, now_ms, LEASE_MS, KEPT_S, holder)
        match word:
            case b"fresh" | "fresh":
                return Fresh(int(rest[0]), holder)
            case b"answered" | "answered":
                return Answered(rest[0] if isinstance(rest[0], bytes) else rest[0].encode())
            case b"busy" | "busy":
                return Busy()
            case _:
                return Mismatch()

    async def finish(self, key: str, holder: str, response: bytes) -> None:
        await self._run(FINISH, key, holder, response)

    async def release(self, key: str, holder: str) -> None:
        await self._run(RELEASE, key, holder)

    async def forget(self, key: str, holder: str) -> None:
        await self._run(FORGET, key, holder)

    async def _run(self, script: str, key: str, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._eval, script, self._prefix + hashed(key), arguments)
        except AWAY as error:
            raise IdempotencyUnavailable(type(error).__name__) from None

    def _eval(self, script: str, key: str, arguments: tuple[Any, ...]) -> Any:
        """In a thread: even a client's first look for its Cluster takes time."""
        return self._client.eval(script, 1, key, *arguments)


def hashed(key: str) -> str:
    """Hash that is kept in place of a key: the key may be anything, a secret too."""
    return hashlib.sha256(key.encode()).hexdigest()
