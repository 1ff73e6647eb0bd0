"""Choice of the replica that a consumer should better read from: one in its own rack."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from purgatory.delayed.delayed_fetch import ClientMetadata
from purgatory.partition.partition import Partition


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica that a consumer could read from."""

    broker_id: int
    rack_id: str
    log_end_offset: int
    last_caught_up_ms: float
    is_leader: bool


ReplicaSelector = Callable[[ClientMetadata, Sequence[ReplicaView]], ReplicaView | None]


def select_rack_aware(client: ClientMetadata, replicas: Sequence[ReplicaView]) -> ReplicaView | None:
    """In the consumer's rack the leader, or else whoever is furthest; without one there, the leader."""
    leader = next((replica for replica in replicas if replica.is_leader), None)
    same_rack = [replica for replica in replicas if client.rack_id and replica.rack_id == client.rack_id]
    if not same_rack or leader in same_rack:
        return leader
    return max(same_rack, key=lambda replica: (replica.log_end_offset, replica.last_caught_up_ms))


def replica_views(partition: Partition, fetch_offset: int, rack_of: Callable[[int], str]) -> list[ReplicaView]:
    """The leader, and the followers that are in sync and have this offset."""
    log = partition.log
    leader = ReplicaView(partition.broker_id, rack_of(partition.broker_id), log.log_end_offset, 0, is_leader=True)
    followers = [
        ReplicaView(one.broker_id, rack_of(one.broker_id), one.log_end.offset, one.last_caught_up_ms, is_leader=False)
        for one in partition.remote.values()
        if one.broker_id in partition.state.isr and one.log_start_offset <= fetch_offset <= one.log_end.offset
    ]
    return [leader, *followers]
