"""Kafka's StickyAssignor and CooperativeStickyAssignor: balanced, each member keeps what it had as far as that goes.

Where all members want the same topics it is a matter of quotas (`constrained_assignment`), else of moving partitions
until nothing improves (`general_assignment`).

A member of the eager protocol gives everything back before it joins, so it tells what it had as user data:

    previous assignment   array, of each: topic string, partitions array of int32
    generation            int32, missing in the first version

A member of the cooperative protocol says what it owns in its subscription; its user data is the generation alone. It
may be given only what nobody has to give back first: that comes in the next rebalance, which its owner causes.
"""

from collections.abc import Callable, Mapping
from struct import Struct, error
from typing import Final, NamedTuple

from broker.clients.assignors.assignor import (
    NO_GENERATION,
    Assignment,
    PartitionRacks,
    Subscription,
    Subscriptions,
    members_in_java_order,
)
from broker.clients.assignors.constrained_assignment import ConstrainedAssignment
from broker.clients.assignors.general_assignment import GeneralAssignment
from broker.clients.assignors.java_hash import hash_order
from broker.clients.assignors.owned_partitions import MemberData, OwnedPartitions
from broker.clients.assignors.rack_info import RackInfo
from broker.protocol.wire import Reader
from purgatory.log_offsets import TopicPartition

NAME: Final = "sticky"
COOPERATIVE_NAME: Final = "cooperative-sticky"

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")


def assign(partitions: PartitionRacks, subscriptions: Subscriptions) -> Assignment:
    """The eager one's."""
    return _assign(partitions, subscriptions, sticky_member_data).assignment


def assign_cooperatively(partitions: PartitionRacks, subscriptions: Subscriptions) -> Assignment:
    """Assign to each member what it may have now: without what another has to give back first."""
    sticky = _assign(partitions, subscriptions, cooperative_member_data)
    moving = _moving(subscriptions, sticky.assignment) if sticky.moving is None else sticky.moving
    for partition, member in moving.items():
        sticky.assignment[member].remove(partition)
    return sticky.assignment


class StickyAssignment(NamedTuple):
    """An assignment, and the new owner of each partition that moves; None: not known."""

    assignment: Assignment
    moving: Mapping[TopicPartition, str] | None


def _assign(
    partitions: PartitionRacks, subscriptions: Subscriptions, member_data: Callable[[Subscription], MemberData]
) -> StickyAssignment:
    existing = {
        topic: partitions[topic] for one in subscriptions.values() for topic in one.topics if partitions.get(topic)
    }
    subscriptions = members_in_java_order(subscriptions)
    members = {member: member_data(one) for member, one in subscriptions.items()}
    racks = RackInfo(existing, subscriptions)
    owned = OwnedPartitions(existing.keys(), subscriptions, members)
    if _want_the_same(subscriptions):
        constrained = ConstrainedAssignment(existing, racks, owned)
        return StickyAssignment(constrained.build(), constrained.moving)
    return StickyAssignment(GeneralAssignment(existing, racks, subscriptions).build(owned), None)


def _want_the_same(subscriptions: Subscriptions) -> bool:
    """Whether all members have the same topics; a subscription without topics says nothing as long as it is first."""
    first: set[str] = set()
    for one in subscriptions.values():
        if not first:
            first = set(one.topics)
        elif len(one.topics) != len(first) or not first.issuperset(one.topics):
            return False
    return True


def _moving(subscriptions: Subscriptions, assignment: Assignment) -> dict[TopicPartition, str]:
    """Partitions that a member gets and another has to give back."""
    added, revoked = dict[TopicPartition, str](), set[TopicPartition]()
    for member, assigned in assignment.items():
        owned = set(subscriptions[member].owned_partitions)
        added |= {one: member for one in assigned if one not in owned}
        revoked |= owned.difference(assigned)
    return {one: member for one, member in added.items() if one in revoked}


def sticky_member_data(subscription: Subscription) -> MemberData:
    """Read what the eager assignor's user data says; bytes that can't be read say nothing."""
    if not subscription.user_data:
        return MemberData((), None)
    reader = Reader(memoryview(subscription.user_data), is_compact=False)
    try:
        partitions = _read_partitions(reader)
    except (error, ValueError, IndexError):
        return MemberData((), NO_GENERATION)
    return MemberData(partitions, reader.int32() if len(reader.rest) >= _INT.size else None)


def _read_partitions(reader: Reader) -> list[TopicPartition]:
    found = []
    for _ in range(_count(reader)):
        topic = reader.string()
        found += [TopicPartition(topic, reader.int32()) for _ in range(_count(reader))]
    return found


def _count(reader: Reader) -> int:
    count = reader.nullable_count()
    if count is None:
        raise ValueError("an array is null")
    return count


def sticky_user_data(assigned: list[TopicPartition], generation: int) -> bytes:
    """User data of a member of the eager assignor: the partitions that it had, and when."""
    # Java fills this table by `computeIfAbsent`, which puts what is new before the others of its bucket.
    topics = hash_order(reversed(dict.fromkeys(one.topic for one in assigned)))
    parts = [_INT.pack(len(topics))]
    for topic in topics:
        numbers = [one.partition for one in assigned if one.topic == topic]
        name = topic.encode()
        parts += [_SHORT.pack(len(name)), name, _INT.pack(len(numbers)), *(_INT.pack(number) for number in numbers)]
    return b"".join((*parts, _INT.pack(generation)))


def cooperative_member_data(subscription: Subscription) -> MemberData:
    """Read what the subscription itself says; an older client's generation is in its user data."""
    owned, data = subscription.owned_partitions, subscription.user_data
    if subscription.generation_id >= 0:
        return MemberData(owned, subscription.generation_id)
    if data is None:
        return MemberData(owned, None)
    return MemberData(owned, _INT.unpack_from(data)[0] if len(data) >= _INT.size else NO_GENERATION)


def cooperative_user_data(generation: int) -> bytes:
    """User data of a member of the cooperative assignor, beside its subscription."""
    return _INT.pack(generation)
