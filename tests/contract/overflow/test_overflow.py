"""Promises of the overflow to the engine, on every kind of Redis."""

import itertools
from collections.abc import Iterator

import pytest

from policies.headers import ID
from sidecar.doctor.redis import inspect
from sidecar.doctor.redis import state as state_of
from sidecar.model.record import Position, Tombstone, TopicPartition
from sidecar.overflow import chunk_reader, redis_overflow, tidying
from sidecar.overflow.interface import Change, OverflowFull, OverflowLoss
from sidecar.overflow.keys import COARSE, DUE_MAX_MS, FINE, LaneKeys, read_header
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from tests.contract.overflow_records import LANE, NOW_MS, START, at, held, in_order, promote_all
from tests.contract.redis_servers import RedisServer, redis_server_fixture

__all__ = ["redis_server_fixture"]

HOUR_MS = 3_600_000
_groups = itertools.count()


@pytest.fixture(name="overflow")
def overflow_fixture(redis_server: RedisServer) -> Iterator[RedisOverflow]:
    overflow = open_overflow(redis_server.url, f"group{next(_groups)}")
    yield overflow
    overflow.close()


def keys_left(server: RedisServer, group: str) -> set[str]:
    found = server.on_each_node(lambda client: client.keys(f"*{group}:*"))
    return {key.decode() for keys in found for key in keys}


def test_what_is_put_is_promoted_in_order(overflow: RedisOverflow) -> None:
    records = [held(offset, offset * 7_919 % (40 * HOUR_MS)) for offset in range(3_000)]
    overflow.apply([Change(LANE, 1, records[:2_000]), Change(LANE, 2, records[2_000:])], NOW_MS)
    assert overflow.last_applied(LANE) == 2
    assert promote_all(overflow, START, at(40 * HOUR_MS)) == in_order(records)
    assert overflow.count(LANE, START) == 3_000
    assert overflow.count(LANE, in_order(records)[999].position) == 2_000


def test_records_due_at_one_moment_are_split_by_offset(overflow: RedisOverflow) -> None:
    records = [held(offset, 5_000) for offset in range(2_000)]
    overflow.apply([Change(LANE, 1, records)], NOW_MS)
    step = overflow.promote(LANE, START, at(60_000), 300, 1)
    assert step.records == records[:300]
    assert step.cursor == records[299].position
    assert promote_all(overflow, step.cursor, at(60_000), 300) == records[300:]


def test_a_block_applied_twice_changes_nothing(overflow: RedisOverflow) -> None:
    first, second = Change(LANE, 1, [held(1, 9_000)]), Change(LANE, 2, [held(2, 9_000)])
    overflow.apply([first, second], NOW_MS)
    overflow.apply([first, second], NOW_MS + 5 * HOUR_MS)
    overflow.apply([Change(LANE, 1, [held(7, 9_000)])], NOW_MS)
    assert overflow.last_applied(LANE) == 2
    assert promote_all(overflow, START, at(HOUR_MS)) == [held(1, 9_000), held(2, 9_000)]


def test_blocks_that_are_there_in_part_are_completed(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    """Another process applied the first blocks, and took other blocks together than this one does."""
    other_lane = TopicPartition("reminders", 4)
    blocks = [Change(LANE, number, [held(number, number * 1_000)]) for number in range(1, 7)]
    elsewhere = [Change(other_lane, number, [held(number, number * 1_000)]) for number in range(1, 4)]
    other = open_overflow(redis_server.url, overflow.group)
    other.apply(blocks[:2], NOW_MS)
    other.close()
    overflow.apply([*blocks[:3], *elsewhere[:2], *blocks[3:], *elsewhere[2:]], NOW_MS)
    assert (overflow.last_applied(LANE), overflow.last_applied(other_lane)) == (6, 3)
    assert promote_all(overflow, START, at(HOUR_MS)) == [held(number, number * 1_000) for number in range(1, 7)]
    assert overflow.count(LANE, START) == 6


def test_a_promotion_says_up_to_where_nothing_follows_and_the_next_may_begin_there(overflow: RedisOverflow) -> None:
    near, far = held(1, 1_000), held(2, 60_000)
    overflow.apply([Change(LANE, 1, [near, far])], NOW_MS)
    seen = overflow.promote(LANE, START, at(2_000), 10, 1)
    assert (seen.records, seen.cursor, seen.vacant) == ([near], at(2_000), Position(far.due_ms, far.offset - 1))
    between = held(3, 30_000)
    overflow.apply([Change(LANE, 2, [between])], NOW_MS)
    seen = overflow.promote(LANE, at(20_000), at(25_000), 10, 2)
    assert (seen.records, seen.vacant) == ([], Position(between.due_ms, between.offset - 1))
    seen = overflow.promote(LANE, seen.vacant, at(40_000), 10, 2)
    assert (seen.records, seen.vacant) == ([between], Position(far.due_ms, far.offset - 1))
    assert promote_all(overflow, seen.vacant, at(HOUR_MS)) == [far]


def test_what_is_written_near_is_kept_in_memory_of_few_partitions_though_none_is_promoted(
    overflow: RedisOverflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_overflow, "READ_AHEAD_RECORDS_MAX", 50)
    lanes = [TopicPartition("near", partition) for partition in range(20)]
    for lane in lanes:
        overflow.apply([Change(lane, 1, [held(1, 600_000)])], NOW_MS)
        overflow.promote(lane, START, at(1_000), 10, 1)
    for lane in lanes:
        overflow.apply([Change(lane, 2, [held(offset, 60_000 + offset) for offset in range(2, 22)])], NOW_MS)
    assert sum(map(len, overflow._read_aheads.values())) <= 2 * 50
    assert len(promote_all(overflow, at(1_000), at(HOUR_MS), lane=lanes[0])) == 21


def test_what_is_struck_out_is_never_promoted_nor_found(overflow: RedisOverflow) -> None:
    records = [held(offset, offset * 100)._replace(trailer=[(ID, b"id%d" % offset)]) for offset in range(1, 1_001)]
    gone = records[::3]
    struck = [Tombstone(record.position, f"id{record.offset}") for record in gone]
    overflow.apply([Change(LANE, 1, records)], NOW_MS)
    assert overflow.promote(LANE, START, at(200), 10, 1).records == records[:2]  # and reads ahead
    overflow.apply([Change(LANE, 2, [], struck[1:])], NOW_MS)
    kept = [record for record in records if record not in gone[1:]]
    assert promote_all(overflow, records[1].position, at(HOUR_MS)) == kept[2:]
    ids = [f"id{record.offset}" for record in records]
    assert overflow.find(LANE, ids, START, 2) == {f"id{record.offset}": record for record in kept}
    with pytest.raises(OverflowLoss):
        overflow.find(LANE, ids, START, 3)
    again = records[0]._replace(offset=5_000, due_ms=NOW_MS + 40 * HOUR_MS)
    overflow.apply([Change(LANE, 3, [again], struck[:1])], NOW_MS)
    assert overflow.find(LANE, ids[:1], START, 3) == {"id1": again}  # the strike is of the former place


def test_blocks_are_written_together_as_chunks_that_do_not_overlap(overflow: RedisOverflow) -> None:
    records = [held(offset, offset * 7_919 % 60_000) for offset in range(6_000)]
    blocks = [Change(LANE, 1 + start // 500, records[start : start + 500]) for start in range(0, 6_000, 500)]
    overflow.apply(blocks, NOW_MS)
    assert overflow.last_applied(LANE) == 12
    keys = LaneKeys(overflow.group, LANE)
    members = overflow.client.zrangebyscore(keys.level(FINE), 0, DUE_MAX_MS)
    headers = sorted(read_header(member, FINE) for member in members)
    assert 12 <= len(headers) <= 14  # of up to 512 records, in at most two slots
    assert all(header.last < following.first for header, following in itertools.pairwise(headers))


def test_a_gap_in_the_blocks_is_loss(overflow: RedisOverflow) -> None:
    other = TopicPartition("reminders", 4)
    with pytest.raises(OverflowLoss) as caught:
        overflow.apply([Change(other, 1, [held(1, 9_000)]), Change(LANE, 3, [held(2, 9_000)])], NOW_MS)
    assert (caught.value.lane, caught.value.hw) == (LANE, 0)
    assert overflow.last_applied(LANE) == 0
    assert overflow.last_applied(other) == 1


def test_fewer_blocks_than_acknowledged_is_loss(overflow: RedisOverflow) -> None:
    overflow.apply([Change(LANE, 1, [held(1, 9_000)])], NOW_MS)
    with pytest.raises(OverflowLoss) as caught:
        overflow.promote(LANE, START, at(HOUR_MS), 10, 2)
    assert caught.value.hw == 1


def test_loss_is_seen_although_the_records_were_read_ahead(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    overflow.apply([Change(LANE, 1, [held(1, 1_000), held(2, 30_000)])], NOW_MS)
    assert overflow.promote(LANE, START, at(2_000), 10, 1).records == [held(1, 1_000)]
    redis_server.on_each_node(lambda client: client.flushall())
    with pytest.raises(OverflowLoss):
        overflow.promote(LANE, at(2_000), at(40_000), 10, 1)


@pytest.mark.parametrize(("level", "delay_ms"), [(FINE, 9_000), (COARSE, 9 * HOUR_MS)])
def test_a_header_without_its_content_is_loss(
    redis_server: RedisServer, overflow: RedisOverflow, level: object, delay_ms: int
) -> None:
    assert level in (FINE, COARSE)
    overflow.apply([Change(LANE, 1, [held(1, delay_ms)])], NOW_MS)
    for key in keys_left(redis_server, overflow.group):
        if key.split("}:")[1].count(":"):
            overflow.client.delete(key)
    with pytest.raises(OverflowLoss):
        overflow.promote(LANE, START, at(10 * HOUR_MS), 10, 1)


def test_a_put_into_what_was_read_ahead_is_promoted(overflow: RedisOverflow) -> None:
    overflow.apply([Change(LANE, 1, [held(1, 1_000), held(2, 30_000)])], NOW_MS)
    assert overflow.promote(LANE, START, at(2_000), 10, 1).records == [held(1, 1_000)]
    overflow.apply([Change(LANE, 2, [held(3, 20_000), held(4, 900_000)])], NOW_MS)
    assert promote_all(overflow, at(2_000), at(40_000)) == [held(3, 20_000), held(2, 30_000)]


def test_a_put_by_another_process_is_promoted_too(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    overflow.apply([Change(LANE, 1, [held(1, 1_000), held(2, 30_000)])], NOW_MS)
    overflow.promote(LANE, START, at(2_000), 10, 1)
    other = open_overflow(redis_server.url, overflow.group)
    other.apply([Change(LANE, 2, [held(3, 20_000)])], NOW_MS)
    other.close()
    assert promote_all(overflow, at(2_000), at(40_000)) == [held(3, 20_000), held(2, 30_000)]


def test_settled_slots_go_and_nothing_else_stays(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    records = [held(offset, offset * 7_919 % (6 * HOUR_MS)) for offset in range(2_000)]
    overflow.apply([Change(LANE, 1, records)], NOW_MS)
    settled = at(3 * HOUR_MS)
    while overflow.tidy(LANE, settled, NOW_MS):
        pass
    assert promote_all(overflow, settled, at(6 * HOUR_MS)) == in_order(
        record for record in records if record.position > settled
    )
    while overflow.tidy(LANE, at(8 * HOUR_MS), NOW_MS):
        pass
    assert keys_left(redis_server, overflow.group) == set(LaneKeys(overflow.group, LANE).fixed)


def test_of_a_slot_that_goes_in_two_ways_nothing_stays(
    redis_server: RedisServer, overflow: RedisOverflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of settled headers ends within a coarse slot, and the cascade or a reset takes the slot's other chunks."""
    for module in (chunk_reader, tidying):
        monkeypatch.setattr(module, "HEADERS_PER_PAGE", 3)
    keys = LaneKeys(overflow.group, LANE)
    for number in range(1, 6):
        overflow.apply([Change(LANE, number, [held(number, 4 * HOUR_MS + number)])], NOW_MS)
    assert overflow.client.zcount(keys.level(COARSE), "-inf", DUE_MAX_MS) == 5
    overflow.tidy(LANE, at(7 * HOUR_MS), NOW_MS + 5 * HOUR_MS)
    assert keys_left(redis_server, overflow.group) == set(keys.fixed)

    for number in range(6, 11):
        overflow.apply([Change(LANE, number, [held(number, 4 * HOUR_MS + number)])], NOW_MS)
    overflow.tidy(LANE, at(7 * HOUR_MS), NOW_MS)
    rebuild = RedisRebuildStore(overflow.client, overflow.group)
    begin = True
    while rebuild.reset(LANE, begin):
        begin = False
    assert keys_left(redis_server, overflow.group) == {keys.hw}


def test_cascade_moves_what_comes_near_and_loses_nothing(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    records = [held(offset, offset * 9_973 % (6 * HOUR_MS)) for offset in range(2_000)]
    overflow.apply([Change(LANE, 1, records)], NOW_MS)
    keys = LaneKeys(overflow.group, LANE)
    before = overflow.client.zcount(keys.level(COARSE), "-inf", "+inf")
    now_ms = NOW_MS + 2 * HOUR_MS
    while overflow.tidy(LANE, Position(0, 0), now_ms):
        pass
    assert 0 < overflow.client.zcount(keys.level(COARSE), "-inf", "+inf") < before
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(records)
    assert overflow.count(LANE, START) == len(records)


def test_scripts_that_the_server_forgot_are_sent_again(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    redis_server.on_each_node(lambda client: client.script_flush())
    overflow.apply([Change(TopicPartition("t", number), 1, [held(1, 9_000)]) for number in range(5)], NOW_MS)
    redis_server.on_each_node(lambda client: client.script_flush())
    assert promote_all(overflow, START, at(HOUR_MS), lane=TopicPartition("t", 4)) == [held(1, 9_000)]


def test_a_full_server_refuses_puts_and_lets_everything_else_go_on(
    redis_server: RedisServer, overflow: RedisOverflow
) -> None:
    records = [held(offset, offset * 9_973 % (6 * HOUR_MS)) for offset in range(500)]
    overflow.apply([Change(LANE, 1, records)], NOW_MS)
    limits = redis_server.on_each_node(lambda client: client.config_get("maxmemory")["maxmemory"])
    redis_server.configure("maxmemory", "1mb")
    try:
        with pytest.raises(OverflowFull):
            overflow.apply([Change(LANE, 2, [held(9_999, 9_000)])], NOW_MS)
        assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(records)
        settled = at(7 * HOUR_MS)
        while overflow.tidy(LANE, settled, NOW_MS):
            pass
        assert keys_left(redis_server, overflow.group) == set(LaneKeys(overflow.group, LANE).fixed)
    finally:
        redis_server.configure("maxmemory", limits[0])
    overflow.apply([Change(LANE, 2, [held(9_999, 8 * HOUR_MS)])], NOW_MS)
    assert overflow.last_applied(LANE) == 2


def test_large_values_and_thousands_of_slots(overflow: RedisOverflow) -> None:
    large = [held(offset, offset, b"%d" % offset * 100_000) for offset in range(5)]
    sparse = [held(100 + offset, (2 + offset) * HOUR_MS) for offset in range(2_000)]
    overflow.apply([Change(LANE, 1, large), Change(LANE, 2, sparse)], NOW_MS)
    assert promote_all(overflow, START, at(2_100 * HOUR_MS)) == large + sparse


def test_a_healthy_server_has_no_findings(overflow: RedisOverflow) -> None:
    assert inspect(overflow.client) == []
    assert 0 < state_of(overflow.client).memory_ratio < 1
