"""Kafka's RoundRobinAssignor: all partitions in turn, each to the next member that wants its topic."""

from typing import Final

from broker.clients.assignors.assignor import Assignment, PartitionRacks, Subscriptions, sorted_members
from purgatory.log_offsets import TopicPartition

NAME: Final = "roundrobin"


def assign(partitions: PartitionRacks, subscriptions: Subscriptions) -> Assignment:
    """Racks are not looked at."""
    assignment: Assignment = {member: [] for member in subscriptions}
    members = sorted_members(subscriptions)
    turn = 0
    for topic in sorted({topic for one in subscriptions.values() for topic in one.topics}):
        for number in range(len(partitions.get(topic, ()))):
            while topic not in subscriptions[members[turn % len(members)]].topics:
                turn += 1
            assignment[members[turn % len(members)]].append(TopicPartition(topic, number))
            turn += 1
    return assignment
