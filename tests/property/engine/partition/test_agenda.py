"""Partitions with work, or with records in the wheel, are looked at: as if all partitions were looked at each turn."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sidecar.engine.partition.agenda import Agenda
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import NO_HEADERS, Held, Position, TopicPartition
from tests.examples import examples

START_MS = 1_000_000
LANES = st.integers(0, 7)
DELAYS = st.lists(st.integers(-50, 400), min_size=1, max_size=90)


def held(due_ms: int, offset: int) -> Held:
    return Held(due_ms, offset, "mail", -1, None, b"v", NO_HEADERS, "p@1", None, 0, 0, NO_HEADERS, -1, "", 1, -1)


class AgendaMachine(RuleBasedStateMachine):
    @initialize(tick_ms=st.sampled_from((1, 7)))
    def begin(self, tick_ms: int) -> None:
        self.now_ms, self.offset, self.tick_ms = START_MS, 0, tick_ms
        self.agenda = Agenda()
        self.lanes: dict[int, SourcePartition] = {}
        self.waiting: dict[int, int] = {}  # due time by offset
        self.owner: dict[int, int] = {}

    @rule(number=LANES)
    def add(self, number: int) -> None:
        if number not in self.lanes:
            place = TopicPartition("t", number)
            self.lanes[number] = lane = SourcePartition(
                place, Wheel(self.now_ms, self.tick_ms), PromotionWindows(Position(0, 0))
            )
            self.agenda.add([lane])

    @rule(number=LANES)
    def remove(self, number: int) -> None:
        if (lane := self.lanes.pop(number, None)) is not None:
            self.agenda.remove([lane])
            for offset in [offset for offset, owner in self.owner.items() if owner == number]:
                del self.waiting[offset], self.owner[offset]

    @rule(number=LANES, delays_ms=DELAYS)
    def hold(self, number: int, delays_ms: list[int]) -> None:
        if (lane := self.lanes.get(number)) is None:
            return
        records = []
        for delay_ms in delays_ms:
            self.offset += 1
            self.waiting[self.offset], self.owner[self.offset] = self.now_ms + delay_ms, number
            records.append(held(self.now_ms + delay_ms, self.offset))
        lane.wheel.insert_all(records)
        self.agenda.expect(lane, min(record.due_ms for record in records))

    @rule(number=LANES, what=st.integers(0, 4))
    def change(self, number: int, what: int) -> None:
        if (lane := self.lanes.get(number)) is None:
            return
        match what:
            case 0:
                lane.touch()
            case 1:
                lane.owe_commit()
            case 2:
                lane.put([held(self.now_ms + 90_000, 0)])
            case 3:
                lane.emitted([held(self.now_ms, 0)])
            case _:
                lane.note_loss(0, "wiped")

    @rule(number=LANES)
    def seal(self, number: int) -> None:
        """All that it had to do is done."""
        if (lane := self.lanes.get(number)) is not None:
            lane.touched = lane.uncommitted = False
            lane.puts, lane.settled, lane.loss = [], [], None

    @rule(ms=st.sampled_from((1, 1, 3, 50, 500, -1, -40, -1_000)))
    def turn(self, ms: int) -> None:
        self.now_ms += ms
        fired = []
        for lane in self.agenda.due(self.now_ms):
            fired += lane.wheel.advance(self.now_ms)
            if (due_ms := lane.wheel.soonest_ms()) >= 0:
                self.agenda.expect(lane, due_ms)
        for record in fired:
            assert record.due_ms <= self.now_ms, "early"
            del self.waiting[record.offset], self.owner[record.offset]
        # What is overdue as it comes fires at the next tick.
        late = [due_ms for due_ms in self.waiting.values() if due_ms <= self.now_ms - 2 * self.tick_ms]
        assert not (late and ms > 2 * self.tick_ms), "nobody looked"
        self.agenda.settle_down()

    @invariant()
    def nobody_is_missed(self) -> None:
        if not hasattr(self, "agenda"):
            return
        for lane in self.lanes.values():
            assert lane in self.agenda or lane.is_quiet
            first_ms = lane.wheel.next_due_ms()
            assert first_ms < 0 or self.agenda.next_due_ms <= self.agenda.expected_ms(lane) <= first_ms
        assert sum(self.agenda.topics.values()) == len(self.lanes)


TestAgenda = AgendaMachine.TestCase
TestAgenda.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
