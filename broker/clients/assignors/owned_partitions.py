"""Partitions that members of a group had before, as far as they may keep them: a member that claims what another
claims, too, may have lost it while it was away."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from broker.clients.assignors.assignor import NO_GENERATION, Assignment, Subscriptions
from purgatory.log_offsets import TopicPartition


class MemberData(NamedTuple):
    """Partitions that a member says it had, and when; None: it doesn't say."""

    partitions: Sequence[TopicPartition]
    generation: int | None


class OwnedPartitions:
    """`of` each member, what it owned last; `claimed_twice`: nobody's, since two of one generation claim it."""

    def __init__(
        self, topics: Collection[str], subscriptions: Subscriptions, members: Mapping[str, MemberData]
    ) -> None:
        self.members = members
        self.of: Assignment = {member: [] for member in subscriptions}
        self.claimed_twice: set[TopicPartition] = set()
        generations = [data.generation for data in members.values() if data.generation is not None]
        self.generation_max = max(NO_GENERATION, *generations, NO_GENERATION)
        owners: dict[TopicPartition, str] = {}
        for member, data in members.items():
            generation = NO_GENERATION if data.generation is None else data.generation
            for partition in data.partitions:
                if partition.topic not in topics:
                    continue
                other = owners.get(partition)
                # Java asks the other's subscription, where the eager assignor's members say no generation.
                others = NO_GENERATION if other is None else max(NO_GENERATION, subscriptions[other].generation_id)
                if other is not None and generation < others:
                    continue
                if other is not None and partition in self.of[other]:
                    self.of[other].remove(partition)
                if other is not None and generation == others:
                    self.claimed_twice.add(partition)
                else:
                    self.of[member].append(partition)
                owners[partition] = member

    def earlier_owners(self) -> dict[TopicPartition, str]:
        """Owners by their own word in an earlier generation than the latest, by partition: the last of them."""
        found: dict[TopicPartition, tuple[int, str]] = {}
        for member, data in self.members.items():
            generation = NO_GENERATION if data.generation is None else data.generation
            if generation < self.generation_max:
                for partition in data.partitions:
                    if partition not in found or generation > found[partition][0]:
                        found[partition] = generation, member
        return {partition: member for partition, (_, member) in found.items()}
