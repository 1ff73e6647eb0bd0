"""Recovery by hand-made blocks: each part of the ledger and what it means for the lane."""

from collections.abc import Iterator, Mapping, Sequence

from sidecar.block import NO_ENTRIES, NOTHING_SETTLED, Block, Entries, Settled, encode
from sidecar.commit import CommitState, encode_metadata
from sidecar.lane import NOT_DECIDED, Lane
from sidecar.ledger import LedgerRecord, LedgerTopic
from sidecar.overflow import Change
from sidecar.ports import Start
from sidecar.record import LaneId, Outcome, Position
from sidecar.recovery import Replay, table_version_at
from sidecar.recovery_reader import RecoveryWorker
from tests.contract.overflow_records import held as overflow_record
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_overflow import FakeOverflow

LANE = LaneId("reminders", 3)
LOW = 10
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
    low: int = 10, watermark: tuple[int, int] = (0, 0), acknowledged: int = 0, block_offset: int = -1, **more: int
):
    fields = {"recovery_pointer": 0, "rebuild_pointer": 0, "overflow_held": 0} | more
    return CommitState(low, Position(*watermark), acknowledged, block_offset, topic_id="", leader_epoch=-1, **fields)


def recovered(blocks: Sequence[Block], state: CommitState | None = None, hw: int = 0) -> Lane:
    replay = Replay(LANE, Start(LOW, "", ""), state, hw)
    for place, one in enumerate(blocks):
        replay.block(100 + place, one)
    return replay.lane(0, 1, 200)


def test_settled_offsets_are_done() -> None:
    lane = recovered([block(settled(8, 11, 13)), block(settled(10))])
    assert [lane.in_care(offset) for offset in (10, 11, 12, 13)] == [True, True, False, True]
    assert lane.advance_low() == 12
    assert not lane.accept(11)
    assert lane.accept(12)
    assert lane.imbalance == -1, "accepted, and nobody has counted it yet"


def test_what_the_overflow_has_is_done_and_needs_no_redoing() -> None:
    lane = recovered([block(entries_part=entries((11, 90), (12, 80)), number=1)], hw=1)
    assert lane.in_care(11)
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
    assert not lane.in_care(11)
    assert lane.in_care(12)
    assert lane.overflow_held == 1
    assert not lane.redo(lane.entries[11]), "no change block waits for it: it goes into the wheel"


def test_settled_copies_ahead_of_w_are_skipped_by_promotion() -> None:
    lane = recovered([block(settled(4, 5, due_ms=30, in_overflow=True), watermark=(30, 4))], hw=0)
    assert lane.skip == {5: Position(30, 5)}
    assert lane.cursor == lane.watermark == Position(30, 4)


def test_the_counts_are_those_of_the_last_word_said() -> None:
    """A commit is later than its own last block, and earlier than the blocks behind it."""
    first = block(entries_part=entries((4, 90)), number=1, overflow_held=0)
    state = commit(acknowledged=1, block_offset=100, overflow_held=1)
    assert recovered([first], state, hw=1).overflow_held == 1
    later = block(acknowledged=1, overflow_held=7)
    assert recovered([first, later], state, hw=1).overflow_held == 7


def test_an_overflow_that_lost_data_is_taken_as_whole_and_rebuilt() -> None:
    first = block(entries_part=entries((11, 90), (12, 80)), number=1)
    second = block(entries_part=entries((14, 95)), number=2, acknowledged=1, overflow_held=2)
    third = block(entries_part=entries((15, 95)), number=3, acknowledged=2, overflow_held=3)
    lane = recovered([first, second, third], hw=1)
    assert lane.loss is not None
    assert lane.loss.hw == 1
    assert (lane.acknowledged, lane.number, lane.overflow_held) == (2, 3, 3)
    assert [lane.in_care(offset) for offset in (11, 12, 14)] == [True, True, True]
    [change] = lane.changes
    assert (change.number, change.missing) == (3, {15}), "what was never acknowledged is read again as always"
    gone = recovered([], commit(acknowledged=1), hw=0)
    assert gone.loss is not None
    assert gone.loss.hw == 0
    assert gone.overflow_used


def test_an_overflow_of_somebody_else_is_not_used() -> None:
    """More blocks than the ledger has: nothing of it is ours."""
    lane = recovered([], hw=3)
    assert lane.loss is not None
    assert (lane.loss.hw, lane.number, lane.acknowledged) == (0, 0, 0)
    known = block(entries_part=entries((11, 90)), number=1)
    lane = recovered([known, block(acknowledged=1, overflow_held=1)], hw=4)
    assert lane.loss is not None
    assert (lane.loss.hw, lane.number, lane.acknowledged) == (0, 1, 1)
    assert recovered([known], hw=1).loss is None


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

    def bounds(self, partition: int) -> tuple[int, int]:
        return 0, len(self.blocks)

    def read(self, starts: Mapping[int, int], at_least: Mapping[int, int]) -> Iterator[LedgerRecord]:
        self.read_from = dict(starts)
        [(partition, start)] = starts.items()
        for offset in range(start, len(self.blocks)):
            yield LedgerRecord(partition, offset, b"reminders/3", encode(self.blocks[offset]))


class Commits:
    """The group's commits."""

    def __init__(self, starts: dict[LaneId, Start]) -> None:
        self.known = starts

    def starts(self, lanes: Sequence[LaneId]) -> dict[LaneId, Start]:
        return {lane: self.known[lane] for lane in lanes if lane in self.known}


def recover(log: Log, start: Start) -> Lane:
    worker = RecoveryWorker(
        Commits({LANE: start}), LedgerTopic("ledger", 1, "g"), log, FakeOverflow(), 1, StepExecutor()
    )
    [lane] = worker.recover([LANE], 0)
    return lane


def test_the_commits_own_block_is_always_read() -> None:
    """It may pin nothing, but its runs say up to where records were decided."""
    log = Log(block(settled(1)), block(), block())
    lane = recover(log, Start(10, encode_metadata(commit(block_offset=1, recovery_pointer=3)), "id"))
    assert log.read_from == {0: 1}
    assert lane.recovered_until == 50
    assert lane.topic_id == "id"


def test_replay_begins_at_the_recovery_pointer() -> None:
    log = Log(block(settled(11)), block(settled(12)), block(settled(13)))
    lane = recover(log, Start(10, encode_metadata(commit(block_offset=2, recovery_pointer=1)), ""))
    assert [lane.in_care(offset) for offset in (11, 12, 13)] == [False, True, True]
    assert lane.recovery_pointer() == 1


def test_the_overflow_is_asked_how_far_it_is() -> None:
    overflow = FakeOverflow()
    overflow.apply([Change(LANE, 1, [overflow_record(11, 90)])], 0)
    log = Log(block(entries_part=entries((11, 90)), number=1))
    commits = Commits({LANE: Start(10, "", "")})
    worker = RecoveryWorker(commits, LedgerTopic("ledger", 1, "g"), log, overflow, 1, StepExecutor())
    job = worker.submit([LANE], 0)
    assert not job.future.done()
    worker._executor.step()  # type: ignore[attr-defined]
    [lane] = job.future.result(0)
    assert lane.in_care(11)
