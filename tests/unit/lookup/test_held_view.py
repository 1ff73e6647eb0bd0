"""Views of the engine's lanes: what is held where, at one moment, and a few lanes a turn."""

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.engine.intake.decide import Item
from sidecar.engine.partition.change_block import ChangeBlock, Loss
from sidecar.engine.partition.key_order import Order
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.lookup import local as held_view
from sidecar.lookup.local import KEPT_TIMES, Seldom, Viewer
from sidecar.model.record import Position, TopicPartition
from tests.unit.engine.partition.test_identity import named

CURSOR = Position(500, 0)


def lane_of(partition: int, *offsets: int) -> SourcePartition:
    lane = SourcePartition(TopicPartition("t", partition), Wheel(0), PromotionWindows(CURSOR))
    lane.wheel.insert_all([named(offset)._replace(due_ms=10 + offset) for offset in offsets])
    return lane


def viewer(*lanes: SourcePartition, **due: Any) -> Viewer:
    assignment: Any = SimpleNamespace(lanes={lane.id: lane for lane in lanes})
    emitter: Any = SimpleNamespace(due_of=lambda lane: due.get(f"t{lane.id.partition}", []))
    actions: Any = SimpleNamespace(first_waiting=lambda lane: due.get(f"w{lane.id.partition}"))
    return Viewer(assignment, emitter, actions)


def test_a_view_has_what_is_held_and_stays_as_it_was() -> None:
    lane = lane_of(0, 1, 2, 3)
    lane.wheel.cancel(2)
    lane.promotion.promised = Position(900, 0)  # what lies between is still to come: only Redis has it
    lane.put([named(7)])
    lane.changes.append(ChangeBlock(1, {8: named(8), 9: named(9)}, set(), CURSOR, 0))
    lane.promotion.skip[9] = named(9).position  # overtook: it is in the wheel, too
    lane.ids.fired([named(5)])
    lane.acknowledged = 3
    [view], complete = viewer(lane, t0=[([named(4), named(6)], 1)]).look(None)
    assert complete
    assert (view.lane, view.cursor, view.whole, view.acknowledged) == (lane.id, CURSOR, True, 3)
    assert [held.offset for held in view.loose()] == [6]
    assert [held.offset for held in view.on_the_way] == [7, 8]
    assert [held.offset for held in view.leaving] == [5]
    assert list(view.skip) == [9]
    assert len(lane.wheel.advance(100)) == 2
    lane.promotion.skip.clear()
    assert [[held.offset for held in bucket] for bucket in view.in_wheel()] == [[1], [], [3]]
    assert [[held.offset for held in bucket] for bucket in view.in_wheel(13)] == [[3]]
    assert list(view.skip) == [9]


def test_a_lane_that_is_being_rebuilt_is_not_whole() -> None:
    lane = lane_of(0)
    lane.loss = Loss(0, "wiped")
    [view], _ = viewer(lane).look(None)
    assert view.whole is False


def test_a_lane_that_has_not_read_again_what_it_had_is_not_whole() -> None:
    lane = lane_of(0)
    lane.recovered_until = 7
    lane.offsets.next = 6
    assert viewer(lane).look(None)[0][0].whole is False
    lane.offsets.next = 7
    assert viewer(lane).look(None)[0][0].whole is True


def test_what_waits_to_be_held_does_not_count_as_read() -> None:
    lane = lane_of(0)
    lane.offsets.next = 7
    assert viewer(lane).look(None)[0][0].next == 7
    assert viewer(lane, w0=5).look(None)[0][0].next == 5
    lane.order = Order(lambda held: None)
    lane.order.queue.append(Item(4, 0, named(4)))
    assert viewer(lane, w0=5).look(None)[0][0].next == 4
    assert viewer(lane).look(None)[0][0].next == 4


def test_who_looks_for_what_is_held_sees_no_lane_that_holds_nothing() -> None:
    idle, open_, far = lane_of(0), lane_of(1), lane_of(2)
    open_.accept(0)
    far.overflow_held = 1
    looking = viewer(idle, open_, far)
    assert [view.lane.partition for view in looking.look(None)[0]] == [0, 1, 2]
    assert [view.lane.partition for view in looking.look(None, holding=True)[0]] == [1, 2]


def test_a_turn_takes_a_few_lanes_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_view, "BUCKETS_MAX", 4)
    looking = viewer(*(lane_of(partition, *range(3)) for partition in (3, 0, 1, 2)))
    views, complete = looking.look(None)
    assert ([view.lane.partition for view in views], complete) == ([0], False)
    views, complete = looking.look(TopicPartition("t", 1))
    assert ([view.lane.partition for view in views], complete) == ([2], False)
    assert looking.look(TopicPartition("t", 3)) == ([], True)


def test_what_takes_long_to_look_up_is_looked_up_seldom() -> None:
    times, answers = [0.0], [5, 7]

    def look() -> int:
        times[0] += 0.5
        return answers.pop(0)

    seldom = Seldom(look, lambda: times[0])
    assert seldom(1) == 5
    times[0] += KEPT_TIMES * 0.5 - 0.1
    assert seldom(1) == 5
    times[0] += 0.2
    assert seldom(1) == 7


def test_a_time_that_has_come_is_looked_up_again() -> None:
    answers = [5, 7]
    seldom = Seldom(lambda: answers.pop(0), iter([0.0, 1.0, 2.0, 3.0, 4.0]).__next__)
    assert [seldom(4), seldom(4), seldom(5)] == [5, 5, 7]


def test_a_time_that_was_over_when_it_was_found_is_kept_as_long_as_any_other() -> None:
    answers = [5, 7]
    seldom = Seldom(lambda: answers.pop(0), iter([0.0, 1.0, 2.0, 3.0]).__next__)
    assert [seldom(6), seldom(6), seldom(6)] == [5, 5, 5]
