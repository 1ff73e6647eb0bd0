"""Writing back what Redis has lost, on every kind of Redis."""

import itertools
from collections.abc import Iterator

import pytest

from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.model.record import Tombstone
from sidecar.overflow import chunk_writer, rebuild_store
from sidecar.overflow.connection import connect
from sidecar.overflow.interface import Change, OverflowFull, OverflowLoss, Redo
from sidecar.overflow.keys import COARSE, DUE_MAX_MS, FINE, LaneKeys
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from sidecar.overflow.scripts import REMOVE
from tests.contract.overflow.test_overflow_faults import Interrupted
from tests.contract.overflow_records import LANE, NOW_MS, START, at, held, in_order, promote_all
from tests.contract.redis_servers import RedisServer, redis_server_fixture, valkey_fixture

__all__ = ["redis_server_fixture", "valkey_fixture"]

HOUR_MS = 3_600_000
_groups = itertools.count()
RECORDS = [held(offset, offset * 9_973 % (6 * HOUR_MS)) for offset in range(3_000)]


@pytest.fixture(name="overflow")
def overflow_fixture(redis_server: RedisServer) -> Iterator[RedisOverflow]:
    overflow = open_overflow(redis_server.url, f"rebuilt{next(_groups)}")
    yield overflow
    overflow.close()


@pytest.fixture(name="store")
def store_fixture(overflow: RedisOverflow) -> RedisRebuildStore:
    return RedisRebuildStore(overflow.client, overflow.group)


def changes(count: int) -> list[Change]:
    return [Change(LANE, 1 + n, RECORDS[n * 100 : (n + 1) * 100]) for n in range(count)]


def redo(before: int, last: int) -> Redo:
    return Redo(before, last, RECORDS[before * 100 : last * 100])


def read_all(store: RedisRebuildStore, acknowledged: int) -> list[int]:
    offsets: list[int] = []
    place = START
    while place.offset != (1 << 63) - 1:
        page = store.read(LANE, place, 700, acknowledged)
        places = store.places(LANE, place, 700, acknowledged)
        assert [record[:2] for record in places.records] == [record[:2] for record in page.records]
        assert places.cursor == page.cursor
        offsets += [record.offset for record in page.records]
        place = page.cursor
    return offsets


def test_what_was_lost_is_written_from_where_it_ends(overflow: RedisOverflow, store: RedisRebuildStore) -> None:
    assert store.place(LANE) == -1
    overflow.apply(changes(10), NOW_MS)
    assert store.place(LANE) == 10
    store.redo(LANE, [redo(10, 15), redo(15, 30)], NOW_MS)
    assert store.place(LANE) == 30
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(RECORDS)
    assert sorted(read_all(store, 30)) == list(range(3_000))


def test_what_a_reset_that_broke_off_has_left_is_never_taken_for_a_new_lane(
    overflow: RedisOverflow, store: RedisRebuildStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process ends between two pages of a reset: of a topic that was made anew, nobody knows a number."""
    monkeypatch.setattr(rebuild_store, "CLEAR_PER_STEP_MAX", 1)
    assert overflow.last_applied(LANE) == 0
    overflow.apply([*changes(1), Change(LANE, 2, [], [Tombstone(RECORDS[0].position, None)])], NOW_MS)
    first = Change(LANE, 1, [held(99_999, 9_000)])
    begin = True
    while store.reset(LANE, begin):
        with pytest.raises(OverflowLoss) as loss:
            overflow.last_applied(LANE)
        assert (loss.value.hw, loss.value.number) == (0, -1)
        with pytest.raises(OverflowLoss):
            overflow.apply([first], NOW_MS)
        begin = False
    assert not begin
    assert overflow.last_applied(LANE) == 0
    overflow.apply([first], NOW_MS)
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == list(first.records)


def test_what_is_written_twice_is_there_once_and_a_zombies_write_changes_nothing(
    overflow: RedisOverflow, store: RedisRebuildStore
) -> None:
    overflow.apply(changes(3), NOW_MS)
    for redos in ([redo(0, 5)], [redo(2, 4)], [redo(5, 9), redo(9, 12)], [redo(5, 9), redo(9, 12)]):
        store.redo(LANE, redos, NOW_MS)
    overflow.apply([Change(LANE, 4, [held(99_999, 9_000)])], NOW_MS)
    overflow.apply(changes(13)[12:], NOW_MS)
    assert store.place(LANE) == 13
    assert sorted(read_all(store, 13)) == list(range(1_300))


def test_a_number_that_fell_meanwhile_is_loss(overflow: RedisOverflow, store: RedisRebuildStore) -> None:
    overflow.apply(changes(3), NOW_MS)
    with pytest.raises(OverflowLoss) as caught:
        store.redo(LANE, [redo(5, 6), redo(6, 7)], NOW_MS)
    assert caught.value.hw == 3
    assert store.place(LANE) == 3
    overflow.client.delete(LaneKeys(overflow.group, LANE).hw)
    with pytest.raises(OverflowLoss):
        store.redo(LANE, [redo(0, 1)], NOW_MS)
    assert store.place(LANE) == -1, "without its number nothing counts: it is cleared first"


def test_a_lane_is_cleared_page_by_page_and_begun_again(
    redis_server: RedisServer, overflow: RedisOverflow, store: RedisRebuildStore
) -> None:
    spread = [held(offset, offset * 60_000) for offset in range(1_200)]
    overflow.apply([Change(LANE, 1, spread[:600]), Change(LANE, 2, spread[600:])], NOW_MS)
    keys = LaneKeys(overflow.group, LANE)
    overflow.client.zadd(keys.level(COARSE), {b"not a header": NOW_MS, bytes(59): NOW_MS})
    steps = 1
    assert store.reset(LANE, begin=True)
    assert store.place(LANE) == -1
    while store.reset(LANE, begin=False):
        steps += 1
    assert steps > 1
    assert store.place(LANE) == 0
    left = [key for found in redis_server.on_each_node(lambda node: node.keys(f"*{overflow.group}:*")) for key in found]
    assert left in ([], [keys.hw.encode()])
    store.redo(LANE, [Redo(0, 2, spread)], NOW_MS)
    assert sorted(read_all(store, 2)) == list(range(1_200))


@pytest.mark.parametrize("records_max", [1, 250, 10_000])
def test_blocks_are_written_as_many_together_as_one_script_may(
    store: RedisRebuildStore, monkeypatch: pytest.MonkeyPatch, records_max: int
) -> None:
    monkeypatch.setattr(chunk_writer, "BATCH_RECORDS_MAX", records_max)
    store.reset(LANE, begin=True)
    store.redo(LANE, [redo(0, 1), redo(1, 2)], NOW_MS)
    blocks = [redo(number, number + 1) for number in range(5)]
    for _ in range(2):  # some are there already, then all
        store.redo(LANE, [*blocks, Redo(5, 7, ())], NOW_MS)
        assert store.place(LANE) == 7
        assert sorted(read_all(store, 7)) == list(range(500))
    with pytest.raises(OverflowLoss):
        store.redo(LANE, [redo(8, 9)], NOW_MS)


def test_a_lane_that_somebody_else_has_begun_is_not_cleared_further(
    overflow: RedisOverflow, store: RedisRebuildStore
) -> None:
    overflow.apply(changes(3), NOW_MS)
    overflow.client.delete(LaneKeys(overflow.group, LANE).hw)
    overflow.client.set(LaneKeys(overflow.group, LANE).hw, 0)
    assert not store.reset(LANE, begin=False)
    store.redo(LANE, [redo(0, 3)], NOW_MS)
    assert sorted(read_all(store, 3)) == list(range(300))


def test_a_full_server_refuses_and_what_was_written_stays(
    redis_server: RedisServer, overflow: RedisOverflow, store: RedisRebuildStore
) -> None:
    overflow.apply(changes(3), NOW_MS)
    [limit, *_] = redis_server.on_each_node(lambda client: client.config_get("maxmemory")["maxmemory"])
    redis_server.configure("maxmemory", "1mb")
    try:
        with pytest.raises(OverflowFull):
            store.redo(LANE, [redo(3, 4)], NOW_MS)
        assert store.place(LANE) == 3
    finally:
        redis_server.configure("maxmemory", limit)
    store.redo(LANE, [redo(3, 4)], NOW_MS)
    assert sorted(read_all(store, 4)) == list(range(400))


def test_a_cascade_removes_nothing_whose_copies_the_server_has_forgotten(valkey: EmbeddedValkey) -> None:
    """The server came back as it was between the two writes of a cascade: its number is the same, so nobody notices."""
    overflow = open_overflow(valkey.url, "g")
    later = [held(offset, 3 * HOUR_MS + offset) for offset in range(1_000)]
    overflow.apply([Change(LANE, 1, later)], NOW_MS)
    keys = LaneKeys("g", LANE)

    def forget_copies() -> None:
        assert overflow.client.zremrangebyscore(keys.level(FINE), 0, DUE_MAX_MS)
        overflow.client.delete(*overflow.client.scan_iter(match="*}:a:*"))

    cascading = RedisOverflow(Interrupted(connect(valkey.url), forget_copies, REMOVE), "g")
    assert cascading.tidy(LANE, START, NOW_MS + 2 * HOUR_MS) > 0
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == later
    while cascading.tidy(LANE, START, NOW_MS + 2 * HOUR_MS):
        pass
    assert not overflow.client.zcount(keys.level(COARSE), 0, DUE_MAX_MS)
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == later
    cascading.close()
    overflow.close()


@pytest.mark.parametrize("copies", [1, 2])
def test_a_record_that_the_ledger_has_twice_is_written_and_read_once(
    overflow: RedisOverflow, store: RedisRebuildStore, copies: int
) -> None:
    """A process that was paused has written its block after all, and has woken up too late to know."""
    store.reset(LANE, begin=True)
    store.redo(LANE, [Redo(0, 1, RECORDS[:2]), *(Redo(n, n + 1, RECORDS[1:2]) for n in range(1, copies + 1))], NOW_MS)
    assert sorted(read_all(store, copies + 1)) == [0, 1]
    assert promote_all(overflow, START, at(9 * HOUR_MS)) == in_order(RECORDS[:2])
