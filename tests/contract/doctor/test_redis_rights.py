"""No right in Redis too many: the servers count what they are called for, and that is what `acl print` names.

That none is missing shows wherever the overflow is tested: all of it comes as a user with these rights alone.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from api.idempotency import RedisIdempotency
from api.ports import Fresh
from policies.headers import ID
from sidecar.conditions.attribution import Span
from sidecar.conditions.store import RedisSpanLog
from sidecar.doctor.redis import inspect, inspect_redis
from sidecar.doctor.redis import state as state_of
from sidecar.lookup import group as held_group
from sidecar.lookup.group import GroupLookUp
from sidecar.lookup.local import LocalLookUp
from sidecar.lookup.meeting import Meeting
from sidecar.lookup.query import ALL, START, Query
from sidecar.model.condition import Kind, Subject
from sidecar.model.record import Tombstone, TopicPartition
from sidecar.overflow.interface import Change, OverflowLoss, Redo
from sidecar.overflow.keys import COARSE, LaneKeys
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from sidecar.settings.settings import Settings
from tests.contract.lookup.test_held_lookup import LANES, Views, everything, spread
from tests.contract.overflow_records import LANE, NOW_MS, at, held, promote_all
from tests.contract.overflow_records import START as FIRST
from tests.contract.redis_servers import RedisServer, commands_called, redis_server_fixture
from tests.unit.fake_backlog import FakeBacklog
from tests.unit.report_world import report_of

pytestmark = pytest.mark.slow

__all__ = ["redis_server_fixture"]

HOUR_MS: Final = 3_600_000
GROUP: Final = "rights"
# Of the owner, who looks on; and what every client sends that logs in, which is no command to be allowed.
LOOKING_ON: Final = {"config|resetstat", "client|setinfo", "auth", "keys", "rename"}
# Only while a slot moves to another node: test_overflow_refusals.py moves one.
WHILE_A_SLOT_MOVES: Final = {"asking"}


@pytest.fixture
def overflow(redis_server: RedisServer) -> Iterator[RedisOverflow]:
    """By a client that finds servers as a new sidecar does: scripts are unknown, and nothing was called yet."""
    redis_server.on_each_node(lambda node: node.script_flush())
    redis_server.on_each_node(lambda node: node.config_resetstat())
    overflow = open_overflow(redis_server.url, GROUP)
    yield overflow
    overflow.close()


def test_every_command_that_is_allowed_is_called(
    redis_server: RedisServer, overflow: RedisOverflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_group, "LISTEN_S", 0.02)  # a stop waits as long for each
    hold_and_settle(overflow)
    meet_a_loss(redis_server, overflow)
    rebuild(overflow)
    look_up(redis_server, overflow)
    asyncio.run(answer_once(overflow.client))
    record_conditions(overflow)
    examine(redis_server, overflow)
    called = commands_called(redis_server) - LOOKING_ON
    assert redis_server.commands - called <= WHILE_A_SLOT_MOVES, "allowed, and nobody calls it"
    assert called <= redis_server.commands


def hold_and_settle(overflow: RedisOverflow) -> None:
    """Blocks of two lanes at once, with ids and strikes; more headers than a page has; promotion, cascade, tidying."""
    records = [held(offset, offset * HOUR_MS)._replace(trailer=[(ID, b"id%d" % offset)]) for offset in range(1_200)]
    other = TopicPartition("other", 0)
    overflow.apply([Change(LANE, 1, records), Change(other, 1, records[:2])], NOW_MS)
    struck = [Tombstone(record.position, f"id{record.offset}") for record in records[::10]]
    overflow.apply([Change(LANE, 2, [], struck)], NOW_MS)
    ids = [f"id{offset}" for offset in range(20)]
    assert len(overflow.find(LANE, ids, FIRST, 2)) == 18
    assert overflow.count(LANE, FIRST) == 1_200  # in chunks, struck out or not
    assert len(promote_all(overflow, FIRST, at(1_200 * HOUR_MS))) == 1_080
    while overflow.tidy(LANE, at(HOUR_MS), NOW_MS + 2 * HOUR_MS):
        pass
    for _ in range(300):  # each shard of the index
        overflow.tidy(LANE, at(2 * HOUR_MS), NOW_MS)


def meet_a_loss(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    """A chunk that is gone under its header."""
    lane = TopicPartition("lost", 0)
    overflow.apply([Change(lane, 1, [held(1, 9 * HOUR_MS)])], NOW_MS)
    slots = LaneKeys(GROUP, lane).level(COARSE) + ":*"

    def lose(node: Any) -> None:
        for key in node.keys(slots):
            node.rename(key, key + b".gone")

    redis_server.on_each_node(lose)
    with pytest.raises(OverflowLoss):
        overflow.promote(lane, FIRST, at(10 * HOUR_MS), 10, 1)


def record_conditions(overflow: RedisOverflow) -> None:
    """One that has ended and one under way, kept and read."""
    log = RedisSpanLog(overflow.client, GROUP)
    span = Span(Subject(Kind.RUNNING, *LANE), NOW_MS, NOW_MS + 1, log.run, "one")
    log.write([span], [span._replace(from_ms=NOW_MS + 1)], NOW_MS + 1)
    assert [len(spans) for spans in log.read(NOW_MS)] == [1, 1]


def rebuild(overflow: RedisOverflow) -> None:
    """All of a lane cleared away, and written again."""
    store = RedisRebuildStore(overflow.client, GROUP)
    assert store.reset(LANE, begin=True)
    while store.reset(LANE, begin=False):
        pass
    store.redo(LANE, [Redo(0, 2, [held(1, HOUR_MS)])], NOW_MS)
    assert len(store.read(LANE, FIRST, 10, 2).records) == 1


def look_up(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    """Two replicas with a share of the partitions each: page, one by its id, forecast."""
    with ExitStack() as stack:

        def replica(views: Views) -> GroupLookUp:
            client = open_overflow(redis_server.url, GROUP)
            stack.callback(client.close)

            def local() -> LocalLookUp:
                return LocalLookUp(views.submit, views, client.client, GROUP)  # type: ignore[arg-type]

            made = GroupLookUp(
                local,
                Meeting(client.client, GROUP),
                lambda: {"gold": 1, "reminders": 2},
                FakeBacklog(),
                report_of,
                60.0,
            )
            made.start()
            stack.callback(made.stop)
            assert made.heard.wait(60.0)
            return made

        one, other = Views(), Views()
        asked, _ = replica(one), replica(other)
        spread(everything(60), overflow, one, other)
        assert asked.page(Query(), START, 500)[2] == []
        assert len(asked.find("id-30", Query())[0]) == len(LANES)
        assert asked.forecast(ALL, NOW_MS)[1] == []


async def answer_once(client: Any) -> None:
    """Use all that REST keeps in Redis by Idempotency-Key."""
    store = RedisIdempotency(client, GROUP)
    refused = await store.begin("key", b"body", NOW_MS)
    assert isinstance(refused, Fresh)
    await store.forget("key", refused.holder)
    sent = await store.begin("key", b"body", NOW_MS)
    assert isinstance(sent, Fresh)
    await store.release("key", sent.holder)
    await store.finish("key", sent.holder, b"answer")
    store.stop()


def examine(redis_server: RedisServer, overflow: RedisOverflow) -> None:
    """Make the calls of housekeeping and of `doctor`."""
    inspect(overflow.client)
    state_of(overflow.client)
    if not redis_server.url.startswith("unix:"):  # doctor asks no bundled server
        settings = Settings.model_validate({"redis": {"url": redis_server.url}})
        assert list(inspect_redis(settings, lambda: time.time_ns() // 1_000_000))
