"""Recovery by hand-made blocks: each part of the ledger and what it means for the lane."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sidecar.engine.partition.change_block import FOREIGN
from sidecar.engine.partition.partition import NOT_DECIDED, SourcePartition
from sidecar.engine.recovery import Replay, table_version_at
from sidecar.engine.recovery_reader import RecoveryWorker
from sidecar.ledger.block import NO_ENTRIES, NOTHING_SETTLED, Block, Entries, Settled, encode
from sidecar.ledger.commit_metadata import CommitState, encode_metadata
from sidecar.ledger.topic import LedgerError, LedgerRecord, LedgerTopic
from sidecar.model.log_cuts import ReadMark
from sidecar.model.ports import Start
from sidecar.model.record import Outcome, Position, TopicPartition
from sidecar.overflow.interface import Change
from tests.contract import overflow_records
from tests.contract.overflow_records import held as overflow_record
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_overflow import FakeOverflow

LANE = TopicPartition("reminders", 3)
LOW = 10
LEDGER = LedgerTopic("ledger", 1, "g", "this one")
GOING_ON = replace(LEDGER, when_lost="continue")
RUNS = ((0, 1), (50, NOT_DECIDED))


def settled(*offsets: int, due_ms: int = 10, in_overflow: bool = False) -> Settled:
    count = len(offsets)
    return Settled(
        offsets, [due_ms] * count, [Outcome.EMITTED] * count, [int(in_overflow)] * count, ["p@1"] * count,
        ["mail"] * count, [0] * count, {}, {},
    )  # fmt: skip


def entries(*places: tuple[int, int]) -> Entries:
    """(offset, due) of each."""
    offsets, dues = [list(column) for column in zip(*places, strict=True)]
    count = len(places)
    return Entries(
        offsets, dues, ["p@1"] * count, ["mail"] * count, [-1] * count, [0] * count, [-1] * count, [-1] * count,
        ["dead"] * count, {},
    )  # fmt: skip


def block(
    settled_part: Settled = NOTHING_SETTLED,
    entries_part: Entries = NO_ENTRIES,
    number: int = 0,
    watermark: tuple[int, int] = (0, 0),
    acknowledged: int = 0,
    overflow_held: int = 0,
) -> Block:
    topic, partition = LANE
    return Block(
        "g", topic, "", partition, 0, 0, Position(*watermark), acknowledged, overflow_held, RUNS, number, settled_part,
        entries_part,
    )  # fmt: skip


def commit(
    low: int = 10, watermark: tuple[int, int] = (0, 0), acknowledged: int = 0, block_offset: int = -1, **more: Any
) -> CommitState:
    fields = {"recovery_pointer": 0, "rebuild_pointer": 0, "overflow_held": 0} | more
    return CommitState(low, Position(*watermark), acknowledged, block_offset, topic_id="", leader_epoch=-1, **fields)


def recovered(
    blocks: Sequence[Block], state: CommitState | None = None, hw: int = 0, *, whole: bool = False
) -> SourcePartition:
    replay = Replay(LANE, Start(LOW, "", ""), state, hw, whole=whole)
    for place, one in enumerate(blocks):
        replay.block(100 + place, one)
    return replay.lane(0, 1, 200)


def test_settled_offsets_are_done() -> None:
    lane = recovered([block(settled(8, 11, 13)), block(settled(10))])
    assert [lane.offsets.is_done(offset) for offset in (10, 11, 12, 13)] == [True, True, False, True]
    assert lane.advance_low() == 12
    assert not lane.accept(11)
    assert lane.accept(12)
    assert lane.imbalance == -1, "accepted, and nobody has counted it yet"


def test_what_the_overflow_has_is_done_and_needs_no_redoing() -> None:
    lane = recovered([block(entries_part=entries((11, 90), (12, 80)), number=1)], hw=1)
    assert lane.offsets.is_done(11)
    assert lane.overflow_held == 2
    assert not lane.changes
    assert (lane.number, lane.acknowledged, lane.overflow_used) == (1, 1, True)


def test_what_the_overflow_has_not_is_redone() -> None:
    blocks = [block(entries_part=entries((11, 90), (12, 80)), number=1), block(settled(11, in_overflow=True))]
    lane = recovered(blocks, hw=0)
    [change] = lane.changes
    assert change.committed
    assert not change.ready
    assert change.missing == {12}
    assert lane.earliest_put() == Position(80, 12)
    assert (lane.number, lane.acknowledged) == (1, 0)
    entry = lane.entries[12]
    assert (entry.due_ms, entry.target, entry.policy) == (80, "mail", "p@1")
    assert lane.redo(entry._replace(value=b"v"))
    assert change.ready


def test_what_w_has_passed_while_its_offset_was_open_is_read_again() -> None:
    blocks = [block(entries_part=entries((11, 50), (12, 150)), number=1), block(watermark=(100, 0))]
    lane = recovered(blocks, hw=1)
    assert not lane.offsets.is_done(11)
    assert lane.offsets.is_done(12)
    assert lane.overflow_held == 1
    assert not lane.redo(lane.entries[11]), "no change block waits for it: it goes into the wheel"


def test_the_overflow_holds_no_less_than_the_blocks_show() -> None:
    """A former owner did not count what it had overtaken; one before it may have counted below zero."""
    first = block(entries_part=entries((11, 90), (12, 80)), number=1)
    assert recovered([first, block(acknowledged=1, overflow_held=0)], hw=1).overflow_held == 2
    assert (
        recovered(
            [first, block(settled(11, 12, in_overflow=True), acknowledged=1, overflow_held=-2)], hw=1
        ).overflow_held
        == 0
    )


def test_what_a_commit_has_passed_since_its_last_block_was_counted_counts_no_more() -> None:
    """Without transactions a commit may overtake a block that was written before it."""
    change = block(entries_part=entries((11, 50), (12, 150)), number=1)
    state = commit(watermark=(100, 0), acknowledged=1, block_offset=100, overflow_held=1)
    lane = recovered([change, block(acknowledged=1, overflow_held=2, watermark=(40, 0))], state, hw=1)
    assert lane.overflow_held == 1
    assert list(lane.entries) == [11]


def test_settled_copies_ahead_of_w_are_skipped_by_promotion() -> None:
    lane = recovered([block(settled(4, 5, due_ms=30, in_overflow=True), watermark=(30, 4))], hw=0)
    assert lane.promotion.skip == {5: Position(30, 5)}
    assert lane.promotion.cursor == lane.promotion.watermark == Position(30, 4)


def test_the_counts_are_those_of_the_last_word_said() -> None:
    """A commit is later than its own last block, and earlier than the blocks behind it."""
    first = block(entries_part=entries((4, 90)), number=1, overflow_held=0)
    state = commit(acknowledged=1, block_offset=100, overflow_held=1)
    assert recovered([first], state, hw=1).overflow_held == 1
    later = block(acknowledged=1, overflow_held=7)
    assert recovered([first, later], state, hw=1).overflow_held == 7


def test_a_change_that_only_the_commit_knows_is_counted_beside_a_block_that_was_under_way() -> None:
    """The block doesn't count what was acknowledged after it was encoded; the commit that says so came before it."""
    first = block(entries_part=entries((14, 95)), number=2, acknowledged=1, overflow_held=5)
    state = commit(acknowledged=2, block_offset=100, overflow_held=6)
    under_way = block(acknowledged=1, overflow_held=5)
    assert recovered([first, under_way], state, hw=2).overflow_held == 6


def test_an_overflow_that_lost_data_is_taken_as_whole_and_rebuilt() -> None:
    first = block(entries_part=entries((11, 90), (12, 80)), number=1)
    second = block(entries_part=entries((14, 95)), number=2, acknowledged=1, overflow_held=2)
    third = block(entries_part=entries((15, 95)), number=3, acknowledged=2, overflow_held=3)
    lane = recovered([first, second, third], hw=1)
    assert lane.loss is not None
    assert lane.loss.hw == 1
    assert (lane.acknowledged, lane.number, lane.overflow_held) == (2, 3, 3)
    assert [lane.offsets.is_done(offset) for offset in (11, 12, 14)] == [True, True, True]
    [change] = lane.changes
    assert (change.number, change.missing) == (3, {15}), "what was never acknowledged is read again as always"
    gone = recovered([], commit(acknowledged=1), hw=0)
    assert gone.loss is not None
    assert gone.loss.hw == 0
    assert gone.overflow_used


def test_an_overflow_of_somebody_else_is_not_used() -> None:
    """More blocks than the ledger has: nothing of it is ours, and our numbers go on from there."""
    lane = recovered([], hw=3)
    assert lane.loss is not None
    assert (lane.loss.hw, lane.number, lane.acknowledged, lane.first_change) == (FOREIGN, 4, 4, 4)
    assert lane.ledger.from_redis == 4, "nobody else knows of this number yet"
    lane.ledger.committed(3)
    assert lane.ledger.from_redis == 4, "of a former owner"
    lane.ledger.committed(4)
    assert lane.ledger.from_redis == 0
    known = block(entries_part=entries((11, 90)), number=1)
    lane = recovered([known, block(acknowledged=1, overflow_held=1)], hw=4)
    assert lane.loss is not None
    assert (lane.loss.hw, lane.number, lane.acknowledged, lane.overflow_held) == (FOREIGN, 5, 5, 1)
    assert lane.offsets.is_done(11), "it is put there again from the ledger"
    assert recovered([known], hw=1).loss is None


def test_an_overflow_of_somebody_else_is_not_taken_for_ours_after_a_crash_before_it_is_cleared_away() -> None:
    """A change was written meanwhile: without a jump of the numbers its number would be the other one's."""
    change = block(entries_part=entries((11, 90)), number=5, acknowledged=4)
    lane = recovered([block(acknowledged=4), change], hw=3, whole=True)
    assert lane.loss is not None
    assert (lane.loss.hw, lane.first_change, lane.number) == (FOREIGN, 4, 5)
    [redone] = lane.changes
    assert redone.missing == {11}
    with_commit = recovered([block(acknowledged=4), change], commit(acknowledged=2), hw=3, whole=True)
    assert with_commit.loss is not None
    assert with_commit.loss.hw == FOREIGN
    again = recovered([change], commit(acknowledged=4, first_change=4), hw=3, whole=True)
    assert again.loss is not None
    assert (again.loss.hw, again.ledger.from_redis) == (FOREIGN, 0)
    lacking = recovered([block(acknowledged=4), change], hw=3)
    assert lacking.loss is not None
    assert lacking.loss.hw == 3, "blocks are missing: they may have said so"
    ours = recovered([block(entries_part=entries((12, 90)), number=1), block(acknowledged=1)], hw=1, whole=True)
    assert (ours.loss, ours.first_change) == (None, 0)


def test_records_without_their_number_are_cleared_first() -> None:
    """A reset broke off, and the lane has no number of its own that could be missed: it is a new topic's."""
    lane = recovered([], hw=-1)
    assert lane.loss is not None
    assert (lane.loss.hw, lane.number, lane.acknowledged) == (0, 0, 0)
    known = recovered([block(entries_part=entries((11, 90)), number=1)], commit(acknowledged=1), hw=-1)
    assert known.loss is not None
    assert (known.loss.hw, known.number, known.acknowledged) == (0, 1, 1)


def test_what_the_ledger_knows_wins_over_a_start_at_the_end() -> None:
    replay = Replay(LANE, Start(100, "", "", earliest=0), None, 0)
    replay.block(0, block(settled(12)))
    lane = replay.lane(0, 1, 1)
    assert [lane.offsets.is_open(offset) for offset in (11, 12, 99)] == [True, False, True]
    new = Replay(LANE, Start(100, "", "", earliest=0), None, 0).lane(0, 1, 1)
    assert new.offsets.low == 100
    cut = Replay(LANE, Start(100, "", "", earliest=40), None, 0)
    cut.block(0, block(settled(12)))
    assert cut.lane(0, 1, 1).offsets.low == 40


def test_an_entry_below_a_start_that_was_set_back_was_acknowledged_whatever_blocks_say() -> None:
    """Redis came back as of change 1; L was beyond offset 23, so it had change 2."""
    first = block(entries_part=entries((20, 5_000)), number=1)
    second = block(entries_part=entries((23, 9_000)), number=2, acknowledged=1, watermark=(1, 1))

    def begun_at(low: int, *more: Block) -> SourcePartition:
        replay = Replay(LANE, Start(low, "", ""), None, 1)
        for place, one in enumerate([first, second, *more]):
            replay.block(100 + place, one)
        return replay.lane(0, 1, 200)

    lost = begun_at(24)
    assert lost.loss is not None
    assert (lost.loss.hw, lost.acknowledged, lost.number) == (1, 2, 2)
    assert begun_at(23).loss is None, "it is read again, and its change is redone"
    gone = settled(23, due_ms=9_000, in_overflow=True)
    assert begun_at(24, block(gone, watermark=(1, 1))).loss is None, "it has fired"
    assert begun_at(24, block(watermark=(9_000, 23))).loss is None, "W has passed it"


def test_a_topic_made_anew_numbers_its_changes_on_so_that_what_redis_has_of_the_former_shows() -> None:
    former = replace(block(entries_part=entries((11, 90)), number=7), topic_id="former")

    def begun(hw: int, *more: Block, state: CommitState | None = None) -> SourcePartition:
        replay = Replay(LANE, Start(0, "", "new", made_anew=True), state, hw)
        for place, one in enumerate([former, *more]):
            replay.block(place, one)
        return replay.lane(0, 1, 9)

    fresh = begun(7)
    assert (fresh.first_change, fresh.number, fresh.acknowledged) == (8, 8, 8)
    assert fresh.loss is not None
    assert fresh.loss.hw == FOREIGN, "an older copy of Redis has at most 7"
    assert fresh.ledger.from_redis == 8
    own = replace(block(entries_part=entries((3, 90)), number=9, acknowledged=8), topic_id="new")
    restored = begun(7, own, state=commit(low=0, acknowledged=9, first_change=8))
    assert restored.loss is not None
    assert restored.loss.hw == FOREIGN
    behind = begun(8, own, state=commit(low=0, acknowledged=9, first_change=8))
    assert behind.loss is not None
    assert behind.loss.hw == 8, "an older copy of this one's"
    assert begun(9, own, state=commit(low=0, acknowledged=9, first_change=8)).loss is None
    without_commit = begun(7, own)
    assert without_commit.first_change == 8
    assert without_commit.loss is not None


def test_an_offset_that_was_set_for_the_former_topic_is_not_used_for_the_one_made_anew() -> None:
    former = replace(block(settled(3)), topic_id="former")
    replay = Replay(LANE, Start(4, "", "new", log_start=1), None, 0)
    replay.block(0, former)
    assert replay.lane(0, 1, 9).offsets.low == 1
    known = Replay(LANE, Start(4, "", "new", log_start=1), None, 0)
    known.block(0, former)
    known.block(1, replace(block(settled(5)), topic_id="new"))
    assert known.lane(0, 1, 9).offsets.low == 4, "it was set since"


def test_runs_say_by_which_table_a_record_was_decided() -> None:
    runs = [(10, 4), (20, 5), (30, NOT_DECIDED)]
    assert [table_version_at(runs, offset) for offset in (9, 10, 19, 20, 29, 30)] == [0, 4, 4, 5, 5, 0]
    lane = recovered([block(settled(11))])
    assert lane.recovered_until == 50
    assert lane.runs == [(0, 1)]


class Log:
    """A ledger partition that says from where it was read."""

    def __init__(self, *blocks: Block) -> None:
        self.blocks = blocks
        self.read_from: dict[int, int] = {}

        self.read_past: list[dict[int, int]] = []
        self.first = 0
        self.keys: dict[int, bytes] = {}  # of blocks of other partitions

    def bounds(self, partition: int) -> tuple[int, int]:
        return self.first, len(self.blocks)

    def read(self, starts: Mapping[int, int], at_least: Mapping[int, int]) -> Iterator[LedgerRecord]:
        self.read_from = dict(starts)
        self.read_past.append(dict(at_least))
        [(partition, start)] = starts.items()
        if max(at_least.values(), default=-1) >= len(self.blocks):
            raise LedgerError("the ledger ends before")
        for offset in range(max(start, self.first), len(self.blocks)):
            key = self.keys.get(offset, b"reminders/3")
            yield LedgerRecord(partition, offset, key, encode(self.blocks[offset]))


class Commits:
    """The group's commits, and what the sources' logs have."""

    def __init__(self, starts: dict[TopicPartition, Start], source: Sequence[ReadMark] = ()) -> None:
        self.known = starts
        self.source = source

    def starts(self, lanes: Sequence[TopicPartition]) -> dict[TopicPartition, Start]:
        return {lane: self.known[lane] for lane in lanes if lane in self.known}

    def has_commits(self) -> bool:
        return any(start.metadata for start in self.known.values())

    def may_read(self, topic: str) -> bool:
        return True

    def records(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadMark | None]:
        """As Kafka: what was asked for below a log's start has no answer."""
        return {
            lane: next((one for one in self.source if one.offset >= at), None)
            for lane, at in places.items()
            if at >= self.known[lane].log_start
        }


def worker_of(
    log: Log, starts: dict[TopicPartition, Start], ledger: LedgerTopic = LEDGER, hw: int = 0
) -> RecoveryWorker:
    overflow = FakeOverflow()
    if hw < 0:
        overflow.records[LANE] = [overflow_records.held(1, 9_000)]
    else:
        overflow.hw[LANE] = hw
    return RecoveryWorker(Commits(starts), ledger, log, overflow, 1, StepExecutor())


def recover(log: Log, start: Start, ledger: LedgerTopic = LEDGER, hw: int = 0) -> SourcePartition:
    [lane] = worker_of(log, {LANE: start}, ledger, hw).recover([LANE], 0)
    return lane


def committed(**more: Any) -> Start:
    return Start(10, encode_metadata(commit(**more)), "id")


def test_the_commits_own_block_is_always_read() -> None:
    """The commit's block may pin nothing, but its runs say up to where records were decided."""
    log = Log(block(settled(1)), block(), block())
    lane = recover(log, Start(10, encode_metadata(commit(block_offset=1, recovery_pointer=3)), "id"))
    assert log.read_from == {0: 1}
    assert lane.recovered_until == 50
    assert lane.topic_id == "id"


def test_replay_begins_at_the_recovery_pointer() -> None:
    log = Log(block(settled(11)), block(settled(12)), block(settled(13)))
    lane = recover(log, Start(10, encode_metadata(commit(block_offset=2, recovery_pointer=1)), ""))
    assert [lane.offsets.is_done(offset) for offset in (11, 12, 13)] == [False, True, True]
    assert lane.recovery_pointer() == 1


def test_the_overflow_is_asked_how_far_it_is() -> None:
    overflow = FakeOverflow()
    overflow.apply([Change(LANE, 1, [overflow_record(11, 90)])], 0)
    log = Log(block(entries_part=entries((11, 90)), number=1))
    commits = Commits({LANE: Start(10, "", "")})
    worker = RecoveryWorker(commits, LEDGER, log, overflow, 1, StepExecutor())
    job = worker.submit([LANE], 0)
    assert not job.future.done()
    worker._executor.step()  # type: ignore[attr-defined]
    [lane] = job.future.result(0)
    assert lane.offsets.is_done(11)


def test_without_a_commit_the_ledger_is_read_past_all_that_is_written_by_now() -> None:
    log = Log(block(settled(11)))
    recover(log, Start(10, "", ""))
    recover(log, committed(block_offset=0))
    assert log.read_past == [{}, {0: 0}], "where a commit says how far its blocks go, nobody else is waited for"


def test_those_with_a_commit_do_not_wait_for_those_without() -> None:
    new = TopicPartition("reminders", 4)
    log = Log(block(settled(11)))
    worker = worker_of(log, {LANE: committed(block_offset=0), new: Start(0, "", "")})
    assert [lane.id for lane in worker.recover([LANE, new], 0)] == [LANE]
    assert [lane.id for lane in worker.recover([new], 0)] == [new]


def strange(log: Log) -> Log:
    log.keys = dict.fromkeys(range(len(log.blocks)), b"reminders/9")
    return log


@pytest.mark.parametrize(
    ("log", "start", "words"),
    [
        (strange(Log(block(settled(11)), block(settled(12)))), committed(block_offset=1), "names ledger block 0/1"),
        (Log(block(settled(11))), committed(block_offset=1), "ends before"),
        (Log(block(settled(11))), committed(block_offset=0, ledger_id="former"), "was deleted and created again"),
        (Log(block(settled(11))), committed(block_offset=0, ledger_partitions=4), "has 1 partitions and had 4"),
    ],
)
def test_a_ledger_that_is_not_the_one_of_the_commit_is_refused_until_the_operator_says_to_go_on(
    log: Log, start: Start, words: str
) -> None:
    with pytest.raises(LedgerError, match=words + r".*ledger\.when_lost=continue"):
        recover(log, start, hw=3)
    lane = recover(log, start, GOING_ON, hw=3)
    assert lane.offsets.low == 10
    assert lane.loss is None, "what Redis has isn't thrown away for it"
    assert (lane.number, lane.acknowledged) == (3, 3)


def test_the_ledger_of_the_commit_is_the_one_that_is_there() -> None:
    log = Log(block(settled(11)))
    assert recover(log, committed(block_offset=0, ledger_id="this one", ledger_partitions=1)).offsets.is_done(11)
    assert recover(log, committed(block_offset=0)).offsets.is_done(11), "version 1 doesn't say"


def test_without_any_state_on_a_ledger_that_lost_its_beginning_nothing_is_guessed() -> None:
    log = strange(Log(block(), block()))
    log.first = 1
    new, other = Start(0, "", "id"), TopicPartition("reminders", 9)
    with pytest.raises(LedgerError, match="nothing is left of reminders/3"):
        recover(log, new)
    assert recover(log, new, GOING_ON).offsets.low == 0
    assert recover(log, new._replace(made_anew=True)).offsets.low == 0, "its commit is there, about a former topic"
    [lane] = worker_of(log, {LANE: new, other: committed()}).recover([LANE], 0)
    assert lane.offsets.low == 0, "the group has commits, and Redis knows nothing of this one: it is new"
    [lane] = worker_of(log, {LANE: new, other: committed()}, hw=-1).recover([LANE], 0)
    assert lane.offsets.low == 0, "what Redis has without a number says nothing"
    assert lane.loss is not None
    with pytest.raises(LedgerError, match="nothing is left"):
        worker_of(log, {LANE: new, other: committed()}, hw=2).recover([LANE], 0)


def test_blocks_that_retention_took_are_counted_and_the_rest_is_read(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(block(), block(settled(11)), block(settled(12)))
    log.first = 2
    lane = recover(log, committed(block_offset=1, recovery_pointer=0))
    assert [lane.offsets.is_open(offset) for offset in (11, 12)] == [True, False]
    [said] = [record for record in caplog.records if "no longer has all blocks" in record.message]
    assert said.missing == 2  # type: ignore[attr-defined]
