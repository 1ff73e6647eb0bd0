"""A group's waits: joins, the first join with its extensions, syncs, heartbeats."""

import pytest

from purgatory.delayed.delayed_group import (
    DelayedHeartbeat,
    DelayedJoin,
    DelayedSync,
    GroupJoinKey,
    GroupSnapshot,
    GroupState,
    GroupSyncKey,
    InitialDelayedJoin,
    MemberKey,
    MemberSnapshot,
    decide_heartbeat,
    decide_join,
    decide_sync,
    first_initial_join,
)
from purgatory.locks import Rank, monitor
from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.operation.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.timer.system_timer import SystemTimer
from tests.unit.purgatory_tasks import Clock

STABLE, DEAD = GroupState.STABLE, GroupState.DEAD


class Coordinator:
    """Makes the next generation by noting when."""

    def __init__(self):
        self.clock = Clock()
        self.timer = SystemTimer(self.clock)
        self.purgatory: DelayedOperationPurgatory[DelayedOperation] = DelayedOperationPurgatory("Rebalance", self.timer)
        self.lock = monitor(Rank.OPERATION)
        self.all_joined = False
        self.new_member = False
        self.generations = []
        self.drained = 0

    def group(self):
        return GroupSnapshot(GroupState.PREPARING_REBALANCE, 0, has_all_members_joined=self.all_joined)

    def on_complete_join(self):
        self.generations.append(self.clock.now_ms)

    def try_complete_actions(self):
        self.drained += 1

    def take_new_member_added(self):
        taken, self.new_member = self.new_member, False
        return taken

    def watch(self, operation):
        self.purgatory.try_complete_else_watch(operation, [GroupJoinKey("group")])

    def at(self, now_ms):
        self.clock.now_ms = now_ms
        self.purgatory.advance_clock(now_ms)


@pytest.mark.parametrize("joined", [True, False])
def test_a_join_is_over_when_all_have_joined(joined):
    assert decide_join(GroupSnapshot(STABLE, has_all_members_joined=joined)) is joined


def test_a_join_completes_by_the_last_member_or_its_time():
    world = Coordinator()
    world.watch(DelayedJoin(world, 1000, world.lock))
    assert world.purgatory.check_and_complete(GroupJoinKey("group")) == 0
    world.all_joined = True
    assert world.purgatory.check_and_complete(GroupJoinKey("group")) == 1
    assert (world.generations, world.drained) == ([0], 0)
    world.all_joined = False
    world.watch(DelayedJoin(world, 1000, world.lock))
    world.at(1000)
    assert (world.generations, world.drained) == ([0, 1000], 1)  # appends from the timer are looked after


def test_a_join_and_a_sync_of_one_group_wait_apart():
    world = Coordinator()
    world.watch(DelayedJoin(world, 1000, world.lock))
    world.all_joined = True
    assert world.purgatory.check_and_complete(GroupSyncKey("group")) == 0
    assert world.purgatory.cancel_for_key(GroupSyncKey("group")) == []
    assert world.purgatory.check_and_complete(GroupJoinKey("group")) == 1


def first_join(world, configured_ms, rebalance_ms):
    delays = first_initial_join(configured_ms, rebalance_ms)
    world.watch(InitialDelayedJoin(world, configured_ms, delays, world.watch, world.lock))


@pytest.mark.parametrize(
    ("rebalance_ms", "members_at", "expected"),
    [
        (60_000, [], 3000),
        (60_000, [1500], 6000),
        (4000, [1500], 4000),
        (60_000, [1500, 4000, 7000], 12_000),
        (8000, [1500, 4000, 7000], 8000),
        (2000, [1500], 3000),  # measured: the delay counts although it is longer than the rebalance timeout
    ],
)
def test_the_first_join_is_extended_as_long_as_members_come(rebalance_ms, members_at, expected):
    world = Coordinator()
    world.all_joined = True  # does not matter: there may always come one more
    first_join(world, 3000, rebalance_ms)
    for now_ms in range(0, 20_000, 250):
        world.new_member = world.new_member or now_ms in members_at
        world.at(now_ms)
    assert world.generations == [expected]


def test_a_member_for_whom_no_time_remains_is_still_a_new_one():
    """The flag is the next rebalance's, if this one could not be extended."""
    world = Coordinator()
    first_join(world, 3000, 3000)
    world.new_member = True
    world.at(3000)
    assert (world.generations, world.new_member) == ([3000], True)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (GroupSnapshot(GroupState.COMPLETING_REBALANCE, 4), True),
        (GroupSnapshot(GroupState.PREPARING_REBALANCE, 3), True),
        (GroupSnapshot(GroupState.EMPTY, 3), True),
        (GroupSnapshot(DEAD, 3), True),
        (GroupSnapshot(GroupState.COMPLETING_REBALANCE, 3), False),
        (GroupSnapshot(STABLE, 3), False),
        (GroupSnapshot(STABLE, 3, has_received_sync_from_all_members=True), True),
    ],
)
def test_when_a_sync_is_over(group, expected):
    assert decide_sync(3, group) is expected


@pytest.mark.parametrize("synced", [True, False])
def test_who_does_not_sync_is_removed_after_the_rebalance_timeout(synced):
    world = Coordinator()
    removed: list[int] = []
    group = [GroupSnapshot(GroupState.COMPLETING_REBALANCE, 3)]
    operation = DelayedSync(3, 500, lambda: group[0], removed.append, world.lock)
    world.purgatory.try_complete_else_watch(operation, [GroupSyncKey("group")])
    if synced:
        group[0] = GroupSnapshot(STABLE, 3, has_received_sync_from_all_members=True)
        assert world.purgatory.check_and_complete(GroupSyncKey("group")) == 1
    world.at(500)
    assert removed == ([] if synced else [3])


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        (MemberSnapshot(DEAD), True),
        (MemberSnapshot(DEAD, is_pending=True, has_member=False), True),
        (MemberSnapshot(STABLE, is_pending=True, has_member=True), True),
        (MemberSnapshot(STABLE, is_pending=True, has_member=False), False),
        (MemberSnapshot(STABLE, has_member=False), True),
        (MemberSnapshot(STABLE, heartbeat_satisfied=True), True),
        (MemberSnapshot(STABLE), False),
    ],
)
def test_when_a_heartbeat_is_not_waited_for_any_more(member, expected):
    assert decide_heartbeat(member) is expected


def test_a_session_ends_one_timeout_after_the_last_heartbeat():
    world = Coordinator()
    expired = []
    satisfied = [False]
    key = MemberKey("group", "member")

    def watch():
        operation = DelayedHeartbeat(
            1000,
            lambda: MemberSnapshot(STABLE, heartbeat_satisfied=satisfied[0]),
            lambda: expired.append(world.clock.now_ms),
            world.lock,
        )
        world.purgatory.try_complete_else_watch(operation, [key])

    def heartbeat():
        satisfied[0] = True
        world.purgatory.check_and_complete(key)
        satisfied[0] = False
        watch()

    watch()
    for now_ms in (900, 1800, 2700):
        world.at(now_ms)
        heartbeat()
    world.at(3699)
    assert expired == []
    world.at(3700)
    assert expired == [3700]
    assert world.purgatory.num_delayed == 0
