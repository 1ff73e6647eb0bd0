"""Committed offsets: who may commit, what transactions do to them, how they end, what is read again."""

from collections.abc import Mapping
from struct import pack

import pytest

from broker.groups.admin import delete_group, describe_group, list_groups
from broker.groups.offset_coordinator import OffsetCoordinator
from broker.groups.records import decode_group, decode_key, decode_offset, encode_group, encode_offset
from broker.groups.types import CommittedOffset, MemberClaim, OffsetCommitRequest, Protocol
from broker.protocol.primitive_types import UnreadableRecord
from broker.records.control_records import EndMarker, build_end_marker
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from tests.unit.broker.group_world import KEY, START_MS, GroupWorld

E = Errors
DAY_MS = 86_400_000
OTHER = TopicPartition("payments", 3)


def subscription(*topics):
    return pack(">hi", 0, len(topics)) + b"".join(pack(">h", len(t)) + t.encode() for t in topics) + pack(">i", -1)


def consuming(*topics):
    return (Protocol("range", subscription(*topics)),)


def end_transaction(world, producer_id, *, is_commit):
    """As the transaction coordinator does: the marker goes to the log, then the groups are told."""
    ownership = world.store.ownership
    key = ownership.partition_for("group")
    marker = build_end_marker(producer_id, 0, EndMarker(not is_commit, 0), START_MS)
    world.log.append(key, marker, lambda result: None)
    world.turns.run()
    world.store.complete_transaction(producer_id, [key.partition], is_commit=is_commit)


def test_offsets_are_kept_and_read_again():
    world = GroupWorld()
    assert world.committed() == -1
    assert world.commit(5, metadata="note") is E.NONE
    assert world.commit(7, key=OTHER) is E.NONE
    assert world.commit(6, metadata="later") is E.NONE
    for _ in range(2):
        found = world.offsets.fetch("group", None, require_stable=True)
        assert {key: (one.offset, one.metadata) for key, one in found.items()} == {KEY: (6, "later"), OTHER: (7, "")}
        world.restart()


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (("group", 1, "{member}"), E.NONE),
        (("group", 0, "{member}"), E.ILLEGAL_GENERATION),
        (("group", 2, "{member}"), E.ILLEGAL_GENERATION),
        (("group", -1, "{member}"), E.ILLEGAL_GENERATION),
        (("group", 1, "stranger"), E.UNKNOWN_MEMBER_ID),
        (("group", 1, ""), E.UNKNOWN_MEMBER_ID),
        (("group", -1, ""), E.UNKNOWN_MEMBER_ID),
        (("group", 1, "{member}", "nobody"), E.UNKNOWN_MEMBER_ID),
        (("nobody", 1, "stranger"), E.ILLEGAL_GENERATION),
        (("nobody", -1, ""), E.NONE),
        (("", -1, ""), E.NONE),
    ],
)
@pytest.mark.parametrize("producer_id", [-1, 9])
def test_who_may_commit(claim, expected, producer_id):
    world = GroupWorld()
    [member_id] = world.stable()
    given = MemberClaim(claim[0], claim[1], claim[2].format(member=member_id), *claim[3:])
    if producer_id >= 0 and claim == ("group", -1, ""):
        expected = E.NONE  # older producers don't say who consumes
    assert world.commit(claim=given, producer_id=producer_id, producer_epoch=0) is expected


def test_while_parts_are_waited_for_nothing_is_committed():
    world = GroupWorld()
    [joined] = world.join()
    claim = world.claim(joined.member_id)
    assert world.commit(claim=claim) is E.REBALANCE_IN_PROGRESS
    assert world.commit(claim=claim, producer_id=1, producer_epoch=0) is E.NONE  # a zombie is told by its generation


def test_a_commit_is_a_sign_of_life():
    world = GroupWorld()
    [member_id] = world.stable()
    for _ in range(4):
        world.pass_time(8_000)
        assert world.commit(claim=world.claim(member_id)) is E.NONE
    assert list(world.group.members) == [member_id]


def test_metadata_has_a_limit():
    world = GroupWorld(offset_metadata_max_bytes=10)
    assert world.commit(metadata="x" * 10) is E.NONE
    assert world.commit(metadata="x" * 11) is E.OFFSET_METADATA_TOO_LARGE


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.INVALID_COMMIT_OFFSET_SIZE),
        (E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_EPOCH),
    ],
)
def test_what_is_not_in_the_log_is_not_committed(error, expected):
    world = GroupWorld()
    world.commit(1)
    world.log.error = error
    assert world.commit(2) is expected
    assert world.commit(3, producer_id=1, producer_epoch=0) is expected
    assert world.committed(require_stable=True) == 1


def test_an_offset_is_not_seen_before_it_is_replicated():
    world = GroupWorld()
    world.log.is_held = True
    assert world.commit(4) is None
    assert world.committed() == -1
    world.log.let_go()
    world.turns.run()
    assert world.committed() == 4


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_transactions_offsets_count_from_its_end_on(is_commit, restarts):
    world = GroupWorld()
    world.commit(1)
    assert world.commit(2, producer_id=7, producer_epoch=0) is E.NONE
    if restarts:
        world.restart()
    assert world.committed() == 1
    assert world.committed(require_stable=True) is E.UNSTABLE_OFFSET_COMMIT
    end_transaction(world, 8, is_commit=True)  # another's
    assert world.committed(require_stable=True) is E.UNSTABLE_OFFSET_COMMIT
    end_transaction(world, 7, is_commit=is_commit)
    if restarts > 1:
        world.restart()
    assert world.committed(require_stable=True) == (2 if is_commit else 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_of_two_commits_the_later_in_the_log_wins(restarted):
    world = GroupWorld()
    world.commit(2, producer_id=7, producer_epoch=0)
    world.commit(3)
    end_transaction(world, 7, is_commit=True)
    if restarted:
        world.restart()
    assert world.committed() == 3


def test_offsets_of_a_partition_that_the_transaction_does_not_have_are_refused():
    world = GroupWorld()
    asked = []

    def verify(request: OffsetCommitRequest, key, then):
        asked.append((request.transactional_id, key))
        then(E.INVALID_TXN_STATE if request.transactional_id == "other" else E.NONE)

    world.offsets = OffsetCoordinator(world.store, world.rebalance, verify)
    key = world.store.ownership.partition_for("group")
    refused = world.commit(producer_id=1, producer_epoch=0, transactional_id="other")
    assert (refused, world.commit(producer_id=2, transactional_id="mine")) == (E.INVALID_TXN_STATE, E.NONE)
    assert world.commit(producer_id=2, transactional_id="mine") is E.NONE
    assert asked == [("other", key), ("mine", key)]  # whose offsets are pending is in a transaction


def test_offsets_without_a_user_expire():
    world = GroupWorld()
    world.commit(1)
    world.pass_time(6 * DAY_MS)
    world.commit(1, key=OTHER)
    world.pass_time(DAY_MS)
    assert world.store.expire_offsets() == 1
    assert (world.committed(), world.committed(OTHER)) == (-1, 1)
    world.pass_time(6 * DAY_MS)
    assert world.store.expire_offsets() == 1
    assert world.store.groups == {}
    world.restart()
    assert world.store.groups == {}


def test_a_group_of_consumers_keeps_what_it_consumes():
    world = GroupWorld()
    [member_id] = world.stable(protocols=consuming("orders"), session_timeout_ms=1_800_000)
    world.commit(1, claim=world.claim(member_id))
    world.commit(1, claim=world.claim(member_id), key=OTHER)
    world.clock.now_ms += 8 * DAY_MS  # its heartbeats go on
    assert world.store.expire_offsets() == 1
    assert (world.committed(), world.committed(OTHER)) == (1, -1)


def test_an_empty_group_keeps_its_offsets_from_its_end_on():
    world = GroupWorld()
    [member_id] = world.stable(protocols=consuming("orders"))
    world.commit(1, claim=world.claim(member_id))
    world.pass_time(10_010)
    assert world.state() is GroupState.EMPTY
    world.pass_time(7 * DAY_MS - 20)
    assert world.store.expire_offsets() == 0
    world.pass_time(20)
    assert world.store.expire_offsets() == 1
    world.turns.run()
    world.restart()
    assert world.store.groups == {}  # the group is gone from the log, too


def test_offsets_that_a_transaction_is_changing_stay():
    world = GroupWorld()
    world.commit(1)
    world.commit(2, producer_id=7, producer_epoch=0)
    world.pass_time(30 * DAY_MS)
    assert world.store.expire_offsets() == 0


def test_offsets_are_deleted():
    world = GroupWorld()
    answers: list[Mapping[TopicPartition, Errors]] = []
    with pytest.raises(ApiError, match="no such group"):
        world.offsets.delete("group", [KEY], answers.append)
    [member_id] = world.stable(protocols=consuming("orders"))
    world.commit(1, claim=world.claim(member_id))
    world.commit(1, claim=world.claim(member_id), key=OTHER)
    world.offsets.delete("group", [KEY, OTHER], answers.append)
    world.turns.run()
    assert answers == [{KEY: E.GROUP_SUBSCRIBED_TO_TOPIC, OTHER: E.NONE}]
    world.restart()
    assert (world.committed(), world.committed(OTHER)) == (1, -1)
    world.group.protocol_type = "connect"
    with pytest.raises(ApiError, match="has members"):
        world.offsets.delete("group", [KEY], answers.append)


def test_groups_are_listed_described_deleted():
    world = GroupWorld()
    [member_id] = world.stable()
    world.commit(1, claim=MemberClaim("simple"))
    found = {one.group_id: one.state for one in list_groups(world.store, [], [])[1]}
    assert found == {"group": "Stable", "simple": "Empty"}
    assert [one.group_id for one in list_groups(world.store, ["stable"], ["Classic"])[1]] == ["group"]
    assert list_groups(world.store, [], ["consumer"]) == (E.NONE, [])
    described = describe_group(world.store, "group")
    [member] = described.members
    assert (described.state, described.protocol, member.metadata) == ("Stable", "range", b"r")
    assert member.assignment == member_id.encode()
    assert describe_group(world.store, "nobody").state == "Dead"
    answers: list[Errors] = []
    for group_id in ("nobody", "group", "simple"):
        delete_group(world.store, group_id, answers.append)
        world.turns.run()
    assert answers == [E.GROUP_ID_NOT_FOUND, E.NON_EMPTY_GROUP, E.NONE]
    world.restart()
    assert list(world.store.groups) == ["group"]
    world.join()
    assert [describe_group(world.store, "group").protocol, describe_group(world.store, "group").state] == [
        "",
        "PreparingRebalance",
    ]


def test_records_are_those_of_kafka():
    # As kafka-console-consumer's formatters of 4.3.1 read them
    offset = CommittedOffset(42, 5, "m", 1_700_000_000_000)
    key, value = encode_offset("g", TopicPartition("t", 1), offset)
    assert key == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x01"
    assert value == pack(">hqih1sq", 3, 42, 5, 1, b"m", 1_700_000_000_000)
    assert encode_offset("g", TopicPartition("t", 1), None) == (key, None)
    assert decode_key(key) == ("g", TopicPartition("t", 1))
    assert decode_offset(value) == offset
    assert decode_offset(pack(">hqh1sqq", 1, 42, 1, b"m", 7, 9)) == CommittedOffset(42, -1, "m", 7, 9)
    assert decode_offset(pack(">hqh1sq", 2, 42, 1, b"m", 7)) == CommittedOffset(42, -1, "m", 7)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\5", b"\0\1\0\xff", b"\0\2\0\1\xff", b"\0\2\xff\xff"])
def test_what_is_no_key_is_refused(data):
    with pytest.raises(UnreadableRecord):
        decode_key(data)


def test_cut_values_are_refused_wherever_they_are_cut():
    world = GroupWorld()
    world.stable(2, group_instance_id=None)
    _, value = encode_group(world.group, {})
    assert value is not None
    assert decode_group(value).generation_id == 2
    for size in range(len(value)):
        with pytest.raises(UnreadableRecord):
            decode_group(value[:size])
