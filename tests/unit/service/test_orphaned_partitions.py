"""Partitions that no member of the group has."""

from concurrent.futures import Future
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

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
    for given in (assignment(0), assignment(0), assignment(0, 1), assignment(0), assignment(0)):
        cluster.members["a"] = given
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
