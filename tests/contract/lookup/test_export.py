"""An export of Redis has every record that is held, once, and says at last that it's whole."""

import itertools

import pytest

from sidecar.lookup.export import exported, lanes_in
from sidecar.model.record import Tombstone, TopicPartition
from sidecar.overflow.interface import Change, OverflowLoss
from sidecar.overflow.keys import LaneKeys
from sidecar.overflow.redis_overflow import open_overflow
from tests.contract.overflow_records import NOW_MS, held
from tests.contract.redis_servers import RedisServer, redis_server_fixture

__all__ = ["redis_server_fixture"]

HOUR_MS = 3_600_000
LANES = [TopicPartition("gold", 11), TopicPartition("reminders", 0)]


@pytest.mark.parametrize("place", range(4), ids=["hw", "b", "a", "x"])
def test_an_export_of_a_partition_that_lacks_a_key_is_no_export(redis_server: RedisServer, place: int) -> None:
    overflow = open_overflow(redis_server.owner_url, f"export{place}")
    try:
        records = [held(offset, 60_000 + offset * HOUR_MS) for offset in range(9)]
        for lane in LANES:
            overflow.apply([Change(lane, 1, records)], NOW_MS)
        overflow.client.unlink(LaneKeys(overflow.group, LANES[1]).fixed[place])
        with pytest.raises(OverflowLoss) as caught:
            list(exported(overflow.client, overflow.group, "ledger", dict))
        assert caught.value.lane == LANES[1]
    finally:
        overflow.close()


def test_an_export_has_what_is_held(redis_server: RedisServer) -> None:
    overflow = open_overflow(redis_server.owner_url, "export.me")
    other = open_overflow(redis_server.url, "export")
    try:
        assert lanes_in(overflow.client, "export.me") == []
        records = [held(offset, 60_000 + offset * HOUR_MS // 100) for offset in range(600)]
        for lane in LANES:
            overflow.apply([Change(lane, number + 1, records[number::3]) for number in range(3)], NOW_MS)
        struck = Tombstone(records[7].position, None)
        overflow.apply([Change(LANES[0], 4, [], (struck,))], NOW_MS)
        other.apply([Change(TopicPartition("theirs", 0), 1, records[:1])], NOW_MS)
        ends = itertools.count()
        *rows, last = exported(overflow.client, "export.me", "ledger", lambda: {"0": next(ends)})
        assert [row for row in rows if row["offset"] in (0, 7)] == [
            {
                "topic": "gold",
                "partition": 11,
                "offset": 0,
                "due_ms": NOW_MS + 60_000,
                "target": "mail",
                "policy": "p@1",
            },
            *(
                {
                    "topic": "reminders",
                    "partition": 0,
                    "offset": record.offset,
                    "due_ms": record.due_ms,
                    "target": "mail",
                    "policy": "p@1",
                }
                for record in (records[0], records[7])
            ),
        ]
        assert len(rows) == 2 * len(records) - 1
        assert last == {"export": {"ledger": "ledger", "began": {"0": 0}, "ended": {"0": 1}, "records": len(rows)}}
    finally:
        overflow.close()
        other.close()
