"""Sticky assignment where members want different topics.

1. Each member keeps what it had, if it still wants it and racks allow.
2. What is left goes, those topics first that few members want, to whoever has least of those that want it.
3. Partitions move from who has more to who has less, until nothing improves: what is new first, if nothing had to be
   given up. If that was no better balanced than before, nothing moves.
"""

from collections.abc import Callable, Iterable, Sequence

from broker.clients.assignors.assignor import Assignment, PartitionRacks, Subscriptions
from broker.clients.assignors.owned_partitions import OwnedPartitions
from broker.clients.assignors.partition_movements import PartitionMovements
from broker.clients.assignors.rack_info import RackInfo
from purgatory.log_offsets import TopicPartition


class GeneralAssignment:
    """`build` once."""

    def __init__(self, partitions: PartitionRacks, racks: RackInfo, subscriptions: Subscriptions) -> None:
        self._partitions = partitions
        self._racks = racks
        self._topics = {
            member: [topic for topic in one.topics if topic in partitions] for member, one in subscriptions.items()
        }
        self._members: dict[str, list[str]] = {topic: [] for topic in partitions}
        for member, topics in self._topics.items():
            for topic in topics:
                self._members[topic].append(member)
        self._assignment: Assignment = {}
        self._owners: dict[TopicPartition, str] = {}
        self._earlier_owners: dict[TopicPartition, str] = {}
        self._candidates: set[str] = set(subscriptions)  # the members whose partitions may still change
        self._movements = PartitionMovements()

    def build(self, owned: OwnedPartitions) -> Assignment:
        """Assign all partitions: each member's part."""
        self._earlier_owners = owned.earlier_owners()
        is_revoked = False
        for member, had in owned.of.items():
            kept = [
                one for one in had if one.topic in self._topics[member] and not self._racks.is_mismatch(member, one)
            ]
            is_revoked |= len(kept) < len(had)
            self._assignment[member] = kept
        self._owners = {one: member for member, had in owned.of.items() for one in had}
        kept_by_all = {one for kept in self._assignment.values() for one in kept}
        topics = sorted(self._partitions, key=lambda topic: (len(self._members[topic]), topic))
        everything = [
            TopicPartition(topic, number) for topic in topics for number in range(len(self._partitions[topic]))
        ]
        self._balance(everything, [one for one in everything if one not in kept_by_all], is_revoked=is_revoked)
        return self._assignment

    def _balance(self, everything: list[TopicPartition], new: list[TopicPartition], *, is_revoked: bool) -> None:
        is_first = not self._assignment[self._by_load()[-1]]
        left = new
        if self._racks.member_racks:
            left = self._assign_to_least(new, lambda member, one: not self._racks.is_mismatch(member, one))
        self._assign_to_least(left, lambda _member, _one: True)

        fixed = {member: self._assignment[member] for member in self._topics if not self._may_change(member)}
        self._candidates -= fixed.keys()
        for member in fixed:
            del self._assignment[member]
        before = {member: list(assigned) for member, assigned in self._assignment.items()}
        if not is_revoked:
            self._reassign([one for one in new if self._is_wanted_by_several(one.topic)])
        is_changed = self._reassign([one for one in everything if self._is_wanted_by_several(one.topic)])
        if not is_first and is_changed and imbalance(self._assignment) >= imbalance(before):
            self._assignment = before
        self._assignment |= fixed

    def _assign_to_least(
        self, partitions: Iterable[TopicPartition], may: Callable[[str, TopicPartition], bool]
    ) -> list[TopicPartition]:
        """Each to whoever has least of those that want it and may have it; what nobody may have is left."""
        left = []
        for partition in partitions:
            takers = [member for member in self._members[partition.topic] if may(member, partition)]
            if takers:
                taker = min(takers, key=self._load)
                self._assignment[taker].append(partition)
                self._owners[partition] = taker
            else:
                left.append(partition)
        return left

    def _reassign(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions until it is balanced or none moves any more; whether any did."""
        is_changed = False
        while True:
            is_moved = False
            for partition in partitions:
                if self._is_balanced():
                    break
                is_moved |= self._move_if_better(partition)
            is_changed |= is_moved
            if not is_moved:
                return is_changed

    def _move_if_better(self, partition: TopicPartition) -> bool:
        enough = len(self._assignment[self._owners[partition]]) - 1
        earlier = self._earlier_owners.get(partition, "")
        # Java looks up an earlier owner whose partitions are fixed, too, and throws.
        if earlier in self._assignment and len(self._assignment[earlier]) < enough:
            self._move(partition, earlier)
            return True
        wanted_by = self._members[partition.topic]
        if any(len(self._assignment[member]) < enough for member in wanted_by):
            self._move(partition, min(self._candidates.intersection(wanted_by), key=self._load))
            return True
        return False

    def _move(self, partition: TopicPartition, new: str) -> None:
        partition = self._movements.partition_to_move(partition, self._owners[partition], new)
        old = self._owners[partition]
        self._movements.move(partition, old, new)
        self._assignment[old].remove(partition)
        self._assignment[new].append(partition)
        self._owners[partition] = new

    def _is_balanced(self) -> bool:
        """Whether nobody could have what another has two more of."""
        members = self._by_load()
        if len(self._assignment[members[0]]) >= len(self._assignment[members[-1]]) - 1:
            return True
        owners = {one: member for member, assigned in self._assignment.items() for one in assigned}
        for member in members:
            count = len(self._assignment[member])
            if count == self._count_max(member):
                continue
            for topic in self._topics[member]:
                for number in range(len(self._partitions[topic])):
                    owner = owners[TopicPartition(topic, number)]
                    if owner != member and count + 1 < len(self._assignment[owner]):
                        return False
        return True

    def _is_wanted_by_several(self, topic: str) -> bool:
        return len(self._members[topic]) >= 2

    def _may_change(self, member: str) -> bool:
        """Whether it could have more, or another could have some of it."""
        assigned = self._assignment[member]
        return len(assigned) < self._count_max(member) or any(self._is_wanted_by_several(one.topic) for one in assigned)

    def _count_max(self, member: str) -> int:
        return sum(len(self._partitions[topic]) for topic in self._topics[member])

    def _by_load(self) -> list[str]:
        return sorted(self._candidates, key=self._load)

    def _load(self, member: str) -> tuple[int, str]:
        return len(self._assignment[member]), member


def imbalance(assignment: Assignment) -> int:
    """The sum of the differences between all pairs of members."""
    counts = [len(assigned) for assigned in assignment.values()]
    return sum(abs(one - other) for place, one in enumerate(counts) for other in counts[place + 1 :])
