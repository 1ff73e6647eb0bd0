"""A lane's overflow lost and rebuilt: the real engine, recovery and rebuild between fakes."""

from collections.abc import Callable

import pytest

from sidecar.engine.storage import rebuild
from sidecar.engine.storage.rebuild_worker import RETRY_MS
from sidecar.model.stats import RebuildProgress
from sidecar.overflow.interface import OverflowFull, OverflowUnavailable
from tests.simulation.fake_overflow import FakeOverflow
from tests.simulation.replica import LEDGER
from tests.unit.engine_bench import LANE, SOURCE, Bench

pytestmark = pytest.mark.slow  # many runs of the engine

COUNT = 60
DELAY_MS = 20_000


@pytest.fixture(name="bench")
def bench_fixture() -> Bench:
    """Records in the overflow, in several change blocks."""
    bench = Bench()
    hold(bench, COUNT)
    return bench


def hold(bench: Bench, count: int, delay_ms: int = DELAY_MS) -> None:
    held = bench.lane.overflow_held
    for number in range(count):
        bench.send(b"%d" % (held + number), delay_ms + number * 100)
        if number % 10 == 9:
            bench.run(60)
    bench.wait_until(lambda: bench.lane.overflow_held == held + count)
    bench.run(200)


def fired(bench: Bench) -> list[bytes | None]:
    return sorted(bench.values("mail"), key=lambda value: int(value or b"-1"))


def all_of(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def wait_until_rebuilt(bench: Bench) -> None:
    bench.wait_until(lambda: bench.replica.tally.rebuilds and bench.lane.loss is None)


def test_a_wiped_overflow_is_noticed_and_rebuilt_and_everything_fires_once(bench: Bench) -> None:
    acknowledged = bench.lane.acknowledged
    assert acknowledged > 3
    bench.overflow.wipe()
    wait_until_rebuilt(bench)
    assert bench.overflow.hw[LANE] == acknowledged
    assert len(bench.overflow.records[LANE]) == COUNT
    assert bench.lane.overflow_held == COUNT
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT)
    bench.run(1_000)
    assert fired(bench) == all_of(COUNT)
    assert bench.replica.tally.early == 0
    assert bench.replica.publisher.survey() == 0


def test_an_older_copy_is_made_up_from_where_it_ends(bench: Bench) -> None:
    copy = bench.overflow.copy()
    hold(bench, COUNT)
    bench.overflow.restore(copy)
    wait_until_rebuilt(bench)
    assert bench.replica.tally.rebuilt[SOURCE] == COUNT, "the others were there"
    assert len(bench.overflow.records[LANE]) == 2 * COUNT
    bench.wait_until(lambda: len(bench.values("mail")) == 2 * COUNT)
    assert fired(bench) == all_of(2 * COUNT)


def progress_while_rebuilt(bench: Bench) -> list[RebuildProgress]:
    """Progress as it is shown at each step of a rebuild."""
    shown: list[RebuildProgress] = []
    bench.wait_until(lambda: bench.lane.loss is not None)
    while bench.lane.loss is not None:
        shown += bench.replica.publisher.publish(bench.clock.now_ms).rebuilding
        bench.step(5)
    assert bench.replica.tally.rebuilds == 1
    assert shown == sorted(shown, key=lambda one: (one.read_share, one.done)), "it goes forward only"
    return shown


def test_a_rebuild_shows_how_far_it_has_read_while_it_finds_nothing_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "LEDGER_RECORDS_PER_STEP_MAX", 1)
    bench = Bench()
    hold(bench, 10, delay_ms=60_000)
    for _ in range(30):
        bench.send(b"near", 0)
        bench.run(100)
    hold(bench, 10, delay_ms=60_000)
    bench.overflow.wipe()
    shown = progress_while_rebuilt(bench)
    assert (shown[-1].done, shown[-1].held, shown[-1].read_share) == (20, 20, 1.0)
    assert len({one.read_share for one in shown if one.done == 10}) > 5, "blocks in which nothing is held"
    assert str(shown[-1]) == "20 of 20 records, 100% of the ledger read"


def test_what_a_rebuild_finds_there_is_done(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "LEDGER_RECORDS_PER_STEP_MAX", 1)
    copy = bench.overflow.copy()
    hold(bench, 10)
    bench.overflow.restore(copy)
    last = progress_while_rebuilt(bench)[-1]
    assert COUNT <= last.done <= last.held == COUNT + 10
    assert bench.replica.tally.rebuilt[SOURCE] == 10, "the others were there"


def test_a_partition_whose_rebuild_has_not_begun_waits_for_its_turn() -> None:
    assert str(RebuildProgress("reminders", 3, 0, 7)) == "0 of 7 records, waits for its turn"
    assert str(RebuildProgress("reminders", 3, 2, 7, "Redis is full", 0.5)) == (
        "2 of 7 records, 50% of the ledger read; Redis is full"
    )


def test_content_that_is_gone_though_the_number_is_right_begins_the_lane_anew(bench: Bench) -> None:
    bench.overflow.damage(LANE, 17)
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT)
    assert bench.replica.tally.rebuilds == 1
    assert fired(bench) == all_of(COUNT)


VANISHED: dict[str, Callable[[FakeOverflow], None]] = {
    "a level": lambda overflow: overflow.lose_level(LANE, overflow.records[LANE][20].due_ms),
    "what is struck out": lambda overflow: overflow.lose_tombstones(LANE),
    "the index": lambda overflow: overflow.lose_index(LANE),
}


def cancel(bench: Bench, id: bytes) -> None:
    bench.send(None, headers=[("tickover-action", b"cancel"), ("tickover-id", id)])


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("lose", VANISHED.values(), ids=VANISHED)
def test_a_key_that_vanishes_is_missed_and_everything_fires_once_but_what_was_cancelled(
    bench: Bench, lose: Callable[[FakeOverflow], None], restarted: bool
) -> None:
    for number in range(COUNT, COUNT + 10):
        bench.send(b"%d" % number, DELAY_MS, headers=[("tickover-id", b"id%d" % number)])
    bench.run(500)
    cancel(bench, b"id65")
    bench.wait_until(lambda: bench.overflow.struck[LANE])
    bench.run(500)
    lose(bench.overflow)
    if restarted:
        bench.restart()
        bench.wait_until(lambda: LANE in bench.replica.assignment.lanes)
    cancel(bench, b"id66")
    wait_until_rebuilt(bench)
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT + 8)
    bench.run(1_000)
    assert fired(bench) == [value for value in all_of(COUNT + 10) if value not in (b"65", b"66")]
    assert bench.replica.publisher.survey() == 0


def test_records_that_went_without_a_trace_are_found_by_the_account(bench: Bench) -> None:
    """An older copy that lacks some keys besides: number and contents don't show it, count and digest do."""
    copy = bench.overflow.copy()
    hold(bench, 20)
    bench.overflow.restore(copy)
    del bench.overflow.records[LANE][3:9]
    wait_until_rebuilt(bench)
    assert bench.replica.tally.rebuilt[SOURCE] == 20 + COUNT + 20, "first the rest, then everything"
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT + 20)
    assert fired(bench) == all_of(COUNT + 20)


def test_a_wiped_overflow_with_nothing_held_just_goes_on(bench: Bench) -> None:
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT)
    bench.run(500)
    acknowledged = bench.lane.acknowledged
    bench.overflow.wipe()
    hold(bench, 10)
    assert bench.overflow.hw[LANE] > acknowledged
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT + 10)
    assert bench.replica.tally.rebuilt[SOURCE] == 0
    assert not any(bench.replica.tally.lost.values())


def test_a_process_that_starts_with_an_empty_redis_rebuilds_it(bench: Bench) -> None:
    bench.overflow.wipe()
    bench.restart()
    bench.wait_until(lambda: LANE in bench.replica.assignment.lanes)
    wait_until_rebuilt(bench)
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT)
    assert fired(bench) == all_of(COUNT)
    assert bench.replica.publisher.survey() == 0


def test_the_wheel_goes_on_and_puts_wait_while_a_lane_is_rebuilt() -> None:
    bench = Bench(rebuild_rate=2)  # a piece a second or so: the rebuild takes long
    hold(bench, COUNT, delay_ms=30_000)
    bench.overflow.wipe()
    bench.wait_until(lambda: bench.lane.loss is not None)
    bench.send(b"near", 0)
    bench.send(b"far", 40_000)
    bench.run(500)
    assert bench.values("mail") == [b"near"]
    assert bench.lane.loss is not None
    assert bench.lane.on_the_way == 1
    assert b"far" not in [held.value for held in bench.overflow.records[LANE]]
    assert bench.replica.publisher.publish(bench.clock.now_ms).rebuilding[0].held == COUNT
    wait_until_rebuilt(bench)
    bench.wait_until(lambda: len(bench.overflow.records[LANE]) == COUNT + 1)


@pytest.mark.parametrize("error", [OverflowUnavailable("down"), OverflowFull("full")])
def test_a_rebuild_waits_for_redis_and_goes_on_within_a_second(bench: Bench, error: Exception) -> None:
    bench.overflow.wipe()
    bench.wait_until(lambda: bench.lane.loss is not None)
    failing = FakeOverflow().failing

    def fail(method: str, after: bool) -> None:
        if method == "redo":
            raise error

    bench.overflow.failing = fail
    bench.wait_until(lambda: bench.lane.loss and bench.lane.loss.problem)
    bench.run(3_000)
    assert bench.lane.loss is not None
    bench.overflow.failing = failing
    bench.run(RETRY_MS + 300)
    assert bench.lane.loss is None


def test_what_is_lost_again_during_a_rebuild_is_rebuilt_again(bench: Bench) -> None:
    wipes = [3, 5, 9]
    calls = 0

    def fail(method: str, after: bool) -> None:
        nonlocal calls
        calls += method == "redo"
        if wipes and calls == wipes[0]:
            wipes.pop(0)
            bench.overflow.wipe()

    bench.overflow.failing = fail
    bench.overflow.wipe()
    wait_until_rebuilt(bench)
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT)
    assert not wipes
    assert fired(bench) == all_of(COUNT)


def test_what_the_source_has_no_more_is_counted_and_named(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.broker.delete_before(SOURCE, 0, 25)
    bench.overflow.wipe()
    wait_until_rebuilt(bench)
    tally = bench.replica.tally
    assert tally.lost[SOURCE, "source"] == 25
    assert tally.lost[SOURCE, "ledger"] == 0
    assert bench.lane.overflow_held == COUNT - 25
    [error] = [record for record in caplog.records if "can't be put back" in record.message]
    assert error.levelname == "ERROR"
    assert "retention.ms" in error.message
    assert (error.topic, error.partition, error.count, error.first_offset) == (SOURCE, 0, 25, 0)  # type: ignore[attr-defined]
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT - 25)
    bench.run(2_000)
    assert bench.replica.publisher.survey() == 0
    bench.restart()
    bench.run(500)
    assert bench.lane.overflow_held == 0


def test_what_the_ledger_has_no_more_is_counted_and_named(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    partition = LEDGER.partition_of(LANE)
    bench.broker.delete_before(LEDGER.name, partition, bench.lane.rebuild_pointer() + 3)
    bench.overflow.wipe()
    wait_until_rebuilt(bench)
    lost = bench.replica.tally.lost[SOURCE, "ledger"]
    assert 0 < lost < COUNT
    [error] = [record for record in caplog.records if "can't be put back" in record.message]
    assert (error.ledger, error.count) == (LEDGER.name, lost)  # type: ignore[attr-defined]
    assert "ledger.retention" in error.message
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT - lost)
    bench.run(3_000)
    assert bench.replica.publisher.survey() == 0
    assert bench.lane.overflow_held == 0


def test_a_lane_taken_away_is_rebuilt_by_its_next_owner_from_where_the_first_came_to(bench: Bench) -> None:
    half = 0

    def fail(method: str, after: bool) -> None:
        nonlocal half
        if method == "redo" and after:
            half = bench.overflow.hw[LANE]
            raise OverflowUnavailable("the answer was lost")

    bench.overflow.failing = fail
    bench.overflow.wipe()
    bench.wait_until(lambda: half)
    assert 0 < half < bench.lane.acknowledged
    bench.overflow.failing = FakeOverflow().failing
    bench.restart()
    bench.wait_until(lambda: LANE in bench.replica.assignment.lanes)
    wait_until_rebuilt(bench)
    assert 0 < bench.replica.tally.rebuilt[SOURCE] < COUNT
    bench.wait_until(lambda: len(bench.values("mail")) == COUNT)
    assert fired(bench) == all_of(COUNT)


def test_what_w_has_passed_and_no_commit_says_so_is_put_back_for_the_lane_s_next_owner() -> None:
    troubles = {"now": ""}
    bench = Bench(trouble=lambda: troubles["now"])

    def down(method: str, after: bool) -> None:
        if method == "apply":
            raise OverflowUnavailable("down")

    bench.overflow.failing = down
    due_ms = bench.clock.now_ms + 3_000
    offset = bench.send(b"overtaken", 3_000)
    bench.wait_until(lambda: offset in bench.lane.promotion.skip)  # in the wheel, and on its way all the same
    bench.overflow.failing = FakeOverflow().failing
    bench.wait_until(lambda: bench.overflow.records[LANE])
    troubles["now"] = "abort"  # nothing is committed any more
    bench.wait_until(lambda: bench.lane.promotion.watermark.due_ms > due_ms)
    assert bench.clock.now_ms < due_ms
    assert bench.lane.ledger.committed_watermark.due_ms < due_ms
    bench.overflow.wipe()
    wait_until_rebuilt(bench)
    troubles["now"] = ""
    bench.restart()
    bench.wait_until(lambda: bench.values("mail") == [b"overtaken"])
    bench.run(1_000)
    assert bench.replica.publisher.survey() == 0


@pytest.mark.parametrize("exactly_once", [False, True])
def test_what_redis_has_of_another_topic_stays_until_a_commit_says_from_where_numbers_go_on(exactly_once: bool) -> None:
    troubles = {"now": "abort"}  # as of an owner that was deposed and doesn't know yet
    bench = Bench(trouble=lambda: troubles["now"]) if exactly_once else Bench()
    bench.group.commits_lost = 0.0 if exactly_once else 1.0
    bench.overflow.hw[LANE] = 11
    bench.restart()
    bench.wait_until(lambda: LANE in bench.replica.assignment.lanes)
    assert bench.lane.loss is not None
    bench.run(3_000)
    assert bench.overflow.hw[LANE] == 11, "its next owner will number its changes from elsewhere"
    assert "waits for a commit" in bench.lane.loss.problem
    troubles["now"], bench.group.commits_lost = "", 0.0
    wait_until_rebuilt(bench)
    assert bench.overflow.hw[LANE] == bench.lane.first_change == 12
