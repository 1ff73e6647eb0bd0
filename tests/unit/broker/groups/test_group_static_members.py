"""Static members: one instance id, one member, whoever came last."""

import pytest

from broker.groups.types import JoinResult, LeavingMember, Protocol
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import Errors
from tests.unit.broker.group_world import GroupWorld

E = Errors
I = "instance-1"  # noqa: E741 - every line has it


def test_a_static_member_comes_back_without_a_rebalance():
    world = GroupWorld()
    [member_id] = world.stable(group_instance_id=I)
    assert member_id.startswith("instance-1-")
    [again] = world.join(group_instance_id=I)
    assert (again.error, again.generation_id, again.leader_id) == (E.NONE, 1, member_id)
    assert again.member_id != member_id
    assert again.members == ()  # it believes that it isn't the leader, and doesn't assign
    assert world.state() is GroupState.STABLE
    assert world.heartbeat(member_id, instance_id=I) is E.FENCED_INSTANCE_ID
    assert world.commit(claim=world.claim(member_id, instance_id=I)) is E.FENCED_INSTANCE_ID
    assert world.sync(member_id, group_instance_id=I)[0].error is E.FENCED_INSTANCE_ID
    assert world.join(member_id, group_instance_id=I)[0].error is E.FENCED_INSTANCE_ID
    assert world.heartbeat(again.member_id, instance_id=I) is E.NONE
    assert world.sync(again.member_id, group_instance_id=I)[0].assignment == member_id.encode()
    world.restart()
    assert world.group.static_members == {I: again.member_id}


def test_a_leader_that_comes_back_is_told_to_skip_the_assignment():
    world = GroupWorld()
    [member_id] = world.stable(group_instance_id=I)
    [again] = world.join(group_instance_id=I, supports_skipping_assignment=True)
    assert again.skip_assignment
    assert again.leader_id == again.member_id != member_id
    assert [one.member_id for one in again.members] == [again.member_id]


def test_it_is_watched_from_then_on():
    world = GroupWorld()
    world.stable(group_instance_id=I)
    world.pass_time(8_000)
    [again] = world.join(group_instance_id=I)
    world.pass_time(9_990)
    assert list(world.group.members) == [again.member_id]
    world.pass_time(20)
    assert (world.group.members, world.group.static_members) == ({}, {})


def test_another_protocol_brings_a_rebalance():
    world = GroupWorld()
    first, second = world.stable(2)
    world.coordinator.leave("group", [LeavingMember(second)])
    world.join(first)
    static = world.join(group_instance_id=I, protocols=(Protocol("roundrobin", b""), Protocol("range", b"")))
    world.join(first)
    [leader] = world.join(first) or static
    assert leader.error is E.NONE
    world.sync(static[0].member_id, group_instance_id=I)
    world.sync(first)
    assert world.state() is GroupState.STABLE
    world.group.protocol_name = "roundrobin"  # as the next generation would have it, "range" is chosen
    again = world.join(group_instance_id=I)
    assert (again, world.state()) == ([], GroupState.PREPARING_REBALANCE)


def test_what_its_former_self_waits_for_is_fenced():
    world = GroupWorld()
    first, _ = world.stable(2)
    former = world.join(group_instance_id=I)
    assert former == []
    latter = world.join(group_instance_id=I)
    assert [one.error for one in former] == [E.FENCED_INSTANCE_ID]
    assert latter == []
    assert world.state() is GroupState.PREPARING_REBALANCE
    assert len(world.group.members) == 3
    assert first in world.group.members


def test_coming_back_while_parts_are_waited_for_begins_again():
    world = GroupWorld()
    world.join(group_instance_id=I)
    assert world.state() is GroupState.COMPLETING_REBALANCE
    [again] = world.join(group_instance_id=I)
    assert (again.error, again.generation_id) == (E.NONE, 2)


def test_a_replacement_that_is_not_in_the_log_is_taken_back():
    world = GroupWorld()
    [member_id] = world.stable(group_instance_id=I)
    world.log.error = E.NOT_LEADER_OR_FOLLOWER
    assert world.join(group_instance_id=I) == [JoinResult(E.NOT_COORDINATOR)]
    assert world.heartbeat(member_id, instance_id=I) is E.NONE
    assert world.group.leader_id == member_id


def test_static_members_stay_though_they_do_not_join_again():
    world = GroupWorld()
    ids = world.stable(group_instance_id=I)
    dynamic = world.join(session_timeout_ms=600_000)
    for _ in range(11):
        world.pass_time(6_000)
        world.heartbeat(ids[0], instance_id=I)
    [joined] = dynamic
    assert joined.error is E.NONE
    assert joined.leader_id == joined.member_id
    assert set(world.group.members) == {ids[0], joined.member_id}


def test_a_rebalance_in_which_only_static_members_are_left_waits_for_one():
    world = GroupWorld()
    first, second = world.stable(2, session_timeout_ms=600_000)
    for member_id, instance in ((first, "a"), (second, "b")):  # both static, as if they had said so
        world.group.members[member_id].group_instance_id = instance
        world.group.static_members[instance] = member_id
    world.coordinator.leave("group", [LeavingMember("", "b")])
    assert world.state() is GroupState.PREPARING_REBALANCE
    world.pass_time(200_000)
    assert (world.state(), world.group.generation_id) == (GroupState.PREPARING_REBALANCE, 2)
    assert world.join(first, group_instance_id="a")[0].generation_id == 3


@pytest.mark.parametrize(
    ("leaving", "expected"),
    [
        (("", I), E.NONE),
        (("stranger", I), E.FENCED_INSTANCE_ID),
        (("", "nobody"), E.UNKNOWN_MEMBER_ID),
        (("stranger", "nobody"), E.UNKNOWN_MEMBER_ID),
    ],
)
def test_administrators_remove_static_members(leaving, expected):
    world = GroupWorld()
    world.stable(group_instance_id=I)
    result = world.coordinator.leave("group", [LeavingMember(*leaving)])
    world.turns.run()
    assert [error for _, error in result.members] == [expected]
    assert len(world.group.members) == (0 if expected is E.NONE else 1)
