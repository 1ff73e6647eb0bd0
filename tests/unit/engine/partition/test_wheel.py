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


def test_an_empty_wheel_has_no_next() -> None:
    assert Wheel(0).next_due_ms() == -1
    assert Wheel(0).advance(1 << 45) == []
