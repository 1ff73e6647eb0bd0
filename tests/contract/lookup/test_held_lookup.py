"""Looking held records up, on every kind of Redis: what is found is what a sorted list would have."""

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from policies.headers import ERROR_CLASS, ID
from sidecar.engine.engine import EngineError
from sidecar.lookup import group as held_group
from sidecar.lookup import local as held_lookup
from sidecar.lookup.group import GroupLookUp
from sidecar.lookup.local import LaneView, LocalLookUp
from sidecar.lookup.meeting import Meeting
from sidecar.lookup.query import ALL, START, TIME_MAX_MS, Key, LookUpUnavailable, Query, hashes_of
from sidecar.model.record import Held, Position, Tombstone, TopicPartition, held_id
from sidecar.overflow.interface import Change
from sidecar.overflow.keys import LaneKeys
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from tests.contract.overflow_records import NOW_MS, held
from tests.contract.redis_servers import RedisServer, commands_called, redis_server_fixture
from tests.services.waiting import wait_until
from tests.unit.fake_backlog import FakeBacklog
from tests.unit.report_world import report

pytestmark = pytest.mark.slow

__all__ = ["redis_server_fixture"]

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
LANES = [TopicPartition("gold", 0), TopicPartition("reminders", 0), TopicPartition("reminders", 1)]
CURSOR = Position(NOW_MS + 30_000, 1 << 60)
_groups = itertools.count()


class Views:
    """An engine's answers: what a test says that its lanes hold in memory."""

    def __init__(self) -> None:
        self.views: dict[TopicPartition, LaneView] = {}
        self.failure: Exception | None = None

    def add(self, lane: TopicPartition, records: Iterable[Held] = (), **other: Any) -> None:
        buckets: dict[int, list[Held]] = {}
        for record in records:
            buckets.setdefault(record.due_ms, []).append(record)
        view = LaneView(lane, CURSOR, 1, buckets, frozenset(), [], [], {}, [], True, 7, 0)
        self.views[lane] = view._replace(**other)

    def look(self, after: TopicPartition | None, holding: bool = False) -> tuple[list[LaneView], bool]:
        """One lane a turn."""
        behind = sorted(lane for lane in self.views if after is None or lane > after)
        return [self.views[lane] for lane in behind[:1]], len(behind) <= 1

    def submit(self, command: Callable[[Any], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        if self.failure is not None:
            future.set_exception(self.failure)
        else:
            future.set_result(command(None))
        return future


@pytest.fixture(name="overflow")
def overflow_fixture(redis_server: RedisServer) -> Iterator[RedisOverflow]:
    overflow = open_overflow(redis_server.url, f"held{next(_groups)}")
    yield overflow
    overflow.close()


@pytest.fixture
def views() -> Views:
    return Views()


@pytest.fixture
def local(overflow: RedisOverflow, views: Views) -> LocalLookUp:
    return LocalLookUp(views.submit, views, overflow.client, overflow.group)  # type: ignore[arg-type]


def named(offset: int, delay_ms: int, **other: Any) -> Held:
    """A record with an id, a key and an error class."""
    record = held(offset, delay_ms)
    trailer = [(ERROR_CLASS, b"E%d" % (offset % 3)), (ID, b"id-%d" % offset)]
    fields = {"key": b"key-%d" % (offset % 7), "trailer": trailer, "target": f"t{offset % 2}", "policy": "p@3"}
    return record._replace(**(fields | other))


def everything(count: int = 800) -> dict[TopicPartition, list[Held]]:
    """Records of all lanes, due from half a minute ago to 30 hours from now, many at one moment."""
    chance = random.Random(count)
    delays = [-30_000, 0, 5_000, 29_999, 30_001, 70_000, HOUR_MS, 3 * HOUR_MS, 30 * HOUR_MS]
    return {
        lane: [
            named(offset, chance.choice(delays) if offset % 2 else chance.randrange(-30_000, 30 * HOUR_MS))
            for offset in range(number * 10, count)
        ]
        for number, lane in enumerate(LANES)
    }


def hold(views: Views, overflow: RedisOverflow, records: dict[TopicPartition, list[Held]]) -> None:
    """Near ones in the wheel, far ones in the overflow, by blocks that overlap; and copies of near ones, too."""
    for lane, of_lane in records.items():
        near = [record for record in of_lane if record.position <= CURSOR]
        blocks = [of_lane[start::4] for start in range(4)]
        changes = [Change(lane, number, block) for number, block in enumerate(blocks, 1) if block]
        acknowledged = changes[-1].number if changes else 0
        views.add(lane, near[10:], due=[(near[:10], 3), (near[:3], 0)], acknowledged=acknowledged)
        overflow.apply(changes[:2], NOW_MS)
        overflow.apply(changes[2:], NOW_MS + HOUR_MS)


def places(records: dict[TopicPartition, list[Held]], query: Query = ALL) -> list[Key]:
    """Keys of all records that the query matches, in order, as a naive reader would find them."""
    return sorted(
        Key(record.due_ms, *lane, record.offset)
        for lane, of_lane in records.items()
        for record in of_lane
        if query.wants_lane(lane) and query.matches(record)
    )


def keys_of(rows: Sequence[Any]) -> list[Key]:
    return [Key(row["due"], *row["position"].values()) for row in rows]


def walk(local: LocalLookUp, query: Query, limit: int) -> list[Key]:
    """All pages."""
    found: list[Key] = []
    after: Key | None = START
    while after is not None:
        answer = local.page(query, after, limit)
        assert len(answer.rows) <= limit
        assert answer.reach is None or answer.reach > after
        found += keys_of(answer.rows)
        after = answer.reach
    return found


QUERIES = [
    Query(),
    Query(topic="reminders"),
    Query(topic="reminders", partition=1),
    Query(policy="p"),
    Query(policy="p@3", target="t1"),
    Query(key_prefix="key-5"),
    Query(error_class="E2", topic="gold"),
    Query(due_from_ms=NOW_MS + 5_000, due_to_ms=NOW_MS + HOUR_MS),
    Query(due_from_ms=NOW_MS + HOUR_MS, due_to_ms=TIME_MAX_MS),
    Query(target="nobody"),
    Query(policy="p@4"),
    Query(id="id-7"),
    Query(header="n=5"),
    Query(header="n=", topic="gold"),
    Query(header="n=15", target="t1"),
    Query(header=f"{ERROR_CLASS}=E2", ids=hashes_of(["id-2", "id-5", "id-12", "nobody"])),
    Query(ids=hashes_of([f"id-{offset}" for offset in range(0, 60, 3)]), due_from_ms=NOW_MS + HOUR_MS),
]


@pytest.mark.parametrize("limit", [1, 97, 500])
def test_pages_are_what_a_sorted_list_has(
    overflow: RedisOverflow, views: Views, local: LocalLookUp, limit: int
) -> None:
    records = everything(60 if limit == 1 else 800)
    hold(views, overflow, records)
    for query in QUERIES:
        assert walk(local, query, limit) == places(records, query), query


@pytest.mark.parametrize("enough", [60, 12])
def test_pages_that_end_for_their_work_lose_nothing_and_get_on(
    overflow: RedisOverflow, views: Views, local: LocalLookUp, monkeypatch: pytest.MonkeyPatch, enough: int
) -> None:
    monkeypatch.setattr(held_lookup, "LOOKED_AT_MAX", enough)
    assert local.next_due_ms() == -1
    records = everything(200)
    hold(views, overflow, records)
    assert local.next_due_ms() == places(records)[0].due_ms
    for query in QUERIES:
        assert walk(local, query, 500) == places(records, query), query


def test_records_on_their_way_and_copies_that_do_not_count(
    overflow: RedisOverflow, views: Views, local: LocalLookUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = LANES[0]
    far = [named(offset, HOUR_MS) for offset in range(6)]
    settled = named(12, 0)  # the wheel had it, and has it no more: its copy in Redis stays for a while
    overflow.apply([Change(lane, 1, [*far[:4], settled])], NOW_MS)
    overtook, cancelled = named(9, 1_000), named(10, 2_000)
    more = {"on_the_way": far[3:], "skip": {0: far[0].position}, "cancelled": frozenset({10}), "acknowledged": 1}
    views.add(lane, [overtook, cancelled], **more)
    rows = local.page(Query(), START, 500).rows
    assert [(row["position"]["offset"], row["tier"]) for row in rows] == [
        (9, "wheel"), (1, "overflow"), (2, "overflow"), (3, "overflow"), (4, "overflow"), (5, "overflow"),
    ]  # fmt: skip
    assert [row["position"]["offset"] for row in local.find("id-0", Query()).rows] == []
    assert local.find("id-12", Query()).rows == []
    views.views[lane] = views.views[lane]._replace(leaving=[named(11, 0)])
    assert [row["position"]["offset"] for row in local.find("id-11", Query()).rows] == [11]
    assert [row["position"]["offset"] for row in local.find("id-5", Query()).rows] == [5]
    monkeypatch.setattr(held_lookup, "LOOKED_AT_MAX", 2)
    views.add(lane, skip={record.offset: record.position for record in far[:3]}, acknowledged=1)
    assert local.next_due_ms() == far[3].due_ms


def test_what_is_struck_out_is_nowhere(overflow: RedisOverflow, views: Views, local: LocalLookUp) -> None:
    lane, minute = LANES[0], NOW_MS // MINUTE_MS + 10
    far = [named(offset, 10 * MINUTE_MS) for offset in range(6)]
    moved = named(9, 20 * MINUTE_MS)._replace(source=2, trailer=[(ID, b"id-2")])
    views.add(lane, acknowledged=1)
    overflow.apply([Change(lane, 1, far)], NOW_MS)
    assert local.forecast(Query(), NOW_MS + HOUR_MS).minutes == {minute: 6}
    struck = [Tombstone(record.position, held_id(record)) for record in far[1:3]]
    overflow.apply([Change(lane, 2, [moved], struck)], NOW_MS)
    assert [row["position"]["offset"] for row in local.page(Query(), START, 10).rows] == [0, 3, 4, 5, 9]
    assert local.find("id-1", Query()).rows == []
    [row] = local.find("id-2", Query()).rows
    assert (row["position"]["offset"], row["accepted"]["offset"]) == (9, 2)
    assert local.forecast(Query(), NOW_MS + HOUR_MS).minutes == {minute: 4, minute + 10: 1}


def test_of_what_redis_never_had_nothing_is_asked_there(
    redis_server: RedisServer, views: Views, local: LocalLookUp
) -> None:
    """A process may have thousands of partitions, of which few hold anything."""
    for lane in LANES:
        views.add(lane)
    views.add(LANES[0], [named(5, 1_000)])
    redis_server.on_each_node(lambda node: node.config_resetstat())
    [row] = local.page(Query(), START, 10).rows
    [found] = local.find("id-5", Query()).rows
    assert (row["position"]["offset"], found["position"]["offset"]) == (5, 5)
    assert sum(local.forecast(Query(), NOW_MS + HOUR_MS).minutes.values()) == 1
    assert local.next_due_ms() == NOW_MS + 1_000
    assert not {name for name in commands_called(redis_server) if name.startswith(("z", "h", "eval", "get", "exists"))}


def test_every_record_is_found_by_its_id(overflow: RedisOverflow, views: Views, local: LocalLookUp) -> None:
    records = everything(200)
    records[LANES[1]].append(named(5_000, 9 * HOUR_MS, trailer=[(ID, "é/1".encode())]))
    records[LANES[1]].append(named(5_001, 9 * HOUR_MS, value=b"id-7"))  # its text stands in it, but not as its id
    hold(views, overflow, records)
    for offset in (11, 30, 199):
        expected = [key for key in places(records) if key.offset == offset]
        assert sorted(keys_of(local.find(f"id-{offset}", Query()).rows)) == expected
    assert len(local.find("id-30", Query(topic="gold")).rows) == 1
    assert [row["id"] for row in local.find("é/1", Query()).rows] == ["é/1"]
    assert [key.offset for key in keys_of(local.find("id-7", Query()).rows)] == [7]
    assert local.find("id-", Query()).rows == []


def test_a_cursor_of_any_numbers_is_a_place(overflow: RedisOverflow, views: Views, local: LocalLookUp) -> None:
    records = everything(40)
    hold(views, overflow, records)
    huge = 10**300
    for key in (Key(-huge, "", -huge, -huge), Key(NOW_MS, "gold", 0, huge), Key(NOW_MS + HOUR_MS, "~", huge, -huge),
                Key(TIME_MAX_MS, "gold", 0, 0), Key(huge, "gold", 0, 0)):  # fmt: skip
        assert keys_of(local.page(Query(), key, 500).rows) == [place for place in places(records) if place > key]


def test_a_row_tells_of_no_payload(overflow: RedisOverflow, views: Views, local: LocalLookUp) -> None:
    secret = named(5, HOUR_MS, key=b"secret", value=b"secret", headers=[("secret", b"secret")], attempt=2)
    hold(views, overflow, {LANES[0]: [secret, named(6, 0, key=b"secret", value=b"secret")]})
    rows = local.page(Query(), START, 10).rows
    assert "secret" not in json.dumps(rows)
    assert rows[1] == {
        "id": "id-5", "source": "gold", "position": {"topic": "gold", "partition": 0, "offset": 5}, "state": "held",
        "accepted": {"topic": "gold", "partition": 0, "offset": 5},
        "tier": "overflow", "due": NOW_MS + HOUR_MS, "target": "t1", "target_partition": None, "policy": "p@3",
        "attempt": 2, "first_failure": None, "expires_at": None, "error_class": "E2", "origin": None, "size": 2,
    }  # fmt: skip


def test_the_forecast_counts_every_record_once(overflow: RedisOverflow, views: Views, local: LocalLookUp) -> None:
    records = everything()
    hold(views, overflow, records)
    until_ms = NOW_MS // MINUTE_MS * MINUTE_MS + 100 * MINUTE_MS
    expected: dict[int, int] = {}
    for key in places(records):
        minute = key.due_ms // MINUTE_MS if key.due_ms < until_ms else -1
        expected[minute] = expected.get(minute, 0) + 1
    assert local.forecast(Query(), until_ms).minutes == expected
    later = local.forecast(Query(), NOW_MS - HOUR_MS).minutes
    assert later == {-1: len(places(records))}
    view = views.views[LANES[0]]
    copied = next(record for record in records[LANES[0]] if record.position > CURSOR)
    views.views[LANES[0]] = view._replace(skip={copied.offset: copied.position})
    of_gold = 1 + sum(local.forecast(Query(topic="gold"), until_ms).minutes.values())
    assert of_gold == len(records[LANES[0]])


# --- several replicas ---------------------------------------------------------------------------------------------


@pytest.fixture
def group(
    redis_server: RedisServer, overflow: RedisOverflow, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Views], GroupLookUp]]:
    """Makes replicas that answer each other."""
    monkeypatch.setattr(held_group, "LISTEN_S", 0.02)  # a stop waits as long for each
    with ExitStack() as stack:

        def new(views: Views, name: str = "one") -> GroupLookUp:
            client = open_overflow(redis_server.url, overflow.group)
            stack.callback(client.close)

            def local() -> LocalLookUp:
                return LocalLookUp(views.submit, views, client.client, overflow.group)  # type: ignore[arg-type]

            made = GroupLookUp(
                local,
                Meeting(client.client, overflow.group),
                lambda: {"gold": 1, "reminders": 2},
                FakeBacklog(),
                lambda problem: report(name, forecast_problem=problem),
                60.0,
            )
            made.start()
            stack.callback(made.stop)
            assert made.heard.wait(60.0)
            return made

        yield new


def spread(records: dict[TopicPartition, list[Held]], overflow: RedisOverflow, *replicas: Views) -> None:
    for number, (lane, of_lane) in enumerate(records.items()):
        hold(replicas[number % len(replicas)], overflow, {lane: of_lane})


def test_any_replica_answers_for_all(overflow: RedisOverflow, group: Callable[[Views], GroupLookUp]) -> None:
    one, other = Views(), Views()
    first, second = group(one), group(other)
    records = everything(300)
    spread(records, overflow, one, other)
    for asked in (first, second):
        rows, following, missing = asked.page(Query(), START, 500)
        assert (keys_of(rows), missing) == (places(records)[:500], [])
        assert following is not None
        rows, following, missing = asked.page(Query(), following, 500)
        assert (keys_of(rows), following, missing) == (places(records)[500:], None, [])
        found, missing = asked.find("id-30", Query())
        assert (len(found), missing) == (3, [])
        assert asked.ends(Query(topic="gold")) == ({TopicPartition("gold", 0): 7}, [])
        assert asked.ends(Query()) == (dict.fromkeys(records, 7), [])
        counts, missing = asked.forecast(Query(), NOW_MS)
        assert (sum(counts.values()), missing) == (len(places(records)), [])


def test_what_nobody_answers_for_is_missing(
    overflow: RedisOverflow, group: Callable[[Views], GroupLookUp], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Views(), Views()
    asked = group(one)
    group(other)
    monkeypatch.setattr(asked, "_timeout_s", 0.3)
    records = everything(50)
    spread(records, overflow, one, other)  # gold/0 and reminders/1 here, reminders/0 there
    other.failure = EngineError("the engine has ended")
    rows, following, missing = asked.page(Query(), START, 500)
    assert missing == [TopicPartition("reminders", 0)]
    assert keys_of(rows) == [key for key in places(records) if (key.topic, key.partition) != missing[0]]
    assert following is None
    assert asked.page(Query(topic="gold"), START, 500)[2] == []
    assert asked.ends(Query()) == ({lane: 7 for lane in records if lane not in missing}, missing)

    other.failure = None
    one.views[LANES[0]] = one.views[LANES[0]]._replace(whole=False)  # its overflow is being rebuilt
    wait_until(lambda: asked.find("id-30", Query())[1] == [LANES[0]])  # at once, or when the other one answers in time


def test_a_redis_that_has_lost_something_is_no_answer_though_nobody_has_noticed(
    overflow: RedisOverflow, views: Views, redis_server: RedisServer, group: Callable[[Views], GroupLookUp]
) -> None:
    records = everything(100)
    hold(views, overflow, records)
    for lane in records:
        views.views[lane] = views.views[lane]._replace(acknowledged=4)
    asked = group(views)
    assert len(asked.page(Query(), START, 500)[0]) == len(places(records))
    redis_server.on_each_node(lambda client: client.flushall())
    questions: list[Callable[[], Any]] = [
        lambda: asked.page(Query(), START, 500),
        lambda: asked.find("id-30", Query()),
        lambda: asked.forecast(Query(), NOW_MS + HOUR_MS),
    ]
    for question in questions:
        with pytest.raises(LookUpUnavailable, match="were acknowledged"):
            question()


@pytest.mark.parametrize("place", [1, 2, 3], ids=["b", "a", "x"])
def test_a_partition_that_lacks_a_key_is_no_answer(
    overflow: RedisOverflow, views: Views, group: Callable[[Views], GroupLookUp], place: int
) -> None:
    hold(views, overflow, everything(100))
    asked = group(views)
    assert len(asked.page(Query(), START, 500)[0]) == len(places(everything(100)))
    overflow.client.unlink(LaneKeys(overflow.group, LANES[1]).fixed[place])
    questions: list[Callable[[], Any]] = [
        lambda: asked.page(Query(), START, 500),
        lambda: asked.find("id-30", Query()),
        lambda: asked.forecast(Query(), NOW_MS + HOUR_MS),
    ]
    for question in questions:
        with pytest.raises(LookUpUnavailable, match="has gone"):
            question()


def test_a_replica_that_cannot_ask_its_own_engine_says_so(
    overflow: RedisOverflow, group: Callable[[Views], GroupLookUp]
) -> None:
    views = Views()
    asked = group(views)
    views.failure = EngineError("the engine has ended")
    with pytest.raises(LookUpUnavailable, match="the engine has ended"):
        asked.page(Query(), START, 10)


@pytest.mark.parametrize(
    "question",
    [b"", b"{", b"[]", b'{"ask":"page"}', b'{"reply":"somewhere","from":"x"}',
     b'{"reply":"R","from":"x","ask":"flush","query":[]}',
     b'{"reply":"R","from":"x","ask":"page","query":[1,2,3,4,5,6,7,8,9],"after":[],"limit":"x"}',
     b'{"reply":"R","from":"x","ask":"page","query":["",-1,"","","","",-1,5],"after":[1,"",1,1],"limit":"x"}'],
)  # fmt: skip
def test_garbage_on_the_channel_harms_nobody(
    overflow: RedisOverflow, group: Callable[[Views], GroupLookUp], question: bytes
) -> None:
    one, other = Views(), Views()
    asked = group(one)
    group(other)
    records = {LANES[0]: [named(1, 0)], LANES[1]: [named(2, 0)], LANES[2]: [named(3, 0)]}
    spread(records, overflow, one, other)
    reply = f"tickover:{overflow.group}:answer:x".encode()
    overflow.client.publish(f"tickover:{overflow.group}:questions", question.replace(b'"R"', b'"%s"' % reply))
    assert keys_of(asked.page(Query(), START, 10)[0]) == places(records)


def test_an_overview_has_every_replica_and_those_without_partitions(
    overflow: RedisOverflow, group: Callable[..., GroupLookUp]
) -> None:
    one, other = Views(), Views()
    asked = group(one)
    group(other, "other")
    group(Views(), "idle")
    records = everything(60)
    spread(records, overflow, one, other)
    seen = asked.overview(NOW_MS + HOUR_MS, 2)
    assert sorted(one.report.replica for one in seen.replicas) == ["idle", "one", "other"]
    assert {lane for one in seen.replicas for lane in one.read} == set(records)
    assert (sum(seen.minutes.values()), list(seen.missing), seen.problem) == (len(places(records)), [], "")


def test_a_replica_whose_engine_has_ended_is_in_the_overview_and_its_partitions_are_missing(
    overflow: RedisOverflow, group: Callable[..., GroupLookUp]
) -> None:
    one, other = Views(), Views()
    asked = group(one)
    group(other, "other")
    spread(everything(50), overflow, one, other)  # gold/0 and reminders/1 here, reminders/0 there
    other.failure = EngineError("the engine has ended")
    seen = asked.overview(NOW_MS + HOUR_MS, 1)
    assert {one.report.replica: one.report.forecast_problem for one in seen.replicas} == {
        "one": "",
        "other": "the engine has ended",
    }
    assert seen.missing == [TopicPartition("reminders", 0)]


def test_what_is_due_by_minute_is_counted_now_and_then_only(
    overflow: RedisOverflow, group: Callable[..., GroupLookUp], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting looks at each record in memory: it would cost lateness each time that a page is refreshed."""
    views = Views()
    asked = group(views)
    hold(views, overflow, everything(20))
    before = asked.overview(NOW_MS + HOUR_MS, 0).minutes
    views.add(LANES[0], [named(99, 5)])
    assert asked.overview(NOW_MS + HOUR_MS, 0).minutes == before
    monkeypatch.setattr(held_group, "FORECAST_KEPT_S", -1.0)
    assert asked.overview(NOW_MS + HOUR_MS, 0).minutes != before
