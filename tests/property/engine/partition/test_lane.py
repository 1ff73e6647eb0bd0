"""A lane's marks against sets: which offsets are done, how far L is, what W may pass, what the ledger must keep."""

from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.engine.partition import progress
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import NOWHERE, LedgerMark, OffsetMap, PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import Held, Position, TopicPartition


def new_lane(base: int = 0, done: bytes = b"") -> SourcePartition:
    return SourcePartition(
        TopicPartition("t", 0), Wheel(0), PromotionWindows(Position(0, -1)), OffsetMap(base, bytearray(done))
    )


def held(offset: int, due_ms: int) -> Held:
    return Held(due_ms, offset, "t", -1, None, None, [], "p@1", None, 0, -1, [], -1, "", 0)


@given(
    st.integers(0, 5),
    st.binary(max_size=6).map(lambda raw: bytes(byte & 1 for byte in raw)),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**6)), max_size=60),
    st.sampled_from([1, 4, 1 << 16]),
)
@example(0, b"\x00\x00\x01", [(1, 1), (0, 0)], 1)  # L runs ahead of what was read again
def test_done_marks_are_a_set_of_offsets(base: int, done: bytes, steps: list[tuple[int, int]], trim: int) -> None:
    """Reading on with gaps, records settled in any order, bytes below L forgotten."""
    lane = new_lane(base, done)
    known = {base + index for index, mark in enumerate(done) if mark}
    accepted: set[int] = set()
    offset = base - 1
    with patch.object(progress, "TRIM_BYTES", trim):
        for gap, choice in steps:
            read = offset + 1 + gap
            known |= set(range(offset + 1, read))
            assert lane.accept(read) == (read not in known)
            assert not lane.accept(read), "read twice"
            if read not in known:
                accepted.add(read)
                lane.accepted += 1
            offset = read
            waiting = sorted(accepted - known)
            if waiting and choice % 3:
                chosen = waiting[choice % len(waiting)]
                lane.settle([chosen], [7])
                known.add(chosen)
            low = lane.advance_low()
            assert low == next(place for place in range(base, offset + len(done) + 2) if place not in known)
            assert lane.held_now() == len(accepted - known)
            assert lane.imbalance == 0
            for place in range(lane.offsets.base, offset + 1):
                assert lane.offsets.is_done(place) == (place in known)


@given(
    st.lists(st.lists(st.integers(1, 100), max_size=4), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
    st.data(),
)
def test_the_watermark_stays_below_what_is_promoted_and_not_settled(windows: list[list[int]], rng, data) -> None:
    lane = new_lane()
    lane.accept(10_000)
    lane.overflow_held = sum(map(len, windows))
    lane.held_at_start = lane.overflow_held - 1
    start, offset = lane.promotion.cursor, 0
    open_positions: list[Position] = []
    for delays in windows:
        records = []
        for delay in delays:
            offset += 1
            records.append(held(offset, start.due_ms + delay))
        records.sort(key=lambda record: record.position)
        end = Position(start.due_ms + 100, 1 << 40)
        assert lane.promoted(start, records, end) == records
        open_positions += [record.position for record in records]
        start = end
        while open_positions and rng.random() < 0.5:
            settle_one(lane, open_positions, rng)
    while open_positions:
        settle_one(lane, open_positions, rng)
    assert lane.promotion.watermark == lane.promotion.cursor
    assert lane.overflow_held == 0


def settle_one(lane: SourcePartition, open_positions: list[Position], rng) -> None:
    before = lane.promotion.watermark
    position = open_positions.pop(rng.randrange(len(open_positions)))
    lane.settle([position.offset], [position.due_ms])
    assert before <= lane.promotion.watermark <= lane.promotion.cursor
    assert all(lane.promotion.watermark < left for left in open_positions)


@given(
    st.lists(
        st.tuples(st.integers(-1, 20), st.integers(0, 5), st.integers(-1, 20), st.integers(0, 6)),
        min_size=1,
        max_size=20,
    ),
    st.lists(st.tuples(st.integers(0, 21), st.integers(0, 6), st.integers(-1, 21)), min_size=1, max_size=6),
)
def test_the_recovery_pointer_is_the_first_block_that_matters(
    blocks: list[tuple[int, int, int, int]], progress: list[tuple[int, int, int]]
) -> None:
    """As L, A and W grow; a block that no longer matters never matters again."""
    lane = new_lane()
    marks = [
        LedgerMark(100 + 3 * index, offset_max, number, Position(due, 0) if due >= 0 else NOWHERE, known)
        for index, (offset_max, number, due, known) in enumerate(blocks)
    ]
    said = max(known for *_, known in blocks)
    for mark in marks:
        lane.ledger.written(mark, -1)
    for low, acknowledged, due in zip(*(sorted(column) for column in zip(*progress, strict=True)), strict=True):
        lane.offsets.low, lane.acknowledged, lane.promotion.cursor = low, acknowledged, Position(due, 0)
        matters = [
            mark.ledger_offset
            for mark in marks
            if mark.offset_max >= low
            or mark.number > min(acknowledged, said)
            or mark.promoted_max > lane.promotion.cursor
        ]
        assert lane.recovery_pointer() == (matters[0] if matters else marks[-1].ledger_offset + 1)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), max_size=30), st.integers(0, 60))
def test_runs_say_which_table_decided(changes: list[tuple[int, int]], low: int) -> None:
    lane = new_lane()
    decided: dict[int, int] = {}
    offset = 0
    for step, version in changes:
        for _ in range(step):
            decided[offset] = version
            lane.note_table(offset, version)
            offset += 1
    lane.offsets.done = bytearray(b"\x01" * min(low, offset) + bytes(max(offset - low, 0)))
    lane.advance_low()
    for place, version in decided.items():
        if place >= lane.offsets.low:
            assert [run for run in lane.runs if run[0] <= place][-1][1] == version
    assert len(lane.runs) <= len(changes)
