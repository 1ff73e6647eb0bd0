"""Sticky assignment where all members want the same topics: all get as many partitions, some of them one more.

1. Each member keeps what it had, up to its quota: the lower one, or the upper one while somebody may have one more.
2. What is left goes round those that have too few: first to members next to a replica, then to anybody.
"""

from collections.abc import Iterable

from broker.clients.assignors.assignor import Assignment, PartitionRacks
from broker.clients.assignors.owned_partitions import OwnedPartitions
from broker.clients.assignors.rack_info import RackInfo
from purgatory.log_offsets import TopicPartition


class ConstrainedAssignment:
    """`build` once; `moving` are then the partitions that another member must give back first, with the new owner."""

    def __init__(self, partitions: PartitionRacks, racks: RackInfo, owned: OwnedPartitions) -> None:
        self._all = [
            TopicPartition(topic, number) for topic in sorted(partitions) for number in range(len(partitions[topic]))
        ]
        self._racks = racks
        self._owned = owned
        members = len(owned.of)
        self._quota_min, self._with_one_more_max = divmod(len(self._all), members)
        self._quota_max = self._quota_min + (self._with_one_more_max > 0)
        self._with_one_more = 0
        self._below: list[str] = []  # those that have less than the lower quota
        self._at: list[str] = []  # those that have the lower quota, while they may have one more
        self._given_back: dict[TopicPartition, str] = {}
        self._assignment: Assignment = {member: [] for member in owned.of}
        self.moving: dict[TopicPartition, str] = {}

    def build(self) -> Assignment:
        """Assign all partitions: each member's part."""
        for member in self._owned.of:
            self._keep(member)
        kept = {one for assigned in self._assignment.values() for one in assigned}
        self._below.sort()
        self._at.sort()
        left = self._racks.sort_by_readers(one for one in self._all if one not in kept)
        if self._racks.member_racks:
            left = self._assign_within_racks(left)
        self._assign_in_turn(left)
        return self._assignment

    def _keep(self, member: str) -> None:
        """As much of what it had as its quota allows."""
        had = []
        for partition in sorted(self._owned.of[member], key=lambda one: (one.partition, one.topic)):
            if self._racks.is_mismatch(member, partition):
                self._given_back[partition] = member
            elif partition not in self._owned.claimed_twice:
                had.append(partition)
        count = len(had)
        if count < self._quota_min:
            self._below.append(member)
        elif count >= self._quota_max and self._with_one_more < self._with_one_more_max:
            count = self._quota_max
            self._count_one_more()
        else:
            count = self._quota_min
            if self._with_one_more < self._with_one_more_max:
                self._at.append(member)
        self._assignment[member] += had[:count]
        self._given_back |= dict.fromkeys(had[count:], member)

    def _count_one_more(self) -> None:
        self._with_one_more += 1
        if self._with_one_more == self._with_one_more_max:
            self._at.clear()

    def _assign_within_racks(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Round the members next to a replica; what none of them takes is left."""
        left = []
        turn = 0
        for partition in partitions:
            place = self._racks.next_match(partition, self._below, turn)
            if place is not None:
                member = self._below[place]
                count = len(self._assignment[member]) + 1
                if count >= self._quota_min:
                    self._below.remove(member)
                    if count < self._quota_max and self._with_one_more < self._with_one_more_max:
                        self._at.append(member)
                else:
                    place += 1
                turn = place % len(self._below) if self._below else 0
                self._give(partition, member)
                continue
            place = self._racks.next_match(partition, self._at, 0)
            if place is None:
                left.append(partition)
                continue
            member = self._at[place]
            if len(self._assignment[member]) + 1 == self._quota_max:
                del self._at[place]
                self._count_one_more()
            self._give(partition, member)
        return left

    def _assign_in_turn(self, partitions: Iterable[TopicPartition]) -> None:
        """Round the members that have too few, then one more to each of those that may have one more."""
        turn = 0
        for partition in partitions:
            if not self._below:
                self._give(partition, self._at.pop(0))
                continue
            turn %= len(self._below)
            member = self._below[turn]
            self._give(partition, member)
            if len(self._assignment[member]) == self._quota_min:
                del self._below[turn]
                self._at.append(member)
            else:
                turn += 1

    def _give(self, partition: TopicPartition, member: str) -> None:
        """Give a partition to a member that didn't have it, or had it and so did another."""
        self._assignment[member].append(partition)
        if self._given_back.get(partition, member) != member or partition in self._owned.claimed_twice:
            self.moving[partition] = member
