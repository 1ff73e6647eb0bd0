"""Kafka's RangeAssignor: of each topic, a run of partitions for each member, the first members one more if it must be.

Where racks matter, partitions go first to members next to a replica, as far as the counts stay the same; topics with
the same members and as many partitions stay together, so that equal numbers have one reader.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

from broker.clients.assignors.assignor import (
    Assignment,
    PartitionRacks,
    Subscriptions,
    members_in_java_order,
    racks_matter,
    sorted_members,
    topics_in_java_order,
)
from purgatory.log_offsets import TopicPartition

NAME: Final = "range"


def assign(partitions: PartitionRacks, subscriptions: Subscriptions) -> Assignment:
    """Each topic for itself."""
    subscriptions = members_in_java_order(subscriptions)
    assignment: Assignment = {member: [] for member in subscriptions}
    members = sorted_members(subscriptions)
    topics = [
        TopicAssignment(
            topic,
            partitions[topic],
            {one: subscriptions[one].rack_id for one in members if topic in subscriptions[one].topics},
        )
        for topic in topics_in_java_order(partitions, subscriptions)
    ]
    is_rack_aware = any(topic.needs_racks for topic in topics)
    if is_rack_aware:
        _assign_with_racks(topics, assignment)
    for topic in topics:
        topic.assign_ranges(lambda _member, _partition: True, assignment)
    if is_rack_aware:
        for assigned in assignment.values():
            assigned.sort()
    return assignment


class TopicAssignment:
    """One topic, while it is assigned."""

    def __init__(
        self, topic: str, replica_racks: Sequence[frozenset[str]], member_racks: dict[str, str | None]
    ) -> None:
        self.topic = topic
        self.members = member_racks
        self.replica_racks = replica_racks
        self.needs_racks = racks_matter([rack for rack in member_racks.values() if rack], replica_racks)
        self._unassigned = [TopicPartition(topic, number) for number in range(len(replica_racks))]
        self._counts = dict.fromkeys(member_racks, 0)
        self._each, self._left_for_one_more = divmod(len(replica_racks), len(member_racks))

    def racks_match(self, member: str, partition: TopicPartition) -> bool:
        """Whether a replica is where the member is; a member that doesn't say where is everywhere."""
        rack = self.members[member]
        return not rack or rack in self.replica_racks[partition.partition]

    def assignable(self, member: str) -> int:
        """How many more partitions it may have."""
        return max(0, self._each + (self._left_for_one_more > 0) - self._counts[member])

    def assign_ranges(self, may: Callable[[str, TopicPartition], bool], assignment: Assignment) -> None:
        """Give each member as much as it may have of what is left."""
        for member in self.members:
            wanted = [one for one in self._unassigned if may(member, one)][: self.assignable(member)]
            self.give(member, wanted, assignment)

    def give(self, member: str, partitions: Sequence[TopicPartition], assignment: Assignment) -> None:
        """Give partitions to a member."""
        if not partitions:
            return
        assignment[member] += partitions
        self._counts[member] += len(partitions)
        if self._counts[member] > self._each:
            self._left_for_one_more -= 1
        self._unassigned = [one for one in self._unassigned if one not in partitions]


def _assign_with_racks(topics: Iterable[TopicAssignment], assignment: Assignment) -> None:
    def alike(topic: TopicAssignment) -> tuple[list[str], int]:
        return list(topic.members), len(topic.replica_racks)

    for (_, count), group in groupby(sorted(topics, key=alike), alike):
        together = list(group)
        if len(together) > 1:
            _assign_together(together, count, assignment)
        elif together[0].needs_racks:
            together[0].assign_ranges(together[0].racks_match, assignment)


def _assign_together(topics: Sequence[TopicAssignment], count: int, assignment: Assignment) -> None:
    """Equal numbers to one member, wherever a member is next to all of them."""
    members = list(topics[0].members)
    if not any(topics[0].members.values()):
        return
    for number in range(count):
        for member in members:
            if all(
                one.racks_match(member, TopicPartition(one.topic, number)) and one.assignable(member) for one in topics
            ):
                for one in topics:
                    one.give(member, [TopicPartition(one.topic, number)], assignment)
                if not any(one.assignable(member) for one in topics):
                    members.remove(member)
                break
