"""Partitions that no member of the group has."""

from concurrent.futures import Future
from io import BytesIO
from struct import error, pack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_assignment.v3.data import TopicPartition as Assigned
from kio.schema.types import TopicName
from kio.serial import entity_writer
from kio.static.primitive import i32

from sidecar.model.record import TopicPartition
from sidecar.service.orphaned_partitions import Member, Unowned, members_of

GROUP = "group"
NEWER_VERSION = 3


def assignment(*numbers: int, topic: bytes = b"orders") -> bytes:
    """As the leader encodes it: version, topics with their partitions, no user data."""
    row = pack(f">h{len(topic)}si{len(numbers)}i", len(topic), topic, len(numbers), *numbers)
    return pack(">hi", NEWER_VERSION, 1) + row + pack(">i", -1)


class Cluster:
    """A group as the brokers describe it, and an engine whose intake notes who was asked to join again."""

    def __init__(self, **members: bytes) -> None:
        self.members = members
        self.state = "Stable"
        self.partitions = {"orders": 2}
        self.asked: list[str] = []
        self.intake = SimpleNamespace(rejoin=self.rejoin)
        self.engine = SimpleNamespace(submit=self.submit)

    def rejoin(self, member_id: str) -> bool:
        self.asked.append(member_id)
        return True

    def submit(self, command: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(command(self.engine))
        return future

    def list_groups(self, group: str, timeout: float) -> list[Any]:
        assert group == GROUP
        members = [SimpleNamespace(id=name, assignment=data) for name, data in self.members.items()]
        return [SimpleNamespace(state=self.state, members=members)]


def unowned(cluster: Cluster) -> Unowned:
    stands_for: Any = cluster
    return Unowned(stands_for, GROUP, stands_for, lambda: cluster.partitions)


def test_members_and_what_they_were_given() -> None:
    admin: Any = Cluster(a=assignment(0, 7), b=b"")
    assert members_of(admin, GROUP) == [
        Member("a", frozenset({TopicPartition("orders", 0), TopicPartition("orders", 7)})),
        Member("b", frozenset()),
    ]


@given(st.dictionaries(st.text(max_size=9), st.lists(st.integers(0, 2**31 - 1), max_size=9), max_size=9), st.binary())
def test_an_assignment_is_read_as_a_library_writes_it(share: dict[str, list[int]], user_data: bytes) -> None:
    topics = tuple(Assigned(topic=TopicName(name), partitions=tuple(map(i32, share[name]))) for name in share)
    written, one = BytesIO(), ConsumerProtocolAssignment(assigned_partitions=topics, user_data=user_data)
    entity_writer(ConsumerProtocolAssignment)(written, one)
    admin: Any = Cluster(a=pack(">h", NEWER_VERSION) + written.getvalue())
    lanes = frozenset(TopicPartition(name, number) for name, numbers in share.items() for number in numbers)
    assert members_of(admin, GROUP) == [Member("a", lanes)]


def test_an_assignment_that_ends_too_soon_is_no_assignment() -> None:
    admin: Any = Cluster(a=assignment(0, 7)[:-5])
    with pytest.raises(error):
        members_of(admin, GROUP)


def test_what_nobody_has_twice_in_a_row_makes_the_first_member_join_again() -> None:
    cluster = Cluster(b=assignment(0), a=b"")
    looking = unowned(cluster)
    looking.look()
    assert cluster.asked == [], "it may be on its way"
    looking.look()
    assert cluster.asked == ["a"]


def test_it_does_so_once_for_the_same_partitions_and_again_for_others() -> None:
    cluster = Cluster(a=assignment(0))
    looking = unowned(cluster)
    for _ in range(5):
        looking.look()
    assert cluster.asked == ["a"]
    cluster.partitions = {"orders": 3}
    looking.look()
    looking.look()
    assert cluster.asked == ["a", "a"]


def test_for_the_same_partitions_again_if_somebody_had_them_meanwhile() -> None:
    cluster = Cluster(a=assignment(0))
    looking = unowned(cluster)
    for share in (assignment(0), assignment(0), assignment(0, 1), assignment(0), assignment(0)):
        cluster.members["a"] = share
        looking.look()
    assert cluster.asked == ["a", "a"]


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Empty", "Dead"])
def test_while_a_rebalance_is_under_way_nothing_is_unowned(state: str) -> None:
    cluster = Cluster(a=assignment(0))
    cluster.state = state
    looking = unowned(cluster)
    for _ in range(3):
        looking.look()
    assert cluster.asked == []


def test_what_everybody_has_together_is_owned() -> None:
    cluster = Cluster(a=assignment(0), b=assignment(1), c=assignment(5, topic=b"others"))
    looking = unowned(cluster)
    for _ in range(3):
        looking.look()
    assert cluster.asked == []
