"""Facts by which the leader of a group assigns partitions to members.

An assignor is a function `(partitions, subscriptions) -> assignment`. Members are given in the order of the answer to
JoinGroup; all of Java's assignors put them, by name, into hash tables first, and so does `members_in_java_order`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.clients.assignors.java_hash import WORD, hash_order, string_hash
from purgatory.log_offsets import TopicPartition

NO_GENERATION: Final = -1


def partition_hash(one: TopicPartition) -> int:
    """Java's `TopicPartition.hashCode`, unsigned."""
    return (31 * (31 + one.partition) + string_hash(one.topic)) & WORD


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of a member, as it says when it joins. `user_data` is its assignor's own."""

    topics: Sequence[str]
    user_data: bytes | None = None
    owned_partitions: Sequence[TopicPartition] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None
    group_instance_id: str | None = None


PartitionRacks = Mapping[str, Sequence[frozenset[str]]]
"""Of each topic that exists, for each of its partitions, the racks in which its replicas are."""

Subscriptions = Mapping[str, Subscription]
"""Of each member, by its id."""

Assignment = dict[str, list[TopicPartition]]
"""Of each member, what it shall read."""

Assign = Callable[[PartitionRacks, Subscriptions], Assignment]


def members_in_java_order(subscriptions: Subscriptions) -> Subscriptions:
    """Subscriptions in the order in which Java walks them."""
    return {member: subscriptions[member] for member in hash_order(subscriptions)}


def topics_in_java_order(partitions: PartitionRacks, subscriptions: Subscriptions) -> list[str]:
    """Topics that exist and somebody wants, as Java walks them; `subscriptions` are in Java's order already."""
    wanted = hash_order(topic for one in subscriptions.values() for topic in one.topics)
    return hash_order(topic for topic in wanted if partitions.get(topic))


def sorted_members(subscriptions: Subscriptions) -> list[str]:
    """Static members by the name of their instance, then the others by their id."""

    def place(member: str) -> tuple[bool, str]:
        instance = subscriptions[member].group_instance_id
        return instance is None, member if instance is None else instance

    return sorted(subscriptions, key=place)


def racks_matter(member_racks: Iterable[str], replica_racks: Sequence[frozenset[str]]) -> bool:
    """Whether it makes a difference who reads what: not if no member is where a replica is, and not if all partitions
    are in the same racks."""
    everywhere = frozenset[str]().union(*replica_racks)
    return not everywhere.isdisjoint(member_racks) and any(racks != everywhere for racks in replica_racks)
