"""The fake overflow answers as the real one does: the same calls, drawn at random, to both."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.headers import ID
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.model.record import Position, Tombstone
from sidecar.overflow.interface import Change, Overflow, OverflowLoss, RebuildStore, Redo
from sidecar.overflow.keys import FINE, LaneKeys
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import open_overflow
from tests.contract.overflow_records import LANE, NOW_MS, START, at, held, in_order, promote_all
from tests.examples import examples
from tests.simulation.fake_overflow import FakeOverflow

HOUR_MS = 3_600_000
_groups = count()

DELAYS_MS = st.integers(1, 5_000) | st.integers(1, 3 * HOUR_MS)
STEPS = st.lists(
    st.tuples(st.just("apply"), st.integers(-2, 1), st.lists(DELAYS_MS, min_size=1, max_size=20))
    | st.tuples(st.just("promote"), st.integers(1, 20), st.lists(DELAYS_MS, min_size=1, max_size=1))
    | st.tuples(st.just("tidy"), st.integers(0, 1), st.just([0])),
    max_size=25,
)


@pytest.fixture(name="url", scope="module")
def url_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = EmbeddedValkey(Path(tmp_path_factory.mktemp("valkey")), settings={"appendfsync": "no"})
    server.start()
    yield server.url
    server.stop()


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS)
def test_both_answer_alike(url: str, steps: list[tuple[str, int, list[int]]]) -> None:
    real = open_overflow(url, f"alike{next(_groups)}")
    fake = FakeOverflow()
    cursor, number, offset = START, 0, 0
    for what, amount, delays in steps:
        if what == "apply":
            fresh = [held(offset + place, cursor.due_ms - NOW_MS + delay) for place, delay in enumerate(delays)]
            offset += len(fresh)
            change = Change(LANE, number + 1 + amount, fresh)
            answers = [outcome_of(overflow, change) for overflow in (real, fake)]
            assert answers[0] == answers[1]
            number = max(number, change.number) if amount == 0 else number
        elif what == "promote":
            until = Position(cursor.due_ms + delays[0], 1 << 60)
            found = [promote_all(overflow, cursor, until, amount) for overflow in (real, fake)]
            assert found[0] == found[1]
            cursor = until
        else:
            for overflow in (real, fake):
                overflow.tidy(LANE, cursor, cursor.due_ms)
        assert real.last_applied(LANE) == fake.last_applied(LANE) == number
    real.close()


def outcome_of(overflow: Overflow, change: Change) -> str:
    if change.number < 1:
        return ""
    try:
        overflow.apply([change], NOW_MS)
    except OverflowLoss as loss:
        return f"loss {loss.hw}"
    return "applied"


IDS = [f"id{offset}" for offset in range(5)]
RECORDS = [held(offset, 600_000 + offset)._replace(trailer=[(ID, b"id%d" % offset)]) for offset in range(4)]
LOST: dict[str, tuple[Callable[[LaneKeys], list[str]], Callable[[FakeOverflow], None]]] = {
    "a level": (lambda keys: [keys.level(FINE)], lambda fake: fake.lose_level(LANE, NOW_MS)),
    "what was struck out": (lambda keys: [keys.struck], lambda fake: fake.lose_tombstones(LANE)),
    "the index": (LaneKeys.shards, lambda fake: fake.lose_index(LANE)),
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("blocks", [0, 2])
def test_both_miss_a_key_that_has_gone_wherever_it_is_looked_at(url: str, lost: str, blocks: int) -> None:
    real, fake = open_overflow(url, f"alike{next(_groups)}"), FakeOverflow()
    changes = [Change(LANE, 1, RECORDS), Change(LANE, 2, [], [Tombstone(RECORDS[2].position, "id2")])][:blocks]
    stores: list[tuple[Overflow, RebuildStore]] = [(real, RedisRebuildStore(real.client, real.group)), (fake, fake)]
    for overflow, _ in stores:
        overflow.apply(changes, NOW_MS)
    lose_real, lose_fake = LOST[lost]
    real.client.unlink(*lose_real(LaneKeys(real.group, LANE)))
    lose_fake(fake)
    calls: list[Callable[[Overflow, RebuildStore], object]] = [
        lambda overflow, store: overflow.last_applied(LANE),
        lambda overflow, store: store.place(LANE),
        lambda overflow, store: overflow.promote(LANE, START, at(900_000), 10, blocks)[:2],
        lambda overflow, store: store.read(LANE, START, 10, blocks).records,
        lambda overflow, store: overflow.find(LANE, IDS, START, blocks),
        lambda overflow, store: overflow.tidy(LANE, START, NOW_MS),
        lambda overflow, store: overflow.apply(changes, NOW_MS),
        lambda overflow, store: overflow.apply([Change(LANE, blocks + 1, [held(4, 700_000)])], NOW_MS),
        lambda overflow, store: store.redo(LANE, [Redo(blocks, blocks + 1, ())], NOW_MS),
        lambda overflow, store: rebuild(store),
        lambda overflow, store: (store.place(LANE), overflow.find(LANE, IDS, START, 2)),
        lambda overflow, store: promote_all(overflow, START, at(900_000)),
    ]
    for number, call in enumerate(calls):
        answers = [outcome(partial(call, overflow, store)) for overflow, store in stores]
        assert answers[0] == answers[1], f"call {number}"
    real.close()


def rebuild(store: RebuildStore) -> None:
    more = store.reset(LANE, begin=True)
    while more:
        more = store.reset(LANE, begin=False)
    store.redo(LANE, [Redo(0, 2, RECORDS, [Tombstone(RECORDS[2].position, "id2")])], NOW_MS)


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except OverflowLoss as loss:
        return f"loss {loss.hw}"


def test_a_promotion_stops_at_its_limit_and_goes_on_from_there() -> None:
    fake = FakeOverflow()
    records = [held(offset, 5_000 + offset // 7) for offset in range(100)]
    fake.apply([Change(LANE, 1, records)], NOW_MS)
    step = fake.promote(LANE, START, at(60_000), 30, 1)
    assert step.records == records[:30]
    assert step.cursor == records[29].position
    assert promote_all(fake, step.cursor, at(60_000), 30) == in_order(records[30:])
    with pytest.raises(OverflowLoss):
        fake.promote(LANE, START, at(60_000), 30, 2)
