"""Keys that vanish while the partition's number stays: evicted, deleted, expired. On every kind of Redis."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from policies.headers import ID, OFFSET_MAX
from sidecar.model.record import Held, Position, Tombstone, TopicPartition
from sidecar.overflow import tidying
from sidecar.overflow.interface import Change, OverflowFull, OverflowLoss, Redo
from sidecar.overflow.keys import (
    COARSE,
    DUE_MAX_MS,
    END_FIELD,
    END_MEMBER,
    FINE,
    INDEX_SHARDS,
    LaneKeys,
    Level,
    read_header,
)
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from tests.contract.lost_lane import LostLane
from tests.contract.overflow_records import LANE, NOW_MS, START, at, held, promote_all
from tests.contract.redis_servers import RedisServer, redis_server_fixture

__all__ = ["redis_server_fixture"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FAR = at(40 * DAY_MS)
TIDY_MS = 10_000  # between two tidyings, by housekeeping
_groups = itertools.count()

Call = Callable[[RedisOverflow], object]
CALLS: dict[str, Call] = {
    "the question of each second": lambda overflow: overflow.last_applied(LANE),
    "a promotion": lambda overflow: overflow.promote(LANE, START, FAR, 1_000, 2),
    "a look for an id": lambda overflow: overflow.find(LANE, ["id5"], START, 2),
    "a block": lambda overflow: overflow.apply([Change(LANE, 3, [held(99, HOUR_MS)])], NOW_MS),
    "a block once more": lambda overflow: overflow.apply([Change(LANE, 2, [])], NOW_MS),
    "a tidying": lambda overflow: overflow.tidy(LANE, START, NOW_MS),
    "a count": lambda overflow: overflow.count(LANE, START),
    "a rebuild's block": lambda overflow: store_of(overflow).redo(LANE, [Redo(2, 3, [held(99, HOUR_MS)])], NOW_MS),
}


def store_of(overflow: RedisOverflow) -> RedisRebuildStore:
    return RedisRebuildStore(overflow.client, overflow.group)


def named(offset: int, delay_ms: int) -> Held:
    return held(offset, delay_ms)._replace(trailer=[(ID, b"id%d" % offset)])


RECORDS = [named(offset, 600_000 + offset * HOUR_MS // 2) for offset in range(20)]
CANCELLED = RECORDS[3]


@pytest.fixture(name="overflow")
def overflow_fixture(redis_server: RedisServer) -> Iterator[RedisOverflow]:
    overflow = open_overflow(redis_server.url, f"vanished{next(_groups)}")
    yield overflow
    overflow.close()


@pytest.fixture(name="held_there")
def held_there_fixture(overflow: RedisOverflow) -> RedisOverflow:
    """Records in both levels, one of them cancelled, looked at by a process that has read nothing ahead."""
    overflow.apply([Change(LANE, 1, RECORDS)], NOW_MS)
    overflow.apply([Change(LANE, 2, [], [Tombstone(CANCELLED.position, "id3")])], NOW_MS)
    return overflow


def keys_of(overflow: RedisOverflow) -> LaneKeys:
    return LaneKeys(overflow.group, LANE)


def slots(overflow: RedisOverflow, level: Level) -> list[str]:
    """The hashes of a level's slots."""
    members = overflow.client.zrangebyscore(keys_of(overflow).level(level), 0, DUE_MAX_MS)
    return sorted({keys_of(overflow).slot(read_header(member, level)) for member in members})


LOSE: dict[str, Callable[[Any, str], object]] = {
    "unlinked": lambda client, key: client.unlink(key),
    "expired": lambda client, key: client.pexpire(key, 0),
}


@pytest.mark.parametrize("way", LOSE)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("place", [1, 2, 3], ids=["b", "a", "x"])
def test_a_key_that_every_partition_has_is_missed_before_anything_is_passed_over_or_written(
    redis_server: RedisServer, held_there: RedisOverflow, place: int, call: str, way: str
) -> None:
    key = keys_of(held_there).fixed[place]
    with open_overflow(redis_server.owner_url, held_there.group).client as owner:
        LOSE[way](owner, key)
    for _ in range(2):  # and it stays missed: nothing makes up for it in silence
        with pytest.raises(OverflowLoss, match=f"{key} has gone") as caught:
            CALLS[call](held_there)
        assert (caught.value.lane, caught.value.hw) == (LANE, 0)
    with pytest.raises(OverflowLoss) as caught:
        held_there.last_applied(LANE)
    assert caught.value.number == 2, "as a recovery wants to know"
    assert held_there.client.get(keys_of(held_there).hw) == b"+2"
    assert store_of(held_there).place(LANE) == -1, "a rebuild begins with nothing"


def test_a_key_that_vanishes_is_missed_by_who_has_read_ahead(held_there: RedisOverflow) -> None:
    first = held_there.promote(LANE, START, at(HOUR_MS), 1, 2)
    assert [record.offset for record in first.records] == [0]
    held_there.client.unlink(keys_of(held_there).level(COARSE))
    with pytest.raises(OverflowLoss):
        held_there.promote(LANE, first.cursor, at(HOUR_MS), 1, 2)


@pytest.mark.parametrize("shard", range(20))
def test_a_shard_of_the_index_is_missed_by_who_looks_for_an_id_in_it(held_there: RedisOverflow, shard: int) -> None:
    key, _ = keys_of(held_there).indexed(f"id{shard}")
    held_there.client.unlink(key)
    with pytest.raises(OverflowLoss, match=f"{key} has gone"):
        held_there.find(LANE, [f"id{shard}"], START, 2)
    held_there.apply([Change(LANE, 3, [named(shard, 30 * HOUR_MS)])], NOW_MS)  # there again, with this id alone
    with pytest.raises(OverflowLoss, match=f"{key} has gone"):
        held_there.find(LANE, [f"id{shard}"], START, 3)
    with pytest.raises(OverflowLoss, match=f"{key} has gone"):
        held_there.tidy(LANE, START, NOW_MS)


def test_ids_that_were_never_held_are_not_missed(held_there: RedisOverflow) -> None:
    ids = [f"other{number}" for number in range(300)]  # in all shards
    assert len({keys_of(held_there).indexed(other)[0] for other in ids}) == INDEX_SHARDS
    assert held_there.find(LANE, [*ids, "id3", "id4"], START, 2) == {"id4": RECORDS[4]}


def tidy_for_a_minute(overflow: RedisOverflow, now_ms: int = NOW_MS) -> None:
    for _ in range(60_000 // TIDY_MS):
        overflow.tidy(LANE, START, now_ms)
        now_ms += TIDY_MS


@pytest.mark.parametrize("level", [COARSE, FINE], ids=["b", "a"])
def test_the_content_of_a_slot_is_missed_within_a_minute_at_any_size(
    overflow: RedisOverflow, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "SLOTS_PER_STEP", 300)
    count = 1_500 if level is COARSE else 100
    apart_ms = HOUR_MS if level is COARSE else 30_000
    records = [held(offset, 2 * HOUR_MS * (level is COARSE) + 60_000 + offset * apart_ms) for offset in range(count)]
    overflow.apply([Change(LANE, 1, records)], NOW_MS)
    tidy_for_a_minute(overflow)
    overflow.client.unlink(slots(overflow, level)[-1])
    with pytest.raises(OverflowLoss, match="has gone"):
        tidy_for_a_minute(overflow, NOW_MS + 60_000)


def test_slots_that_are_settled_are_not_missed(held_there: RedisOverflow) -> None:
    """A server may be slower in removing them than this one."""
    for slot in slots(held_there, FINE):
        held_there.client.unlink(slot)
    assert not held_there.tidy(LANE, at(3 * HOUR_MS), NOW_MS)
    assert len(promote_all(held_there, at(3 * HOUR_MS), FAR)) == 14


@pytest.mark.parametrize("lost", ["b", "a", "x", "slots of b", "slots of a", "the index", "all but hw"])
def test_what_vanished_is_rebuilt_and_what_was_cancelled_stays_so(
    redis_server: RedisServer, held_there: RedisOverflow, lost: str
) -> None:
    overflow, store, keys = held_there, store_of(held_there), keys_of(held_there)
    lane = LostLane()
    lane.add([record._replace(headers=[*record.headers, *record.trailer]) for record in RECORDS])  # as they came
    lane.add([], leaving=[CANCELLED])
    fixed = dict(zip("hbax", keys.fixed, strict=True))
    gone = {
        **{name: [fixed[name]] for name in "bax"},
        "slots of b": slots(overflow, COARSE),
        "slots of a": slots(overflow, FINE),
        "the index": keys.shards(),
        "all but hw": [*keys.fixed[1:], *keys.shards(), *slots(overflow, COARSE), *slots(overflow, FINE)],
    }[lost]
    overflow.client.unlink(*gone)
    with pytest.raises(OverflowLoss) as caught:
        overflow.tidy(LANE, START, NOW_MS)
    rebuild = lane.rebuild(store, caught.value.hw, 2, START)
    while rebuild.result is None:
        rebuild.step(NOW_MS)
    assert rebuild.result.reconciled
    kept = [record.offset for record in RECORDS if record != CANCELLED]
    assert [record.offset for record in promote_all(overflow, START, FAR)] == kept
    assert sorted(overflow.find(LANE, ["id3", "id4"], START, 2)) == ["id4"]
    for settled in (START, *(at(hours * HOUR_MS) for hours in range(1, 13))):
        overflow.tidy(LANE, settled, NOW_MS)
    left = {
        key.decode() for found in redis_server.on_each_node(lambda node: node.keys(f"{keys.tag}:*")) for key in found
    }
    assert left <= {*keys.fixed, *keys.shards()}, "blobs of a level that had gone are cleared away, too"


# --- versions that know nothing of it ---------------------------------------------------------------------------------


def as_an_older_version(overflow: RedisOverflow, number: int) -> None:
    """Leave in Redis what a version that writes no end members would have left."""
    keys = keys_of(overflow)
    for key in keys.fixed[1:]:
        overflow.client.zremrangebyscore(key, DUE_MAX_MS + 1, "+inf")
    for key in keys.shards():
        overflow.client.hdel(key, END_FIELD)
    overflow.client.set(keys.hw, number)


def as_a_list(client: Any, key: str) -> None:
    client.unlink(key)
    client.lpush(key, "x")


@pytest.mark.parametrize("way", [*LOSE.values(), as_a_list])
def test_of_many_partitions_that_are_asked_at_once_each_has_its_own_answer(
    redis_server: RedisServer, held_there: RedisOverflow, way: Callable[[Any, str], object]
) -> None:
    *others, new = [TopicPartition("others", partition) for partition in range(4)]
    for lane in others:
        held_there.apply([Change(lane, 1, [held(99, HOUR_MS)])], NOW_MS)
    lanes = [others[0], LANE, others[1], new, others[2]]
    assert held_there.last_applied_of(lanes) == [1, 2, 1, 0, 1]
    with open_overflow(redis_server.owner_url, held_there.group).client as owner:
        way(owner, keys_of(held_there).fixed[1])
    first, lost, *rest = held_there.last_applied_of(lanes)
    assert isinstance(lost, OverflowLoss)
    assert (lost.lane, lost.hw) == (LANE, 0)
    assert [first, *rest] == [1, 1, 0, 1]


@pytest.mark.parametrize("by", ["a block", "a tidying"])
def test_what_an_older_version_wrote_is_read_and_watched_from_the_next_writing_on(
    held_there: RedisOverflow, by: str
) -> None:
    as_an_older_version(held_there, 2)
    assert held_there.last_applied(LANE) == store_of(held_there).place(LANE) == 2
    kept = [record for record in RECORDS if record != CANCELLED]
    assert promote_all(held_there, START, FAR) == kept
    assert sorted(held_there.find(LANE, ["id3", "id4"], START, 2)) == ["id4"]
    if by == "a block":
        held_there.apply([Change(LANE, 3, [])], NOW_MS)
    else:
        held_there.tidy(LANE, START, NOW_MS)
    held_there.client.unlink(keys_of(held_there).level(COARSE))
    with pytest.raises(OverflowLoss):
        held_there.last_applied(LANE)


def test_a_full_server_keeps_an_older_version_s_partition_from_nothing(
    redis_server: RedisServer, held_there: RedisOverflow
) -> None:
    as_an_older_version(held_there, 2)
    [limit, *_] = redis_server.on_each_node(lambda client: client.config_get("maxmemory")["maxmemory"])
    redis_server.configure("maxmemory", "1mb")
    try:
        with pytest.raises(OverflowFull):
            held_there.apply([Change(LANE, 3, [])], NOW_MS)
        assert not held_there.tidy(LANE, START, NOW_MS)
    finally:
        redis_server.configure("maxmemory", limit)
    assert held_there.client.get(keys_of(held_there).hw) == b"2"
    assert not held_there.tidy(LANE, START, NOW_MS + TIDY_MS)
    assert held_there.client.get(keys_of(held_there).hw) == b"+2"


def test_an_older_version_reads_what_this_one_writes(held_there: RedisOverflow) -> None:
    """An older version takes hw for a number, each member of a level for a chunk's header: the last is never due."""
    assert int(held_there.client.get(keys_of(held_there).hw)) == 2
    assert held_there.client.eval("return tonumber(redis.call('GET', KEYS[1]))", 1, keys_of(held_there).hw) == 2
    for level in (COARSE, FINE):
        last = held_there.client.zrange(keys_of(held_there).level(level), -1, -1)
        assert last == [END_MEMBER]
        assert read_header(END_MEMBER, level).first > Position(DUE_MAX_MS + HOUR_MS, OFFSET_MAX)


def test_what_an_older_version_removes_and_moves_is_not_missed(held_there: RedisOverflow) -> None:
    """An older version removes chunks and slots and writes numbers without a sign, and knows of nothing else."""
    keys = keys_of(held_there)
    for level in (COARSE, FINE):
        members = held_there.client.zrangebyscore(keys.level(level), 0, NOW_MS + 5 * HOUR_MS)
        slots_gone = {keys.slot(read_header(member, level)) for member in members}
        held_there.client.zrem(keys.level(level), *members)
        held_there.client.unlink(*slots_gone)
    held_there.client.zremrangebyscore(keys.struck, "-inf", f"({NOW_MS + 5 * HOUR_MS}")
    for number in (b"+2", b"2", b"3"):
        held_there.client.set(keys.hw, number)
        assert held_there.last_applied(LANE) == int(number)
        assert len(promote_all(held_there, at(5 * HOUR_MS), FAR)) == 10
        assert not held_there.tidy(LANE, at(5 * HOUR_MS), NOW_MS)
        assert sorted(held_there.find(LANE, ["id3", "id15"], at(5 * HOUR_MS), 2)) == ["id15"]
