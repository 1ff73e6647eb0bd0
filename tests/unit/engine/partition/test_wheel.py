"""Edges of the wheel, and how they look: the property test can't say that."""

import pytest

from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import Held


def held(offset: int, due_ms: int) -> Held:
    return Held(due_ms, offset, "t", -1, None, None, [], "p@1", None, 0, -1, [], -1, "", 0)


@pytest.mark.parametrize(
    ("due_ms", "fires_ms"), [(41, 50), (45, 50), (50, 50), (51, 60)], ids=["first", "middle", "edge", "next"]
)
def test_a_due_time_is_rounded_up_to_its_tick(due_ms: int, fires_ms: int) -> None:
    wheel = Wheel(0, tick_ms=10)
    wheel.insert(held(1, due_ms))
    assert wheel.next_due_ms() == fires_ms
    assert wheel.advance(fires_ms - 1) == []
    assert [record.offset for record in wheel.advance(fires_ms)] == [1]


def test_what_is_overdue_fires_at_the_next_tick() -> None:
    wheel = Wheel(1_000)
    wheel.insert(held(1, -5))
    assert wheel.advance(1_000) == []
    assert len(wheel.advance(1_001)) == 1


def test_time_set_back_holds_what_is_no_longer_due() -> None:
    wheel = Wheel(1_000)
    wheel.insert(held(1, 900))
    assert wheel.advance(500) == []
    assert wheel.advance(899) == []
    assert len(wheel.advance(900)) == 1


def test_a_cancelled_record_leaves_no_trace() -> None:
    wheel = Wheel(0)
    wheel.insert(held(1, 5))
    wheel.insert(held(2, 5))
    wheel.cancel(1)
    assert wheel.count == wheel.recount() == 1
    assert [record.offset for record in wheel.advance(10)] == [2]
    wheel.insert(held(1, 20))
    assert len(wheel.advance(20)) == 1, "the same offset, held anew"


@pytest.mark.parametrize("tick_ms", [1, 10])
def test_the_next_bucket_is_known_however_many_there_are(tick_ms: int) -> None:
    wheel = Wheel(0, tick_ms)
    dues_ms = [due_ms * tick_ms for due_ms in range(5_000, 6_000)]
    wheel.insert_all([held(due_ms, due_ms) for due_ms in reversed(dues_ms)])
    for due_ms in dues_ms:
        assert wheel.soonest_ms() == due_ms, "not earlier: its partition would be looked at in vain"
        assert [record.due_ms for record in wheel.advance(due_ms)] == [due_ms]
    assert wheel.soonest_ms() == -1


def test_the_next_bucket_is_known_when_time_was_set_back() -> None:
    wheel = Wheel(1_000)
    wheel.insert_all([held(1, 900), held(2, 1_001), held(3, 950)])
    assert wheel.soonest_ms() == 1_001
    assert wheel.advance(500) == []
    wheel.insert(held(4, 600))
    fired = []
    while (soonest_ms := wheel.soonest_ms()) >= 0:
        fired += [(soonest_ms, record.offset) for record in wheel.advance(soonest_ms)]
    assert fired == [(600, 4), (900, 1), (950, 3), (1_001, 2)]


def test_an_empty_wheel_has_no_next() -> None:
    assert Wheel(0).next_due_ms() == -1
    assert Wheel(0).advance(1 << 45) == []
