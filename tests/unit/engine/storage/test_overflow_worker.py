from itertools import pairwise

import pytest

from policies.headers import OFFSET_MAX
from sidecar.engine.partition.change_block import ChangeBlock
from sidecar.engine.partition.partition import NEVER, HeldIn, SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.engine.storage.loss_check import CHECK_MS
from sidecar.engine.storage.overflow_worker import JOBS_MAX, RETRY_FIRST_MS, RETRY_MAX_MS, OverflowWorker
from sidecar.model.record import Held, Position, Tombstone, TopicPartition
from sidecar.overflow.interface import (
    Change,
    NewerOverflowFormat,
    OverflowFull,
    OverflowLoss,
    OverflowRefused,
    OverflowUnavailable,
)
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_overflow import FakeOverflow

NOW_MS = 1_000_000
HORIZON_MS = 4_000


def held(offset: int, delay_ms: int) -> Held:
    return Held(NOW_MS + delay_ms, offset, "t", -1, None, None, [], "p@1", None, 0, -1, [], -1, "", 0)


def change(number: int, *records: Held, committed: bool = True) -> ChangeBlock:
    earliest = min(record.position for record in records)
    return ChangeBlock(number, {record.offset: record for record in records}, set(), earliest, 0, committed)


class Bench:
    """A worker with one lane, and what it put into the wheel."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.refusal: Exception | None = None  # of writes alone
        self.calls: list[str] = []
        self.overflow = FakeOverflow(self._call)
        self.executor = StepExecutor()
        self.in_wheel: list[int] = []
        self.worker = OverflowWorker(self.overflow, HORIZON_MS, self._to_wheel, self.executor)
        self.lanes = [self.lane(0)]

    def lane(self, partition: int, cursor_ms: int = NOW_MS) -> SourcePartition:
        lane = SourcePartition(TopicPartition("t", partition), Wheel(NOW_MS), PromotionWindows(Position(cursor_ms, -1)))
        for offset in range(10):
            lane.accept(offset)
        return lane

    def _call(self, method: str, after: bool) -> None:
        if not after:
            self.calls.append(method)
            if self.error is not None:
                raise self.error
            if self.refusal is not None and method == "apply":
                raise self.refusal

    def _to_wheel(self, lane: SourcePartition, records: list[Held]) -> None:
        self.in_wheel += [record.offset for record in records]

    def step(self, now_ms: int = NOW_MS, room: int = 100) -> None:
        self.worker.step(self.lanes, now_ms, room)
        self.executor.run()
        self.worker.apply(self.lanes, now_ms)


@pytest.fixture(name="bench")
def bench_fixture() -> Bench:
    return Bench()


def test_only_what_the_ledger_has_is_applied(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes += [change(1, held(1, 9_000)), change(2, held(2, 9_000), committed=False)]
    bench.step()
    assert bench.overflow.hw.get(lane.id, 0) == 1
    assert (lane.acknowledged, len(lane.changes), lane.overflow_used) == (1, 1, True)
    assert lane.offsets.is_done(1)
    lane.changes[0].committed = True
    bench.step()
    bench.step()
    assert bench.overflow.hw.get(lane.id, 0) == 2


def test_an_overflow_of_a_newer_program_ends_the_engine_and_is_not_rebuilt(bench: Bench) -> None:
    bench.lanes[0].changes.append(change(1, held(1, 90_000)))
    bench.error = NewerOverflowFormat("format 2")
    with pytest.raises(NewerOverflowFormat):
        bench.step()
    assert bench.lanes[0].loss is None


def test_a_key_that_has_gone_is_noticed_within_a_second_though_nothing_is_asked_of_its_lane(bench: Bench) -> None:
    """And the other lanes are asked all the same."""
    bench.lanes = [bench.lane(partition) for partition in range(4)]
    for lane in bench.lanes:
        lane.changes.append(change(1, held(1, 90_000)))
    bench.step()
    bench.step(NOW_MS + CHECK_MS)
    bench.overflow.lose_tombstones(bench.lanes[0].id)
    bench.overflow.lose_level(bench.lanes[2].id, 0)
    bench.overflow.hw[bench.lanes[3].id] = 0
    bench.step(NOW_MS + 2 * CHECK_MS)
    assert [lane.loss is not None and lane.loss.hw for lane in bench.lanes] == [0, False, 0, 0]
    assert bench.lanes[0].loss is not None
    assert "what was struck out has gone" in bench.lanes[0].loss.detail


def test_an_overflow_that_is_away_is_asked_ever_more_rarely_and_is_used_again(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 90_000)))
    bench.error = OverflowUnavailable("down")
    asked_ms = []
    for now_ms in range(NOW_MS, NOW_MS + 3_000, 10):
        before = len(bench.calls)
        bench.step(now_ms)
        asked_ms += [now_ms] * (len(bench.calls) > before)
    waits = [later - sooner for sooner, later in pairwise(asked_ms)]
    assert waits[0] == RETRY_FIRST_MS
    assert waits == sorted(waits)
    assert max(waits) == RETRY_MAX_MS
    assert bench.worker.problem == "down"
    assert not lane.offsets.is_done(1)
    bench.error = None
    bench.step(NOW_MS + 3_500)
    assert bench.worker.problem == ""
    assert lane.offsets.is_done(1)


@pytest.mark.parametrize(
    "error", [OverflowUnavailable("down"), OverflowRefused("read only"), OverflowFull("no memory")]
)
def test_a_problem_goes_with_the_partitions_that_had_it(bench: Bench, error: Exception) -> None:
    bench.lanes[0].changes.append(change(1, held(1, 90_000)))
    bench.error = error
    for now_ms in range(NOW_MS, NOW_MS + 3 * CHECK_MS, 10):
        bench.step(now_ms)
        assert bench.worker.problem == str(error)
    bench.lanes = []
    bench.step(NOW_MS + 5 * CHECK_MS)
    assert bench.worker.problem == ""


def test_a_full_overflow_is_waited_for_and_loss_is_not(bench: Bench) -> None:
    bench.lanes[0].changes.append(change(1, held(1, 90_000)))
    bench.error = OverflowFull("no memory")
    bench.step()
    assert bench.worker.problem == "no memory"
    bench.error = OverflowLoss(bench.lanes[0].id, 0, "gone")
    bench.step(NOW_MS + RETRY_MAX_MS)
    assert bench.lanes[0].loss is not None
    assert bench.lanes[0].loss.hw == 0


@pytest.mark.parametrize("refusal", [OverflowRefused("read only"), OverflowFull("no memory")])
def test_refused_writes_are_a_problem_until_one_is_taken_however_much_is_read(bench: Bench, refusal: Exception) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 2_000)))
    bench.step()
    lane.changes.append(change(2, held(2, 90_000)))
    bench.refusal = refusal
    bench.step()
    assert bench.worker.problem == str(refusal), "though a promotion went well behind it"
    bench.step(NOW_MS + RETRY_FIRST_MS)
    assert bench.in_wheel == [1], "it is read from"
    assert bench.worker.problem == str(refusal)
    bench.refusal = None
    bench.step(NOW_MS + 2_000)
    assert bench.worker.problem == ""
    assert lane.offsets.is_done(2)


def test_the_cursor_follows_the_horizon_without_asking_an_overflow_never_used(bench: Bench) -> None:
    bench.step()
    assert bench.lanes[0].promotion.cursor == Position(NOW_MS + HORIZON_MS, OFFSET_MAX)
    assert bench.calls == []


def test_the_cursor_stops_below_a_put(bench: Bench) -> None:
    bench.lanes[0].put([held(3, 2_000)])
    bench.step()
    assert bench.lanes[0].promotion.cursor == Position(NOW_MS + 2_000, 2)


def test_what_falls_due_before_it_is_in_the_overflow_goes_into_the_wheel(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.put([held(3, 900), held(4, 5_000)])
    lane.changes.append(change(1, held(5, 800), held(6, 5_000), committed=False))
    bench.step()
    assert sorted(bench.in_wheel) == [3, 5]
    assert set(lane.promotion.skip) == {5}


def test_promotion_takes_what_there_is_room_for(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, *(held(offset, 2_000 + offset) for offset in range(6))))
    bench.step()
    bench.step(room=4)
    bench.step(room=0)
    assert bench.in_wheel == [0, 1, 2, 3]
    assert lane.promotion.cursor == held(3, 2_003).position
    bench.step(room=0)
    assert bench.in_wheel == [0, 1, 2, 3]
    bench.step()
    bench.step()
    assert bench.in_wheel == [0, 1, 2, 3, 4, 5]
    assert lane.promotion.cursor == Position(NOW_MS + HORIZON_MS, OFFSET_MAX)


def test_what_is_taken_in_takes_the_room_that_was_reckoned_before(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, *(held(offset, 2_000 + offset) for offset in range(6))))
    bench.step()
    for _ in range(2):  # in the second, those of the first are taken in
        bench.worker.step(bench.lanes, NOW_MS, room=4)
        bench.executor.run()
    bench.worker.apply(bench.lanes, NOW_MS)
    assert bench.in_wheel == [0, 1, 2, 3]


def test_a_lane_that_left_takes_nothing_more_in(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 2_000)))
    bench.step()
    bench.worker.step(bench.lanes, NOW_MS, 100)
    lane.leaving = True
    bench.executor.run()
    bench.worker.apply(bench.lanes, NOW_MS)
    assert bench.in_wheel == []


def test_a_lane_that_lost_something_meanwhile_takes_nothing_more_in(bench: Bench) -> None:
    """A rebuild is planned by the cursor as it is, and what was read may lack what is lost."""
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 2_000)))
    bench.step()
    bench.worker.step(bench.lanes, NOW_MS, 100)
    before = lane.promotion.cursor
    bench.executor.run()
    lane.note_loss(0, "found by another call")
    bench.worker.apply(bench.lanes, NOW_MS)
    assert (lane.promotion.cursor, lane.promotion.promised, bench.in_wheel) == (before, None, [])


def look_once(bench: Bench) -> None:
    """Have its lane put something into the overflow, and a promotion see that nothing is due within a minute."""
    for passed_ms in (0, 5_000, 5_000):
        bench.step(NOW_MS + passed_ms)
    assert bench.calls.count("promote") == 1
    bench.calls.clear()


def test_where_nothing_is_the_cursor_moves_on_without_a_question(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 60_000)))
    look_once(bench)
    for passed_ms in range(6_000, 52_000, 1_000):
        bench.step(NOW_MS + passed_ms)
    assert "promote" not in bench.calls
    assert NOW_MS + 50_000 < lane.promotion.cursor.due_ms <= NOW_MS + 55_000
    lane.changes.append(change(2, held(2, 57_000)))  # into what was seen to be empty
    for passed_ms in range(52_000, 61_000, 1_000):
        bench.step(NOW_MS + passed_ms)
    assert bench.in_wheel == [2, 1]


def test_where_a_stranger_has_written_it_is_looked_at_again(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 60_000)))
    look_once(bench)
    bench.overflow.apply([Change(lane.id, 2, [held(7, 30_000)])], NOW_MS)
    bench.calls.clear()
    for passed_ms in range(6_000, 12_000, 1_000):
        bench.step(NOW_MS + passed_ms)
    assert "promote" in bench.calls


def test_what_was_seen_before_a_loss_is_not_relied_on(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 60_000)))
    look_once(bench)
    lane.note_loss(0, "a key has gone")
    lane.loss = None  # rebuilt
    bench.step(NOW_MS + 10_000)
    assert "promote" in bench.calls


def test_a_failed_promotion_promises_nothing(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 2_000)))
    bench.step()
    bench.worker.step(bench.lanes, NOW_MS, 100)
    before, promised = lane.promotion.cursor, lane.promotion.promised
    assert promised == Position(NOW_MS + HORIZON_MS, OFFSET_MAX)
    bench.error = OverflowUnavailable("down")
    bench.executor.run()
    bench.worker.apply(bench.lanes, NOW_MS)
    assert (lane.promotion.cursor, lane.promotion.promised) == (before, None)


def test_the_lane_furthest_behind_comes_first(bench: Bench) -> None:
    bench.lanes = [bench.lane(number, NOW_MS + 100 * (20 - number)) for number in range(JOBS_MAX + 6)]
    for lane in bench.lanes:
        lane.overflow_used = True
    bench.worker.step(bench.lanes, NOW_MS, 1_000_000)
    assert [lane.id.partition for lane in bench.lanes if lane.promotion.promised] == [6, 7, 8, 9]


def test_only_what_a_commit_has_passed_is_tidied_away(bench: Bench) -> None:
    [lane] = bench.lanes
    lane.changes.append(change(1, held(1, 2_000), held(2, 90_000)))
    bench.step()
    bench.step()
    lane.settle([1], [NOW_MS + 2_000])
    lane.uncommitted = False
    bench.worker.ask_to_tidy(bench.lanes)
    assert lane.uncommitted
    bench.step()
    assert [record.offset for record in bench.overflow.records[lane.id]] == [1, 2]
    lane.ledger.committed_watermark = lane.promotion.watermark
    bench.worker.ask_to_tidy(bench.lanes)
    bench.step()
    assert [record.offset for record in bench.overflow.records[lane.id]] == [2]
    bench.worker.stop()


def test_who_looks_for_ids_keeps_no_promotion_waiting(bench: Bench) -> None:
    lanes = [bench.lane(partition) for partition in range(2 * JOBS_MAX)]
    answers: list[dict[str, Held]] = []
    bench.worker.step(lanes, NOW_MS, 0)
    bench.executor.run()
    for lane in lanes:
        assert bench.worker.find(lane, ["x"], answers.append, pytest.fail)  # type: ignore[arg-type]
    for lane in lanes:
        lane.overflow_used = True
    bench.worker.step(lanes, NOW_MS + HORIZON_MS, 1_000_000)
    assert sum(lane.promotion.promised is not None for lane in lanes) == JOBS_MAX
    bench.executor.run()
    bench.worker.apply(lanes, NOW_MS + HORIZON_MS)
    assert answers == [{}] * len(lanes)
    bench.error = OverflowUnavailable("down")
    unfound: list[bool] = []
    assert bench.worker.find(lanes[0], ["x"], pytest.fail, lambda: unfound.append(True))  # type: ignore[arg-type]
    bench.executor.run()
    bench.worker.apply(lanes, NOW_MS + HORIZON_MS)
    assert unfound == [True]
    assert not bench.worker.find(lanes[0], ["x"], pytest.fail, pytest.fail)  # type: ignore[arg-type]


@pytest.mark.parametrize("asked_by", ["promotion", "id"])
def test_a_redis_that_goes_back_behind_a_strike_on_its_way_gives_nothing(bench: Bench, asked_by: str) -> None:
    [lane] = bench.lanes
    cancelled = held(1, 2_000)._replace(trailer=[("tickover-id", b"a")])
    lane.changes.append(change(1, cancelled))
    bench.step(room=0)
    copy = bench.overflow.copy()
    assert lane.take_out(cancelled, in_memory=False) is HeldIn.OVERFLOW
    strike = Tombstone(cancelled.position, "a")
    lane.changes.append(ChangeBlock(2, {}, set(), NEVER, -1, committed=True, struck=[strike]))
    bench.worker.step(bench.lanes, NOW_MS, room=100 if asked_by == "promotion" else 0)
    answers: list[object] = []
    if asked_by == "id":
        assert bench.worker.find(lane, ["a"], answers.append, lambda: None)
    assert bench.executor.step(), "the strike is written"
    bench.overflow.restore(copy)
    bench.executor.run()
    bench.worker.apply(bench.lanes, NOW_MS)
    assert (lane.acknowledged, lane.promotion.skip) == (2, {})
    assert lane.loss is not None
    assert (bench.in_wheel, answers) == ([], [])
