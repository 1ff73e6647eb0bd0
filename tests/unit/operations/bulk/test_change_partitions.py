"""Changes while a partition has no owner, or one that has not read again what was held: its messages are waited for."""

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.engine.partition.partition import NOT_DECIDED, SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.engine.recovery import Replay
from sidecar.ledger.block import NO_ENTRIES, NOTHING_SETTLED, Block
from sidecar.lookup import local as held_lookup
from sidecar.lookup.group import GroupLookUp
from sidecar.lookup.local import LocalLookUp, Viewer
from sidecar.lookup.meeting import Meeting
from sidecar.lookup.query import ALL, START
from sidecar.model.ports import Start
from sidecar.model.record import Held, Position, TopicPartition
from sidecar.operations.bulk.changes import Wanted
from sidecar.operations.bulk.plan import Selection, When
from sidecar.operations.jobs.job import State
from tests.property.operations.bulk.test_change import TABLE
from tests.unit.change_world import LANES, NOW_MS, MemoryChanges
from tests.unit.fake_backlog import FakeBacklog
from tests.unit.report_world import report_of

LANE = LANES[0]
COUNT = 5


class EmptyOverflow:
    """Redis has nothing of this lane."""

    passed_over = 0

    def __init__(self, *_: Any) -> None: ...

    def stream(self, *_: Any) -> list[Any]:
        return []


class Done:
    """A future that already has the engine's answer."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def result(self, timeout: float) -> Any:
        return self._result


class Replica:
    """The real view and look-up of the only process of the group, which has these lanes."""

    def __init__(self, *lanes: SourcePartition) -> None:
        self.lanes = {lane.id: lane for lane in lanes}
        assignment: Any = SimpleNamespace(lanes=self.lanes)
        emitter: Any = SimpleNamespace(due_of=lambda _: [])
        actions: Any = SimpleNamespace(first_waiting=lambda _: None)
        viewer: Any = Viewer(assignment, emitter, actions)
        local = LocalLookUp(lambda ask: Done(ask(None)), viewer, None, "g")  # type: ignore[arg-type,return-value]
        redis: Any = SimpleNamespace(publish=lambda *_: 1)  # nobody else listens
        self.group = GroupLookUp(
            lambda: local, Meeting(redis, "g"), lambda: {lane.topic: 1 for lane in self.lanes}, FakeBacklog(), report_of
        )

    def read(self, lane: TopicPartition, records: list[Held]) -> None:
        """The engine reads these from the source."""
        self.lanes[lane].wheel.insert_all(records)
        self.lanes[lane].offsets.next = records[-1].offset + 1


@pytest.fixture(name="world")
def world_fixture(monkeypatch: pytest.MonkeyPatch) -> MemoryChanges:
    monkeypatch.setattr(held_lookup, "HeldOverflow", EmptyOverflow)
    world = MemoryChanges(lambda: TABLE.table)
    for n in range(COUNT):
        world.group.accept(LANE, NOW_MS + 20_000 + n, str(n))
    return world


def planned(world: MemoryChanges) -> tuple[str, str]:
    """All that is held in the lane's topic: a plan and its token."""
    plan = world.changes.plan(Wanted("cancel", Selection(topic=LANE.topic, partition=0), When(), 0, False, "me"))
    assert plan.progress.planned.messages == COUNT
    return plan.plan.id, str(plan.token)


def fresh_lane() -> SourcePartition:
    return SourcePartition(LANE, Wheel(NOW_MS), PromotionWindows(Position(NOW_MS + 30_000, 0)))


def after_a_crash() -> SourcePartition:
    """As its new owner has it, by a block that is older than the messages: they were read, and stand in no block."""
    runs = ((0, 3), (0, NOT_DECIDED))
    last = Block("g", LANE.topic, "", 0, NOW_MS, 0, Position(0, 0), 0, 0, runs, 0, NOTHING_SETTLED, NO_ENTRIES)
    replay = Replay(LANE, Start(0, "", ""), None, hw=0)
    replay.block(7, last)
    return replay.lane(NOW_MS, 1, ledger_end=8)


def ask(world: MemoryChanges, monkeypatch: pytest.MonkeyPatch, replica: Replica) -> None:
    monkeypatch.setattr(world.group, "page", replica.group.page)
    monkeypatch.setattr(world.group, "ends", replica.group.ends)


def test_a_partition_that_has_not_read_again_what_was_planned_is_waited_for(
    world: MemoryChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = list(world.group.lanes[LANE].values())
    before = Replica(fresh_lane())
    before.read(LANE, held)
    ask(world, monkeypatch, before)
    plan, token = planned(world)
    after = Replica(after_a_crash())
    ask(world, monkeypatch, after)

    def stops() -> bool:  # the change waits: meanwhile the new owner reads on
        if world.time_s > 1 and after.lanes[LANE].offsets.next == 0:
            after.read(LANE, held)
        return False

    monkeypatch.setattr(world, "stops", stops)
    change = world.changes.run(plan, token)
    assert change.state is State.DONE
    assert change.progress.outcomes == {"cancelled": COUNT}
    assert change.document()["gone"] == 0


def test_a_partition_that_nobody_has_any_more_is_waited_for_and_named(
    world: MemoryChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition's source is consumed no more: a policy was deleted, or matches another topic."""
    owner = Replica(fresh_lane())
    owner.read(LANE, list(world.group.lanes[LANE].values()))
    ask(world, monkeypatch, owner)
    plan, token = planned(world)
    ask(world, monkeypatch, Replica())
    reasons: list[str] = []

    def stops() -> bool:
        if world.time_s > 5:  # the source is consumed again
            ask(world, monkeypatch, owner)
        reasons.append(world.jobs.changes[plan].progress.reason)
        return False

    monkeypatch.setattr(world, "stops", stops)
    change = world.changes.run(plan, token)
    assert change.progress.outcomes == {"cancelled": COUNT}
    assert any("a/0" in reason and "abort" in reason for reason in reasons)


def test_a_page_counts_for_a_partition_only_as_far_as_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_lookup, "HeldOverflow", EmptyOverflow)
    replica = Replica(fresh_lane())
    replica.lanes[LANE].offsets.next = 5
    for end, missing in ((0, []), (5, []), (6, [LANE])):
        assert replica.group.page(ALL, START, 10, {LANE: end})[2] == missing
    assert replica.group.page(ALL, START, 10)[2] == []
    assert replica.group.page(ALL, START, 10, {TopicPartition("z", 3): 0})[2] == [TopicPartition("z", 3)]
