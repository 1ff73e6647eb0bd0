"""Crossings of a lane that single rules don't show: overtaken records, gaps, what a block still pins."""

import pytest

from sidecar.engine.partition.change_block import ChangeBlock
from sidecar.engine.partition.key_order import Order
from sidecar.engine.partition.partition import NEVER, RUNS_MAX, SourcePartition
from sidecar.engine.partition.progress import NOWHERE, LedgerMark, LedgerMarks, PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import Held, Position, TopicPartition


def held(offset: int, due_ms: int) -> Held:
    return Held(due_ms, offset, "t", -1, None, None, [], "p@1", None, 0, -1, [], -1, "", 0)


def change(number: int, *records: Held, missing: tuple[int, ...] = ()) -> ChangeBlock:
    earliest = min((record.position for record in records), default=NEVER)
    return ChangeBlock(number, {record.offset: record for record in records}, set(missing), earliest, 0, committed=True)


@pytest.fixture(name="lane")
def lane_fixture() -> SourcePartition:
    lane = SourcePartition(TopicPartition("t", 0), Wheel(0), PromotionWindows(Position(0, -1)), ledger=LedgerMarks(5))
    for offset in range(10):
        lane.accept(offset)
    lane.accepted = 10
    return lane


def test_an_acknowledged_change_takes_its_records_off_the_source(lane: SourcePartition) -> None:
    lane.applied(change(1, held(0, 50), held(1, 60)))
    assert (lane.advance_low(), lane.overflow_held, lane.acknowledged, lane.imbalance) == (2, 2, 1, 0)


def test_intake_waits_for_l_only_when_all_is_read_again_that_was_read_before_a_crash(lane: SourcePartition) -> None:
    """L passes nothing of it until then."""
    lane.runs = [(number, number) for number in range(RUNS_MAX)]
    lane.recovered_until = 11
    assert not lane.crowded_by_runs
    lane.accept(10)
    assert lane.crowded_by_runs


def test_an_overtaken_record_keeps_its_offset_open_and_its_copy_is_skipped(lane: SourcePartition) -> None:
    block = change(1, held(0, 50), held(1, 600))
    lane.changes.append(block)
    assert lane.earliest_put() == Position(50, 0)
    assert lane.overtake(100) == [held(0, 50)]
    assert lane.overtake(100) == [], "only once"
    assert lane.earliest_put() == Position(600, 1)
    lane.applied(lane.changes.popleft())
    assert not lane.offsets.is_done(0)
    assert lane.offsets.is_done(1)
    assert lane.promoted(Position(0, -1), [held(0, 50), held(1, 600)], Position(700, 0)) == [held(1, 600)]
    lane.settle([0, 1], [50, 600])
    assert (lane.promotion.watermark, lane.overflow_held, lane.imbalance) == (Position(700, 0), 0, 0)


def test_what_the_overflow_has_beyond_its_count_is_counted_when_it_is_found(lane: SourcePartition) -> None:
    """The ledger's count is short of what a former owner had overtaken: below zero it would go on for ever."""
    lane.applied(change(1, held(0, 50), held(1, 600), held(2, 650)))
    lane.overflow_held = lane.overflow_sealed = 1
    lane.held_at_start, lane.accepted = -2, 10  # so that the account is even
    assert lane.imbalance == 0
    lane.promotion.struck.add(2)
    lane.promotion.skip[2] = Position(650, 2)
    lane.promoted(Position(0, -1), [held(0, 50), held(1, 600)], Position(700, 0))
    assert (lane.overflow_held, lane.overflow_sealed, lane.found, lane.imbalance) == (2, 2, 1, 0)
    lane.settle([0, 1, 2], [50, 600, 650])
    assert (lane.overflow_held, lane.found, lane.imbalance) == (0, 2, 0)


def test_what_was_overtaken_is_remembered_until_its_block_is_gone(lane: SourcePartition) -> None:
    lane.changes.append(change(1, held(0, 50), held(1, 150)))
    assert lane.overtake(100) == [held(0, 50)]
    lane.promotion.cursor = Position(149, 0)
    lane.settle([0], [50])
    lane.forget_passed()
    assert lane.overtake(200) == [held(1, 150)]
    lane.settle([1], [150])
    lane.promotion.cursor = Position(200, 0)
    lane.applied(lane.changes.popleft())
    lane.forget_passed()
    assert lane.promotion.skip == {}


def test_a_put_overtaken_before_it_was_sealed_is_simply_held(lane: SourcePartition) -> None:
    lane.put([held(0, 50), held(1, 600)])
    assert lane.overtake(100) == [held(0, 50)]
    assert lane.puts == [held(1, 600)]
    assert lane.promotion.skip == {}


def test_in_the_order_of_keys_a_record_stays_on_its_way_unless_the_cursor_has_passed_it(lane: SourcePartition) -> None:
    lane.order = Order(lambda held: 1)
    lane.changes.append(change(1, held(0, 50), held(1, 60)))
    for record in lane.changes[0].records.values():
        lane.order.redone(record)
    lane.promotion.cursor = Position(50, 5)
    assert lane.overtake(100) == [held(0, 50)], "it was overtaken before a crash, and no promotion will bring it"


def test_a_block_known_from_before_waits_for_its_records(lane: SourcePartition) -> None:
    block = change(1, missing=(11,))
    block.earliest = Position(50, 11)
    lane.changes.append(block)
    lane.entries[11] = held(11, 50)
    assert block.missing
    assert lane.overtake(100) == []
    assert lane.earliest_put() == Position(50, 11), "it may not be passed though it is not here yet"
    assert lane.redo(held(11, 50))
    assert block.ready, "committed and complete"
    assert lane.overtake(100) == [held(11, 50)]


def test_a_block_goes_on_without_a_record_that_the_source_lost(lane: SourcePartition) -> None:
    block = change(1, missing=(11,))
    lane.changes.append(block)
    lane.entries[11] = held(11, 50)
    assert lane.accept(12)
    assert block.ready
    assert not lane.entries


@pytest.mark.parametrize(
    ("mark", "pinned"),
    [
        (LedgerMark(7, -1, 0, NOWHERE, 2), False),
        (LedgerMark(7, 3, 0, NOWHERE, 2), False),
        (LedgerMark(7, 4, 0, NOWHERE, 2), True),
        (LedgerMark(7, -1, 2, NOWHERE, 2), False),
        (LedgerMark(7, -1, 3, NOWHERE, 2), True),
        (LedgerMark(7, -1, 0, Position(90, 9), 2), False),
        (LedgerMark(7, -1, 0, Position(90, 10), 2), True),
    ],
)
def test_what_pins_a_block(lane: SourcePartition, mark: LedgerMark, pinned: bool) -> None:
    lane.offsets.low, lane.acknowledged, lane.promotion.cursor = 4, 2, Position(90, 9)
    lane.ledger.written(mark, -1)
    assert lane.recovery_pointer() == (7 if pinned else 8)


def test_a_change_is_pinned_until_a_block_knows_that_the_overflow_has_it(lane: SourcePartition) -> None:
    """A block that was written before the overflow had it may be the last after a crash, and does not count it."""
    lane.offsets.low, lane.acknowledged, lane.promotion.cursor = 9, 1, Position(90, 9)
    lane.ledger.written(LedgerMark(7, 4, 1, NOWHERE, 0), -1)
    lane.ledger.written(LedgerMark(8, -1, 0, NOWHERE, 0), -1)
    assert lane.recovery_pointer() == 7
    lane.ledger.written(LedgerMark(9, -1, 0, NOWHERE, 1), -1)
    assert lane.recovery_pointer() == 10


def test_only_the_rebuild_pointer_waits_for_a_far_entry(lane: SourcePartition) -> None:
    lane.offsets.low, lane.acknowledged = 10, 9
    lane.ledger.written(LedgerMark(7, 1, 1, NOWHERE, 0), 400 * 86_400_000)
    lane.ledger.written(LedgerMark(8, 2, 2, NOWHERE, 9), 1_000)
    assert lane.recovery_pointer() == 9
    assert lane.rebuild_pointer() == 7
    lane.promotion.cursor = Position(400 * 86_400_001, 0)
    assert lane.rebuild_pointer() == 7, "a recovery doesn't know yet that W has passed it"
    lane.ledger.committed_watermark = lane.promotion.watermark
    assert lane.rebuild_pointer() == 9


def test_what_follows_the_last_record_and_holds_none_is_read_and_leaves_no_lag(lane: SourcePartition) -> None:
    lane.settle(list(range(10)), [0] * 10)
    assert lane.advance_low() == 10
    lane.uncommitted = lane.touched = False
    lane.read_up_to(9)
    assert (lane.offsets.next, lane.touched) == (10, False)
    lane.read_up_to(12)
    assert (lane.advance_low(), lane.offsets.next, lane.uncommitted) == (12, 12, True)
    assert lane.offsets.append_run([12, 13])
    lane.accepted += 2
    assert (lane.advance_low(), lane.imbalance) == (12, 0)


def test_a_record_of_the_ledger_that_is_not_where_the_source_was_read_is_gone(lane: SourcePartition) -> None:
    lane.entries = {10: held(10, 50)}
    lane.read_up_to(12)
    assert (lane.vanished, lane.entries) == ([10], {})
