"""Racks as Kafka's sticky assignors know them; nothing where racks don't matter."""

from collections import Counter
from collections.abc import Iterable, Sequence

from broker.clients.assignors.assignor import PartitionRacks, Subscriptions, racks_matter
from purgatory.log_offsets import TopicPartition


class RackInfo:
    """Where members and replicas are."""

    def __init__(self, partitions: PartitionRacks, subscriptions: Subscriptions) -> None:
        member_racks = {member: one.rack_id for member, one in subscriptions.items() if one.rack_id}
        replica_racks = {
            TopicPartition(topic, number): racks
            for topic, all_racks in partitions.items()
            for number, racks in enumerate(all_racks)
        }
        matter = racks_matter(member_racks.values(), list(replica_racks.values()))
        self.member_racks = member_racks if matter else {}
        self.replica_racks = replica_racks if matter else {}
        members_in = Counter(member_racks.values())
        # How many members are next to it. Java sorts by this also where racks don't matter otherwise.
        self._readers = {one: sum(members_in[rack] for rack in racks) for one, racks in replica_racks.items()}

    def is_mismatch(self, member: str, partition: TopicPartition) -> bool:
        """Whether a member that says where it is has no replica there."""
        rack = self.member_racks.get(member)
        return rack is not None and rack not in self.replica_racks.get(partition, ())

    def is_match(self, member: str, partition: TopicPartition) -> bool:
        """Whether a replica is where the member says it is."""
        return self.member_racks.get(member) in self.replica_racks.get(partition, ())

    def sort_by_readers(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions: first those that few members are next to."""
        return sorted(partitions, key=lambda one: self._readers.get(one, 0))

    def next_match(self, partition: TopicPartition, members: Sequence[str], first: int) -> int | None:
        """The place of the next member from `first` on, and round, that is next to a replica."""
        places = ((first + step) % len(members) for step in range(len(members)))
        return next((place for place in places if self.is_match(members[place], partition)), None)
