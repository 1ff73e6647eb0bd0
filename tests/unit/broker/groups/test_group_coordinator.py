"""Joining, syncing, heartbeats, leaving: every transition and every error."""

from typing import Any

import pytest

from broker.groups.coordinator_log import java_hash, partition_of
from broker.groups.types import Client, JoinResult, LeavingMember, Protocol, SyncResult
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import Errors
from tests.unit.broker.group_world import GroupWorld

E = Errors
OTHER = (Protocol("other", b""),)


def errors(answers):
    return [one.error for one in answers]


def test_strings_are_hashed_as_java_hashes_them():
    # String.hashCode of "", "a", "group", "my-transactional-id", a string beyond the first plane
    values = {"": 0, "a": 97, "group": 98629247, "polygenelubricants": -(1 << 31), "\U0001f600": 1772899}
    assert {text: java_hash(text) for text in values} == values
    assert partition_of("polygenelubricants", 50) == 0  # Java's abs of the least int would stay negative


def test_a_member_joins_syncs_and_is_stable():
    world = GroupWorld()
    [joined] = world.join()
    member_id = joined.member_id
    assert member_id.startswith("client-")
    expected = JoinResult(E.NONE, member_id, 1, "consumer", "range", member_id, world.group.joined_members())
    assert joined == expected
    assert joined.members == ((member_id, None, b"r"),)
    [synced] = world.sync(member_id, assignments={member_id: b"part"})
    assert synced == SyncResult(E.NONE, "consumer", "range", b"part")
    assert world.state() is GroupState.STABLE
    assert world.heartbeat(member_id) is E.NONE


def test_a_dynamic_member_is_given_an_id_first():
    world = GroupWorld()
    [first] = world.join(requires_known_member_id=True)
    assert first == JoinResult(E.MEMBER_ID_REQUIRED, first.member_id)
    assert world.state() is GroupState.EMPTY
    [joined] = world.join(first.member_id, requires_known_member_id=True)
    assert (joined.error, joined.generation_id) == (E.NONE, 1)
    assert world.group.pending_members == set()


def test_an_id_that_is_never_used_is_forgotten_after_the_session_timeout():
    world = GroupWorld()
    [pending] = world.join(requires_known_member_id=True)
    world.pass_time(9_990)
    assert world.group.pending_members == {pending.member_id}
    world.pass_time(20)
    assert world.group.pending_members == set()
    assert errors(world.join(pending.member_id)) == [E.UNKNOWN_MEMBER_ID]


def test_a_rebalance_waits_for_pending_members():
    world = GroupWorld()
    [member_id] = world.stable()
    pending = world.join(requires_known_member_id=True)[0].member_id
    rejoined = world.join(member_id)
    assert rejoined == []  # of a leader that joins again; the pending one is expected
    world.coordinator.leave("group", [LeavingMember(pending)])
    assert errors(rejoined) == [E.NONE]


@pytest.mark.parametrize(
    ("about", "member_id", "expected"),
    [
        ({"group_id": ""}, "", E.INVALID_GROUP_ID),
        ({"group_id": "x" * 8_001}, "", E.INVALID_GROUP_ID),
        ({"client": Client("x" * 8_001, "")}, "", E.INVALID_REQUEST),
        ({"group_instance_id": "x" * 8_001}, "", E.INVALID_REQUEST),
        ({"protocols": (Protocol("range", b""), Protocol("x" * 8_001, b""))}, "", E.INVALID_REQUEST),
        ({"session_timeout_ms": 5_999}, "", E.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, "", E.INVALID_SESSION_TIMEOUT),
        ({"group_id": "nobody"}, "stranger", E.UNKNOWN_MEMBER_ID),
        ({}, "stranger", E.UNKNOWN_MEMBER_ID),
        ({"protocols": OTHER}, "", E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, "", E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, "", E.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "new", "protocol_type": ""}, "", E.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "new", "protocols": ()}, "", E.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_who_may_not_join(about, member_id, expected):
    world = GroupWorld()
    world.stable()
    answers = world.join(member_id, **about)
    assert errors(answers) == [expected]
    assert world.state() is GroupState.STABLE
    assert list(world.store.groups) == ["group"]  # and no group is left by it


def test_the_longest_names_fit_into_the_log():
    world = GroupWorld()
    name = "\U0001f600" * 8_000
    about: Any = {"group_instance_id": name, "protocol_type": name, "protocols": (Protocol(name, b""),)}
    [joined] = world.join(group_id="group", client=Client(name, ""), **about)
    assert errors(world.sync(joined.member_id, assignments={}, group_instance_id=name)) == [E.NONE]
    world.restart()
    assert world.group.static_members == {name: joined.member_id}


def test_the_first_join_waits_its_delay_and_longer_as_members_come():
    world = GroupWorld(initial_rebalance_delay_ms=3000)
    first = world.join()
    world.pass_time(1500)
    second = world.join()
    world.pass_time(4490)
    assert (first, second) == ([], [])
    world.pass_time(20)
    assert errors(first + second) == [E.NONE, E.NONE]
    assert {one.generation_id for one in first + second} == {1}


def test_a_full_group_takes_no_more():
    world = GroupWorld(max_size=2)
    _, second = world.stable(2)
    assert errors(world.join()) == [E.GROUP_MAX_SIZE_REACHED]
    assert errors(world.join(second, protocols=(Protocol("range", b"changed"),))) == []  # it is one of them


def test_a_second_member_brings_a_rebalance():
    world = GroupWorld()
    [first] = world.stable()
    second = world.join()
    assert second == []
    assert world.heartbeat(first) is E.REBALANCE_IN_PROGRESS
    assert errors(world.sync(first)) == [E.REBALANCE_IN_PROGRESS]
    again = world.join(first)
    assert errors(again + second) == [E.NONE, E.NONE]
    assert {one.generation_id for one in again + second} == {2}
    assert again[0].leader_id == second[0].leader_id == first
    assert second[0].members == ()
    assert len(again[0].members) == 2
    assert world.heartbeat(first) is E.NONE  # while parts are waited for
    waiting = world.sync(second[0].member_id)
    assert waiting == []
    world.sync(first, assignments={second[0].member_id: b"two"})
    assert waiting == [SyncResult(E.NONE, "consumer", "range", b"two")]
    assert errors(world.sync(first)) == [E.NONE]  # asked again it is told again


def test_who_does_not_join_again_in_time_is_out():
    world = GroupWorld()
    first, second = world.stable(2)
    rejoined = world.join(first, rebalance_timeout_ms=20_000)
    for _ in range(5):
        world.pass_time(9_000)
        world.heartbeat(second)
        assert rejoined == []
    world.pass_time(15_010)  # the longest that a member asks for: 60 s
    assert errors(rejoined) == [E.NONE]
    assert list(world.group.members) == [first]
    assert world.heartbeat(second) is E.UNKNOWN_MEMBER_ID


def test_who_sends_no_heartbeat_is_out_after_its_session():
    world = GroupWorld()
    first, _ = world.stable(2)
    for _ in range(3):
        world.pass_time(4_000)
        world.heartbeat(first)
    assert list(world.group.members) == [first]
    assert world.state() is GroupState.PREPARING_REBALANCE
    assert errors(world.join(first)) == [E.NONE]
    world.pass_time(9_990)
    assert first in world.group.members
    world.pass_time(20)
    assert (world.state(), world.group.members) == (GroupState.EMPTY, {})
    assert world.group.generation_id == 4
    assert world.heartbeat(first, 4) is E.UNKNOWN_MEMBER_ID


def test_a_leader_that_never_assigns_is_replaced():
    world = GroupWorld()
    first, second = world.stable(2)
    world.join(first), world.join(second)
    waiting = world.sync(second)
    for _ in range(7):
        world.pass_time(8_000)
        world.heartbeat(first)
        assert waiting == []
    world.pass_time(4_010)
    assert errors(waiting) == [E.REBALANCE_IN_PROGRESS]
    assert world.state() is GroupState.PREPARING_REBALANCE
    assert list(world.group.members) == [second]
    [again] = world.join(second)
    assert again.leader_id == second


def test_an_answer_that_was_lost_is_given_again():
    world = GroupWorld()
    [joined] = world.join()
    assert world.join(joined.member_id) == [joined]  # nothing has changed
    world.sync(joined.member_id)
    other = world.join()
    assert world.state() is GroupState.PREPARING_REBALANCE
    [leader] = world.join(joined.member_id)
    follower = other[0].member_id
    world.sync(follower), world.sync(leader.member_id)
    [told] = world.join(follower)
    assert (told.generation_id, told.members, told.leader_id) == (2, (), leader.member_id)
    assert world.state() is GroupState.STABLE
    assert world.join(follower, protocols=(Protocol("range", b"new"),)) == []  # another subscription
    assert world.state() is GroupState.PREPARING_REBALANCE


def test_a_join_while_parts_are_waited_for_begins_again():
    world = GroupWorld()
    first, second = world.stable(2)
    world.join(first), world.join(second)
    waiting = world.sync(second)
    world.join()
    assert errors(waiting) == [E.REBALANCE_IN_PROGRESS]
    assert world.state() is GroupState.PREPARING_REBALANCE


def test_the_protocol_is_the_one_most_vote_for():
    world = GroupWorld()
    ab, ba = (Protocol("a", b""), Protocol("b", b"")), (Protocol("b", b""), Protocol("c", b""), Protocol("a", b""))
    first = world.join(protocols=ab)[0].member_id
    second, third = world.join(protocols=ba), world.join(protocols=ba)
    [result] = world.join(first, protocols=ab)
    assert (result.protocol_name, second[0].protocol_name, third[0].protocol_name) == ("b", "b", "b")


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"generation_id": 0}, E.ILLEGAL_GENERATION),
        ({"generation_id": 2}, E.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "roundrobin"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol_name": "range"}, E.NONE),
    ],
)
def test_what_a_sync_must_say(about, expected):
    world = GroupWorld()
    [member_id] = world.stable()
    assert errors(world.sync(member_id, **about)) == [expected]
    assert errors(world.sync("stranger", **about)) == [E.UNKNOWN_MEMBER_ID]


def test_heartbeats_of_others_are_refused():
    world = GroupWorld()
    assert world.heartbeat("stranger") is E.UNKNOWN_MEMBER_ID
    [member_id] = world.stable()
    assert world.heartbeat("stranger") is E.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member_id, 0) is E.ILLEGAL_GENERATION
    assert world.heartbeat(member_id, instance_id="nobody") is E.UNKNOWN_MEMBER_ID


def test_members_leave():
    world = GroupWorld()
    first, second = world.stable(2)
    result = world.coordinator.leave("group", [LeavingMember(second), LeavingMember("stranger")])
    assert [error for _, error in result.members] == [E.NONE, E.UNKNOWN_MEMBER_ID]
    assert world.state() is GroupState.PREPARING_REBALANCE
    world.coordinator.leave("group", [LeavingMember(first)])
    world.turns.run()
    assert world.state() is GroupState.EMPTY
    assert world.coordinator.leave("none", [LeavingMember("a")]).members[0][1] is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.REQUEST_TIMED_OUT, E.REBALANCE_IN_PROGRESS),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_is_not_in_the_log_is_given_to_nobody(error, expected):
    world = GroupWorld()
    [joined] = world.join()
    world.log.error = error
    assert errors(world.sync(joined.member_id, assignments={joined.member_id: b"part"})) == [expected]
    assert world.state() is GroupState.PREPARING_REBALANCE
    world.log.error = E.NONE
    [again] = world.join(joined.member_id)
    assert world.sync(again.member_id, assignments={again.member_id: b"new"})[0].assignment == b"new"


def test_an_assignment_that_comes_too_late_into_the_log_is_passed_over():
    world = GroupWorld()
    first, second = world.stable(2)
    world.join(first), world.join(second)
    world.log.is_held = True
    waiting = world.sync(first, assignments={first: b"late"})
    world.coordinator.leave("group", [LeavingMember(second)])
    assert errors(waiting) == [E.REBALANCE_IN_PROGRESS]
    world.log.let_go()
    world.turns.run()
    assert world.state() is GroupState.PREPARING_REBALANCE
    assert world.group.members[first].assignment == b""


@pytest.mark.parametrize("state", ["loading", "elsewhere", "stopped"])
def test_who_is_not_the_coordinator_says_so(state):
    world = GroupWorld()
    [member_id] = world.stable()
    partition = world.store.ownership.partition_for("group").partition
    if state == "loading":
        world.store.ownership.loading.add(partition)
        expected = (E.COORDINATOR_LOAD_IN_PROGRESS, E.REBALANCE_IN_PROGRESS, E.NONE)
    elif state == "elsewhere":
        world.store.on_resignation(partition, world.rebalance.unload)
        expected = (E.NOT_COORDINATOR,) * 3
    else:
        world.store.ownership.is_active = False
        expected = (E.COORDINATOR_NOT_AVAILABLE,) * 3
    assert errors(world.join()) == [expected[0]]
    assert errors(world.sync(member_id, 1)) == [expected[1]]
    assert world.heartbeat(member_id, 1) is expected[2]
    assert world.coordinator.leave("group", []).error is expected[0]


def test_who_waits_at_a_coordinator_that_moves_is_told():
    world = GroupWorld()
    first, _ = world.stable(2)
    waiting = world.join(first)
    partition = world.store.ownership.partition_for("group").partition
    world.store.on_resignation(partition, world.rebalance.unload)
    assert errors(waiting) == [E.NOT_COORDINATOR]
    world.pass_time(700_000)  # and no timer of then does anything
    assert world.store.groups == {}


def test_a_group_is_the_same_after_a_restart():
    world = GroupWorld()
    first, second = world.stable(2)
    before = world.group
    world.restart()
    after = world.group
    assert (after.state, after.generation_id, after.leader_id) == (GroupState.STABLE, 2, first)
    assert (after.protocol_type, after.protocol_name) == ("consumer", "range")
    assert {one.member_id: one.assignment for one in after.members.values()} == {
        first: b"%b" % first.encode(),
        second: b"%b" % second.encode(),
    }
    assert after.members[first].client == before.members[first].client
    assert world.heartbeat(first, 2) is E.NONE
    world.pass_time(9_000)
    assert world.heartbeat(second) is E.NONE
    world.pass_time(2_000)
    assert list(world.group.members) == [second]  # sessions are watched from the restart on
