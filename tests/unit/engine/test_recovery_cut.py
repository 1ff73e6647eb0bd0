"""Recovery of a partition whose source lost the end of its log since."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from sidecar.engine.commit.block_builder import commit_state
from sidecar.engine.partition.partition import NOT_DECIDED, SourcePartition
from sidecar.engine.recovery import Replay
from sidecar.engine.recovery_reader import RecoveryWorker
from sidecar.ledger.block import NO_ENTRIES, NOTHING_SETTLED, Block
from sidecar.ledger.commit_metadata import CommitState, decode_metadata, encode_metadata
from sidecar.ledger.topic import LedgerUnavailable
from sidecar.model.log_cuts import CUTS_MAX, Cuts, Marks, ReadMark
from sidecar.model.ports import Start
from sidecar.model.record import Position, TopicPartition
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_overflow import FakeOverflow
from tests.unit.engine.test_recovery import LANE, LEDGER, Commits, Log, block, entries, settled
from tests.unit.model.test_log_cuts import Source, written

ID = "vL4xXyz0Q0mJp1n5cQmRrA"


def block_of(low: int, read_to: int = 100, marks: Marks = (), **more: object) -> Block:
    """A block of this topic, by which all below `low` is settled and all below `read_to` is read."""
    one = replace(block(**more), topic_id=ID, low=low, runs=((0, 1), (read_to, NOT_DECIDED)))  # type: ignore[arg-type]
    return replace(one, read=marks[-1] if marks else None)


def committed(low: int, marks: Marks, log_end: int, **more: object) -> Start:
    state = CommitState(low, Position(0, 0), 0, 0, 0, 0, 0, ID, -1, read=marks)
    return Start(low, encode_metadata(replace(state, **more)), ID, log_end=log_end)  # type: ignore[arg-type]


def without_commit(source: Source, topic_id: str = ID) -> Start:
    return Start(source.start, "", topic_id, log_start=source.start, log_end=source.end)


def recover(start: Start, source: Source, *blocks: Block, hw: int = 0) -> SourcePartition:
    overflow = FakeOverflow()
    overflow.hw[LANE] = hw
    starts = Commits({LANE: start}, source.records)
    worker = RecoveryWorker(starts, LEDGER, Log(*blocks), overflow, 1, StepExecutor())
    return recover_at_last(worker)


def recover_at_last(worker: RecoveryWorker) -> SourcePartition:
    """Recover the lane; the worker looks again at what it sees for the first time."""
    with suppress(LedgerUnavailable):
        [lane] = worker.recover([LANE], 0)
        return lane
    [lane] = worker.recover([LANE], 0)
    return lane


def fresh(lane: SourcePartition, source: Source) -> list[int]:
    """Offsets of the log that the lane takes for new when it reads on."""
    begin = lane.cuts.log_offset(lane.offsets.next)
    return [
        one.offset for one in source.records if one.offset >= begin and lane.accept(lane.cuts.lane_offset(one.offset))
    ]


@pytest.mark.parametrize("since", [0, 5, 10, 20])
@pytest.mark.parametrize("with_commit", [True, False])
def test_what_came_since_the_log_was_cut_back_is_new_and_nothing_else(since: int, with_commit: bool) -> None:
    source = written(100)
    marks = source.marks(99)
    last = block_of(100, marks=marks)
    source.cut(90)
    source.write(since)
    start = committed(100, marks, source.end) if with_commit else without_commit(source)
    assert fresh(recover(start, source, last), source) == list(range(90, 90 + since))


def test_by_the_ledger_alone_a_log_that_ends_before_what_was_read_was_cut() -> None:
    """As earlier versions wrote it."""
    source = written(90)
    replay = Replay(LANE, without_commit(source), None, 0)
    replay.block(0, block_of(100))
    assert not replay.lane(0, 1, 1).accept(90), "nobody has said that it was cut"
    lane = recover(without_commit(source), source, block_of(100))
    source.write(20)
    assert fresh(lane, source) == list(range(90, 110))


@pytest.mark.parametrize("since", [10, 150])
def test_a_topic_made_anew_where_brokers_give_no_ids_is_read_from_its_start(since: int) -> None:
    source = written(100)
    marks = source.marks(99)
    last = replace(block_of(100, marks=marks), topic_id="")
    anew = Source(now_ms=200_000_000_000)
    anew.write(since)
    for start in (committed(100, marks, anew.end, topic_id="")._replace(topic_id=""), without_commit(anew, "")):
        assert fresh(recover(start, anew, last), anew) == list(range(since))


def test_what_is_open_below_the_cut_is_read_again_and_what_redis_has_beyond_it_stays() -> None:
    source = written(100)
    marks = source.marks(99)
    first = block_of(50, entries_part=entries((85, 9_000), (95, 9_000)), number=1, marks=marks)
    second = block_of(50, settled_part=settled(*(set(range(50, 100)) - {70, 85, 95, 97})), acknowledged=1, marks=marks)
    source.cut(90)
    source.write(20)
    lane = recover(committed(50, marks, source.end), source, first, replace(second, overflow_held=2), hw=1)
    assert lane.overflow_held == 2, "both are there and fire"
    assert lane.vanished == [97], "it was read, and only its log had it"
    assert fresh(lane, source) == [70, *range(90, 110)]
    assert lane.offsets.next == 120


def test_an_entry_that_redis_has_not_and_the_log_has_no_more_is_given_up() -> None:
    source = written(100)
    marks = source.marks(99)
    first = block_of(50, entries_part=entries((85, 9_000), (95, 9_000)), number=1, marks=marks)
    source.cut(90)
    lane = recover(committed(50, marks, source.end), source, first)
    [change] = lane.changes
    assert change.missing == {85}
    assert 95 in lane.vanished


def test_a_cut_is_said_in_the_next_block_and_commit_and_found_once(caplog: pytest.LogCaptureFixture) -> None:
    source = written(100)
    marks = source.marks(99)
    last = block_of(100, marks=marks)
    source.cut(90)
    source.write(20)
    caplog.set_level(logging.ERROR)
    lane = recover(committed(100, marks, source.end), source, last)
    [said] = [record for record in caplog.records if "lost the end of its log" in record.message]
    assert (said.cut_back_to, said.lost, said.counts_from) == (90, 10, 100)  # type: ignore[attr-defined]
    assert (lane.touched, lane.cuts) == (True, Cuts(((100, 90),)))
    for offset in range(90, 95):
        lane.accept(lane.cuts.lane_offset(offset))
        lane.note_read(source.records[offset])
    lane.offsets.done[:] = b"\x01" * len(lane.offsets.done)
    lane.advance_low()
    state = commit_state(lane, 0, LEDGER)
    assert state.low == 95, "what Kafka is told is an offset of its log"
    caplog.clear()
    start = Start(95, encode_metadata(replace(state, block_offset=0)), ID, log_end=source.end)
    again = recover(start, source, replace(last, cuts=lane.cuts, read=source.records[94], low=105))
    assert not caplog.records
    assert fresh(again, source) == list(range(95, 110))
    assert decode_metadata(95, start.metadata) == replace(state, block_offset=0)


def test_without_its_commit_the_blocks_say_where_the_log_was_cut() -> None:
    source = written(100)
    former = block_of(100, marks=source.marks(99))
    source.cut(90)
    source.write(20)
    cuts = Cuts(((100, 90),))
    since = replace(block_of(100, 110, settled_part=settled(102)), cuts=cuts, read=source.records[99])
    lane = recover(without_commit(source), source, former, since)
    assert fresh(lane, source) == [offset for offset in range(90, 110) if offset != 92]


def test_an_offset_that_an_operator_set_is_one_of_the_log_as_it_is_now() -> None:
    source = written(100)
    source.cut(90)
    source.write(20)
    last = replace(block_of(100, 110), cuts=Cuts(((100, 90),)), read=source.records[99])
    lane = recover(Start(95, "", ID, log_end=source.end), source, last)
    assert fresh(lane, source) == list(range(95, 110))


def test_a_partition_of_whose_log_nobody_knows_is_waited_for() -> None:
    source = written(100)

    class Silent(Commits):
        def records(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadMark | None]:
            return {}

    starts = Silent({LANE: committed(100, source.marks(99), 100)})
    worker = RecoveryWorker(starts, LEDGER, Log(block_of(100)), FakeOverflow(), 1, StepExecutor())
    with pytest.raises(LedgerUnavailable, match="no answer about what the log of reminders/3 has"):
        worker.recover([LANE], 0)


def test_a_log_that_is_cut_back_again_and_again_is_refused_in_the_end() -> None:
    source = written(100)
    marks = source.marks(99)
    cuts = Cuts(tuple((1_000 + number, number) for number in range(CUTS_MAX)))
    source.cut(90)
    with pytest.raises(Exception, match=f"more than {CUTS_MAX} times; give the group another name"):
        recover(committed(100, marks, 90, cuts=cuts), source, replace(block_of(1_100, 1_100), cuts=cuts))


def test_nothing_was_cut_where_nothing_was_read() -> None:
    lane = recover(Start(0, "", ID, log_end=0), Source())
    assert not lane.cuts
    empty = replace(block(NOTHING_SETTLED, NO_ENTRIES), topic_id=ID, runs=((0, NOT_DECIDED),))
    assert not recover(Start(0, "", ID, log_end=0), Source(), empty).cuts


@pytest.mark.parametrize("again", ["there", "marks"])
def test_a_leader_that_does_not_know_yet_what_all_have_is_asked_again(again: str) -> None:
    source = written(100)
    marks = source.marks(99)

    class Late(Commits):
        is_late = True

        def records(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadMark | None]:
            found = super().records(places)
            if self.is_late:
                found = {lane: None if mark is None or mark.offset >= 99 else mark for lane, mark in found.items()}
            return found

    start = committed(100, marks, 100)
    if again == "marks":  # cut back by one, and the transaction that began there was aborted
        source.cut(99)
    starts = Late({LANE: start}, source.records)
    worker = RecoveryWorker(starts, LEDGER, Log(block_of(100, marks=marks)), FakeOverflow(), 1, StepExecutor())
    with pytest.raises(LedgerUnavailable):
        worker.recover([LANE], 0)
    starts.is_late = False
    [lane] = worker.recover([LANE], 0)
    assert lane.cuts == (Cuts() if again == "there" else Cuts(((100, 99),)))


@pytest.mark.parametrize("since", [0, 1, 2, 3, 20])
@pytest.mark.parametrize("with_commit", [True, False])
def test_where_only_marks_of_transactions_were_lost_what_is_there_now_is_new(since: int, with_commit: bool) -> None:
    """Marks of transactions were passed as read, so that they are no lag."""
    source = written(100)
    marks = source.marks(99)
    last = block_of(103, 103, marks=marks)
    source.write(since)
    start = committed(103, marks, source.end) if with_commit else without_commit(source)
    assert fresh(recover(start, source, last), source) == list(range(100, 100 + since))


def test_what_an_operator_has_passed_over_is_not_read_after_all() -> None:
    source = written(150)
    lane = recover(Start(140, "", ID, log_end=150), source, block_of(100, marks=source.marks(99)))
    assert lane.read_marks == ()
    state = commit_state(lane, 0, LEDGER)
    again = Start(140, encode_metadata(replace(state, block_offset=0)), ID, log_end=150)
    assert fresh(recover(again, source, block_of(100, marks=source.marks(99))), source) == list(range(140, 150))


def test_where_retention_took_the_record_that_was_read_last_it_begins_at_the_log_s_start() -> None:
    source = written(200)
    source.start = 150
    start = committed(103, source.marks(99), 200)._replace(offset=150, log_start=150)
    assert fresh(recover(start, source, block_of(103, 103, marks=source.marks(99))), source)[0] == 150


@pytest.mark.parametrize(("read_until", "cut"), [(100, None), (103, 100)])
def test_while_it_is_read_a_log_that_lost_marks_of_transactions_alone_is_read_on_behind_the_last_record(
    read_until: int, cut: int | None
) -> None:
    source = written(100)
    lane = recover(without_commit(source), source, block_of(100, marks=source.marks(99)))
    lane.offsets.next = read_until
    executor = StepExecutor()
    starts = Commits({LANE: without_commit(source)}, source.records)
    worker = RecoveryWorker(starts, LEDGER, Log(), FakeOverflow(), 1, executor)
    first, second = worker.look_at(lane), worker.look_at(lane)
    executor.run()
    assert second.result(0) == cut
    assert isinstance(first.exception(0), LedgerUnavailable) is (cut is not None), "brokers may not agree yet"


def test_a_log_of_which_retention_took_all_that_was_read_is_as_it_was() -> None:
    source = written(100)
    source.start = 100
    start = committed(100, source.marks(99), 100)._replace(offset=100, log_start=100)
    lane = recover(start, source, block_of(100, marks=source.marks(99)))
    assert (lane.cuts, lane.offsets.low) == (Cuts(), 100)
    source.write(3)
    assert fresh(lane, source) == [100, 101, 102]


def test_after_a_cut_nothing_that_was_settled_below_it_is_read_again() -> None:
    source = written(6_001)
    marks = source.marks(4_000, 5_000, 6_000)
    source.cut(5_900)
    lane = recover(committed(6_001, marks, source.end), source, block_of(6_001, 6_001, marks=marks))
    state = commit_state(lane, 0, LEDGER)
    assert (state.low, lane.read_marks[-1].offset) == (5_900, 5_899)
    for read in (state.read, state.read[:-1]):  # as one that was noted while it was read has it, too
        again = Start(5_900, encode_metadata(replace(state, block_offset=0, read=read)), ID, log_end=source.end)
        last = replace(block_of(6_001, 6_001), cuts=lane.cuts, read=read[-1])
        assert fresh(recover(again, source, last), source) == []
    source.cut(5_890)
    source.write(5)
    again = Start(5_900, encode_metadata(replace(state, block_offset=0)), ID, log_end=source.end)
    last = replace(block_of(6_001, 6_001), cuts=lane.cuts, read=state.read[-1])
    assert fresh(recover(again, source, last), source) == list(range(5_890, 5_895))


def test_a_block_that_was_written_before_the_commit_s_cuts_takes_them_back_no_more() -> None:
    source = written(100)
    source.cut(90)
    source.write(20)
    cuts = Cuts(((100, 90),))
    start = committed(90, source.marks(89), source.end, cuts=cuts)
    lane = recover(start, source, replace(block_of(100, 100), read=None))
    assert lane.cuts == cuts
