"""A neighbour's writes into Redis are a loss, which is rebuilt: never a crash, never memory without a limit."""

import itertools
import struct
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import xxhash
import zstandard

from policies.headers import ID
from sidecar.model.record import Held, Position
from sidecar.overflow.chunk import BYTES_MAX, RAW_BYTES_MAX
from sidecar.overflow.interface import Change, OverflowLoss, Redo
from sidecar.overflow.keys import COARSE, DUE_MAX_MS, FINE, INDEX_SHARDS, LEVELS, Header, LaneKeys, read_header
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from sidecar.overflow.signing import Signing
from tests.contract.lost_lane import LostLane
from tests.contract.overflow_records import LANE, NOW_MS, START, at, held, promote_all
from tests.contract.redis_servers import RedisServer, redis_server_fixture

__all__ = ["redis_server_fixture"]

HOUR_MS = 3_600_000
FAR = at(40 * 24 * HOUR_MS)
REBUILDS_MAX = 5
MEMORY_BYTES_MAX = 8 * 1024 * 1024  # what answering a call may take, whatever Redis says
RECORDS = [held(n, 600_000 + n * HOUR_MS // 2)._replace(trailer=[(ID, b"id%d" % n)]) for n in range(20)]
_groups = itertools.count()

Write = Callable[[Any, LaneKeys], object]


@pytest.fixture(name="overflow")
def overflow_fixture(redis_server: RedisServer) -> Iterator[RedisOverflow]:
    overflow = open_overflow(redis_server.owner_url, f"hostile{next(_groups)}")
    overflow.apply([Change(LANE, 1, RECORDS)], NOW_MS)
    yield overflow
    overflow.close()


def first_header(client: Any, keys: LaneKeys) -> Header:
    (member,) = client.zrangebyscore(keys.level(COARSE), 0, DUE_MAX_MS, start=0, num=1)
    return read_header(member, COARSE)


def claimed(**claims: int) -> Write:
    """A header in place of the first one, which claims something else, over the same content."""

    def write(client: Any, keys: LaneKeys) -> None:
        true = first_header(client, keys)
        fields: dict[str, Any] = {
            "first": true.first, "last": true.last, "slot": true.slot, "rows": true.rows, "size": true.blob_bytes,
            "raw": true.raw_bytes, "hash": true.content_hash,
        }  # fmt: skip
        for name, claim in claims.items():
            if name in ("first_due", "last_due"):
                place = fields[name.removesuffix("_due")]
                fields[name.removesuffix("_due")] = Position(claim, place[1])
            else:
                fields[name] = claim
        replace(client, keys, true, pack(**fields), client.hget(keys.slot(true), true.member))

    return write


def pack(first: Any, last: Any, slot: Any, rows: Any, size: Any, raw: Any, hash: Any) -> bytes:
    return struct.pack(">QQQQQHIIBQ", *first, *last, slot, rows, size, raw, 1, hash)


def replace(client: Any, keys: LaneKeys, true: Header, member: bytes, blob: bytes) -> None:
    client.zrem(keys.level(COARSE), true.member)
    client.hdel(keys.slot(true), true.member)
    client.zadd(keys.level(COARSE), {member: true.first.due_ms})
    client.hset(keys.slot(true), member, blob)


def content(raw: bytes, rows: int = 0) -> Write:
    """Other content under a header that is right about it."""

    def write(client: Any, keys: LaneKeys) -> None:
        true = first_header(client, keys)
        blob = zstandard.ZstdCompressor().compress(raw)
        member = pack(true.first, true.last, true.slot, rows or true.rows, len(blob), len(raw),
                      xxhash.xxh3_64_intdigest(blob))  # fmt: skip
        replace(client, keys, true, member, blob)

    return write


def larger_than_said(client: Any, keys: LaneKeys) -> None:
    true = first_header(client, keys)
    client.hset(keys.slot(true), true.member, bytes(20_000_000))


def of_type(*named: Callable[[LaneKeys], str]) -> Write:
    """Lists in place of these keys."""

    def write(client: Any, keys: LaneKeys) -> None:
        for key in named:
            client.delete(key(keys))
            client.rpush(key(keys), "a list")

    return write


HOSTILE: dict[str, Write] = {
    "a chunk that claims 4 GiB": claimed(raw=(1 << 32) - 1),
    "a chunk that claims a little more than any has": claimed(rows=2, raw=BYTES_MAX + 1),
    "a record that claims more than any has": claimed(rows=1, raw=RAW_BYTES_MAX + 1),
    "a blob that claims 4 GiB": claimed(size=(1 << 32) - 1),
    "a blob larger than its header says": larger_than_said,
    "a bomb": content(bytes(64 << 20)),
    "no records": claimed(rows=0),
    "more records than are there": claimed(rows=500),
    "more records than any chunk has": claimed(rows=65_535),
    "records of another slot": claimed(slot=1),
    "an end before the beginning": claimed(last_due=0),
    "an end in another slot": claimed(last_due=NOW_MS + 900 * HOUR_MS),
    "another hash": claimed(hash=1),
    "a constant column of four billion rows": content(b"\xff\xff\xff\xff\x12\0\0\0" + (b"\0" + bytes(8)) * 2),
    "nothing": content(b""),
    "noise": content(bytes(range(256)) * 8),
    "a header of another length": lambda client, keys: client.zadd(keys.level(FINE), {b"short": NOW_MS + 600_000}),
    "no number": lambda client, keys: client.set(keys.hw, b"many"),
    "an infinite number": lambda client, keys: client.set(keys.hw, b"+inf"),
    "a number below nothing": lambda client, keys: client.set(keys.hw, b"-7"),
    "a number that is a list": of_type(lambda keys: keys.hw),
    "hours that are a list": of_type(lambda keys: keys.level(COARSE)),
    "minutes that are a list": of_type(lambda keys: keys.level(FINE)),
    "strikes that are a list": of_type(lambda keys: keys.struck),
    "a slot that is a list": lambda client, keys: of_type(lambda _: keys.slot(first_header(client, keys)))(
        client, keys
    ),
    "an index that is a list": of_type(*(partial(LaneKeys.index, shard=shard) for shard in range(INDEX_SHARDS))),
    "an index of other places": lambda client, keys: [
        client.hset(keys.index(shard), field, b"nowhere")
        for shard in range(INDEX_SHARDS)
        for field in client.hkeys(keys.index(shard))
        if len(field) == 8
    ],
}

CALLS: dict[str, Callable[[RedisOverflow], object]] = {
    "number": lambda overflow: overflow.last_applied(LANE),
    "promote": lambda overflow: overflow.promote(LANE, START, FAR, 1_000, 1),
    "find": lambda overflow: overflow.find(LANE, [f"id{n}" for n in range(20)], START, 1),
    "count": lambda overflow: overflow.count(LANE, START),
    "apply": lambda overflow: overflow.apply([Change(LANE, 2, [held(99, HOUR_MS)])], NOW_MS),
    "tidy": lambda overflow: [overflow.tidy(LANE, START, NOW_MS + 9 * HOUR_MS + n) for n in range(2 * INDEX_SHARDS)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_neighbour_writes_is_a_loss_and_what_is_rebuilt_is_whole(overflow: RedisOverflow, name: str) -> None:
    keys = LaneKeys(overflow.group, LANE)
    HOSTILE[name](overflow.client, keys)
    losses = 0
    tracemalloc.start()
    for call in CALLS.values():
        try:
            call(overflow)
        except OverflowLoss as loss:
            losses += loss.lane == LANE
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert losses, "nobody noticed"
    assert taken < MEMORY_BYTES_MAX

    rebuild(overflow, [RECORDS])
    assert sizeless(promote_all(overflow, START, FAR)) == sizeless(RECORDS)
    assert sizeless(overflow.find(LANE, ["id7"], START, 1).values()) == sizeless(RECORDS[7:8])
    assert overflow.count(LANE, START) == len(RECORDS)
    for level in LEVELS:
        assert overflow.client.type(keys.level(level)) == b"zset"


def test_keys_of_another_type_are_cleared_away_where_only_a_part_is_missing(redis_server: RedisServer) -> None:
    """A copy of Redis from before is back, so what is there counts, and what is written behind it meets lists."""
    overflow = open_overflow(redis_server.owner_url, f"hostile{next(_groups)}")
    overflow.apply([Change(LANE, 1, RECORDS[:10])], NOW_MS)
    HOSTILE["an index that is a list"](overflow.client, LaneKeys(overflow.group, LANE))
    rebuild(overflow, [RECORDS[:10], RECORDS[10:]], hw=1)
    assert sizeless(promote_all(overflow, START, FAR)) == sizeless(RECORDS)
    overflow.close()


def rebuild(overflow: RedisOverflow, blocks: Sequence[list[Held]], hw: int = 0) -> None:
    """As the engine does it: begun anew with each loss that it meets itself."""
    lost = LostLane()
    for records in blocks:
        lost.add(records)
    for _ in range(REBUILDS_MAX):
        work = lost.rebuild(RedisRebuildStore(overflow.client, overflow.group), hw, len(blocks), START)
        try:
            while work.result is None:
                work.step(NOW_MS)
        except OverflowLoss as loss:
            hw = loss.hw
        else:
            assert work.result.reconciled
            return
        finally:
            work.close()
    raise AssertionError("it never came to an end")


def sizeless(records: Iterable[Held]) -> list[Held]:
    """A rebuild counts a record's bytes for itself."""
    return [record._replace(size=0) for record in records]


# --- with keys ------------------------------------------------------------------------------------------------------

KEY, OTHER_KEY = b"1" * 32, b"2" * 32


def forged(client: Any, keys: LaneKeys) -> None:
    """A whole partition as a neighbour would write it who knows our format, and has no key."""
    for level in LEVELS:
        client.zremrangebyscore(keys.level(level), 0, DUE_MAX_MS)
    own = RedisOverflow(client, keys.tag[1:].partition(":")[0])
    own.apply([Change(LANE, 2, [record._replace(target="payments") for record in RECORDS])], NOW_MS)


def moved(client: Any, keys: LaneKeys) -> None:
    """A chunk that was signed for another partition."""
    other = LaneKeys(keys.tag[1:].partition(":")[0], LANE._replace(partition=4))
    signed = RedisOverflow(client, keys.tag[1:].partition(":")[0], signing=Signing((KEY,)))
    signed.apply([Change(LANE._replace(partition=4), 1, [RECORDS[5]._replace(target="payments")])], NOW_MS)
    (member,) = client.zrangebyscore(other.level(COARSE), 0, DUE_MAX_MS)
    header = read_header(member, COARSE)
    client.zadd(keys.level(COARSE), {member: header.first.due_ms})
    client.hset(keys.slot(header), member, client.hget(other.slot(header), member))


def of_other_times(client: Any, keys: LaneKeys) -> None:
    """Signed content under a header of another level."""
    true = first_header(client, keys)
    blob = client.hget(keys.slot(true), true.member)
    slot = true.first.due_ms // FINE.slot_ms
    member = pack(true.first, true.last, slot, true.rows, true.blob_bytes, true.raw_bytes, true.content_hash)
    client.zadd(keys.level(FINE), {member: true.first.due_ms})
    client.hset(f"{keys.tag}:a:{slot}", member, blob)


@pytest.mark.parametrize("write", [forged, moved, of_other_times])
def test_with_a_key_nothing_counts_that_none_of_us_has_written_for_its_place(
    redis_server: RedisServer, write: Write
) -> None:
    signed = open_overflow(redis_server.owner_url, f"signed{next(_groups)}", signing=Signing((KEY,)))
    signed.apply([Change(LANE, 1, RECORDS)], NOW_MS)
    assert promote_all(signed, START, FAR) == RECORDS
    write(signed.client, LaneKeys(signed.group, LANE))
    reader = RedisOverflow(signed.client, signed.group, signing=Signing((KEY,)))
    with pytest.raises(OverflowLoss):
        promote_all(reader, START, FAR)
    signed.close()


def test_what_was_not_signed_is_lost_once_there_is_a_key_and_is_signed_by_the_rebuild(overflow: RedisOverflow) -> None:
    between = Signing((KEY, OTHER_KEY))
    reader = RedisOverflow(overflow.client, overflow.group, signing=Signing((KEY,)))
    with pytest.raises(OverflowLoss, match="none of our keys"):
        promote_all(reader, START, FAR)
    store = RedisRebuildStore(overflow.client, overflow.group, Signing((KEY,)))
    begin = True
    while store.reset(LANE, begin):
        begin = False
    store.redo(LANE, [Redo(0, 1, RECORDS)], NOW_MS)
    assert store.read(LANE, START, 1_000, 1).records == RECORDS
    assert store.places(LANE, START, 1_000, 1).cursor > RECORDS[-1].position
    assert promote_all(RedisOverflow(overflow.client, overflow.group, signing=between), START, FAR) == RECORDS
    for _ in range(3):  # moved to the finer level, it is signed anew
        RedisOverflow(overflow.client, overflow.group, signing=between).tidy(LANE, START, NOW_MS + HOUR_MS)
    assert promote_all(RedisOverflow(overflow.client, overflow.group, signing=between), START, FAR) == RECORDS
    assert promote_all(overflow, START, FAR) == RECORDS, "a replica that has no key yet reads what is signed"
