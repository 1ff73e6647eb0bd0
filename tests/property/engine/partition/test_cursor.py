"""The cursor: what is due soon is in the wheel, the rest in the overflow, nothing in both or in neither."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.partition.change_block import ChangeBlock
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import NOWHERE, LedgerMark, PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.model.record import Held, Position, TopicPartition
from sidecar.overflow.interface import OverflowUnavailable
from tests.examples import examples
from tests.simulation.fake_executor import StepExecutor
from tests.simulation.fake_overflow import FakeOverflow

START_MS = 1_000_000
HORIZON_MS = 4_000
ROOM = 6
READ = st.tuples(st.just("read"), st.integers(-500, 20_000))
STEPS = st.lists(
    READ
    | READ
    | st.tuples(st.just("pass"), st.integers(1, 1_500))
    | st.tuples(st.sampled_from(["seal", "commit", "work", "turn", "fail"]), st.just(0)),
    max_size=150,
)


class Bench:
    """One lane between a wheel that is a list and an overflow that is a dict."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.down = False
        self.overflow = FakeOverflow(self._failing)
        self.executor = StepExecutor()
        self.worker = OverflowWorker(self.overflow, HORIZON_MS, self.to_wheel, self.executor)
        self.lane = SourcePartition(TopicPartition("t", 0), Wheel(START_MS), PromotionWindows(Position(START_MS, -1)))
        self.fired: list[Held] = []
        self.offset = -1

    def _failing(self, method: str, after: bool) -> None:
        if self.down:
            raise OverflowUnavailable("down")

    def to_wheel(self, lane: SourcePartition, records: list[Held]) -> None:
        for held in records:
            lane.wheel.insert(held)

    def read(self, delay_ms: int) -> None:
        """As the engine takes a record in."""
        self.offset += 1
        held = Held(self.now_ms + delay_ms, self.offset, "t", -1, None, None, [], "", None, 0, -1, [], -1, "", 0)
        lane = self.lane
        assert lane.accept(self.offset)
        lane.accepted += 1
        near_ms = max(self.now_ms + self.worker.soon_ms, lane.promotion.reach.due_ms)
        if held.due_ms <= near_ms:
            lane.wheel.insert(held)
        else:
            lane.put([held])

    def seal(self) -> None:
        lane = self.lane
        if lane.puts:
            lane.number += 1
            records = {held.offset: held for held in lane.puts}
            earliest = min(held.position for held in lane.puts)
            lane.changes.append(ChangeBlock(lane.number, records, set(), earliest, 0))
            lane.puts = []

    def commit(self) -> None:
        for change in self.lane.changes:
            if not change.committed:
                change.committed = True
                mark = LedgerMark(change.number, max(change.records), change.number, NOWHERE, 0)
                self.lane.ledger.written(mark, max(held.due_ms for held in change.records.values()))
                return

    def turn(self) -> None:
        room = ROOM - self.lane.wheel.count
        self.worker.step([self.lane], self.now_ms, room)
        fired = self.lane.wheel.advance(self.now_ms)
        self.fired += fired
        self.lane.settle([held.offset for held in fired], [held.due_ms for held in fired])

    def check(self) -> None:
        lane = self.lane
        in_wheel = [held for bucket in lane.wheel.buckets.values() for held in bucket]
        assert len({held.offset for held in (*in_wheel, *self.fired)}) == len(in_wheel) + len(self.fired), "twice"
        kept = {held.offset: held for held in self.overflow.records[lane.id]}
        on_the_way = [
            held
            for change in lane.changes
            for held in change.records.values()
            if held.offset not in lane.promotion.skip
        ]
        for held in (*lane.puts, *on_the_way):
            assert held.position > lane.promotion.cursor, "the cursor passed a put"
        left = {held.offset for held in (*in_wheel, *self.fired, *lane.puts, *on_the_way)}
        for offset in range(self.offset + 1):
            ahead = offset in kept and kept[offset].position > lane.promotion.cursor
            assert offset in left or ahead, f"{offset} is nowhere"
        assert lane.imbalance == 0
        assert not [held for held in self.fired if held.due_ms > self.now_ms], "early"


@settings(max_examples=examples(150))
@given(STEPS)
def test_every_record_is_in_exactly_one_place_and_fires_once(steps: list[tuple[str, int]]) -> None:
    bench = Bench()
    for what, amount in steps:
        match what:
            case "read":
                bench.read(amount)
            case "pass":
                bench.now_ms += amount
            case "seal":
                bench.seal()
            case "commit":
                bench.commit()
            case "work":
                bench.executor.step()
            case "fail":
                bench.down = not bench.down
            case _:
                bench.turn()
        bench.check()
    bench.down = False
    for _ in range(200):
        bench.seal()
        bench.commit()
        bench.now_ms += 200
        bench.turn()
        bench.executor.run()
        bench.check()
    assert len(bench.fired) == bench.offset + 1
    assert bench.lane.promotion.watermark == bench.lane.promotion.cursor


@given(st.lists(st.integers(1, 2_000), min_size=30, max_size=60))
def test_a_full_wheel_stops_the_cursor(delays_ms: list[int]) -> None:
    """However much falls due within the horizon, promotion takes no more than there is room for."""
    bench = Bench()
    for delay_ms in delays_ms:
        bench.read(HORIZON_MS + delay_ms)
    for _ in range(120):
        bench.seal()
        bench.commit()
        bench.turn()
        bench.executor.run()
        assert bench.lane.wheel.count <= 2 * ROOM  # what one promotion brings is seen when the next has begun
        bench.now_ms += 100
    assert [held.position for held in bench.fired] == sorted(held.position for held in bench.fired)
    assert len(bench.fired) == len(delays_ms)
