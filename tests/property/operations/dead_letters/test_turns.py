"""Redrives that may mean the same letters send one after the other, in whatever order their processes get on."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.operations.dead_letters.redrive_plan import (
    Plan,
    Progress,
    Redrive,
    SearchedSelection,
    first_of,
    turn_after,
)
from sidecar.operations.jobs.job import State
from tests.unit.letter_world import NOW_MS
from tests.unit.redrive_world import GOVERNOR

Steps = Iterator[None]


@dataclass
class Log:
    """The topic of redrives: what was written, in order."""

    records: list[tuple[str, Progress]] = field(default_factory=list)


class Leg:
    """As `Legwork` does it: each step is one write, or one look at as much of the log as this process has read."""

    def __init__(self, log: Log, plan_id: str, selection: SearchedSelection) -> None:
        self.log = log
        self.plan = Plan(
            id=plan_id, author="a", created_ms=NOW_MS, topic="orders-dlq", selection=selection, target=None, spans=(),
            governor=GOVERNOR,
        )  # fmt: skip
        self.progress = Progress(state=State.PLANNED)
        self.read = 0
        self.is_sending = False
        self.plans: dict[str, Plan] = {}

    def write(self, **update: object) -> None:
        self.progress = self.progress.model_copy(update=update)
        self.log.records.append((self.plan.id, self.progress))

    def catch_up(self) -> None:
        self.read = len(self.log.records)

    def seen(self) -> list[Redrive]:
        last = dict(self.log.records[: self.read])
        return [Redrive(plan=self.plans[plan_id], progress=progress) for plan_id, progress in last.items()]

    @property
    def mine(self) -> Redrive:
        return Redrive(plan=self.plan, progress=self.progress)

    def run(self, legs: int) -> Steps:
        for leg in range(legs):
            self.write(state=State.CANARY if leg else State.RUNNING, turn=0)
            yield
            self.catch_up()
            yield
            turn = turn_after(self.mine, self.seen())
            yield
            self.write(turn=turn)
            yield
            self.catch_up()
            yield
            while first_of(self.mine, self.seen()) is not None:
                self.read = min(self.read + 1, len(self.log.records))
                yield
            self.is_sending = True
            yield
            self.is_sending = False
            self.write(state=State.CANARIED)
            yield


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 3), max_size=120))
def test_no_two_send_at_the_same_moment_and_each_comes_to_its_turn(order: list[int]) -> None:
    log = Log()
    expired = SearchedSelection(reason="expired")
    legs = [Leg(log, name, expired if name == "b" else SearchedSelection()) for name in ("c", "a", "b")]
    other = Leg(log, "d", SearchedSelection(reason="timeout"))
    for leg in (*legs, other):
        leg.plans.update({one.plan.id: one.plan for one in (*legs, other)})
    steps = [leg.run(2) for leg in (*legs, other)]
    left = 4 * 60
    for number in [*order, *(number % 4 for number in range(left))]:
        next(steps[number], None)
        sending = {leg.plan.id for leg in (*legs, other) if leg.is_sending}
        assert len(sending - {"d"}) <= 1, sending
        assert "b" not in sending or sending - {"d"} == {"b"}
    assert [next(each, "ended") for each in steps] == ["ended"] * 4
