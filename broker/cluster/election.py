"""Election of a partition's leader, and its replicas' way to other brokers: decisions about one partition, pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from broker.cluster.cluster_metadata import NO_LEADER, PartitionRegistration
from purgatory.errors import ApiError, Errors

IsEligible = Callable[[int], bool]


def with_leader(
    partition: PartitionRegistration, is_eligible: IsEligible, *, allows_unclean: bool
) -> PartitionRegistration:
    """Unchanged if its leader may lead, else the first living replica of the ISR; without one, the first living one if
    the topic allows it: what only the others had is lost then. Nobody leads otherwise."""
    if is_eligible(partition.leader):
        return partition
    alive = [broker_id for broker_id in partition.replicas if is_eligible(broker_id)]
    clean = [broker_id for broker_id in alive if broker_id in partition.isr]
    if clean:
        return _led_by(partition, clean[0])
    if alive and allows_unclean:
        return replace(_led_by(partition, alive[0]), isr=(alive[0],))
    return partition if partition.leader == NO_LEADER else _led_by(partition, NO_LEADER)


def elect_preferred(partition: PartitionRegistration, is_eligible: IsEligible) -> PartitionRegistration:
    """Led by its first replica. ApiError if that leads already, or is not in sync."""
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise ApiError(Errors.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    if preferred not in partition.isr or not is_eligible(preferred):
        raise ApiError(Errors.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    return _led_by(partition, preferred)


def elect_unclean(partition: PartitionRegistration, is_eligible: IsEligible) -> PartitionRegistration:
    """Led by any living replica. ApiError if somebody leads, or nobody is alive."""
    if partition.leader != NO_LEADER:
        raise ApiError(Errors.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    elected = with_leader(partition, is_eligible, allows_unclean=True)
    if elected.leader == NO_LEADER:
        raise ApiError(Errors.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
    return elected


def reassigned(partition: PartitionRegistration, target: Sequence[int]) -> PartitionRegistration:
    """On the way to these replicas: those that go stay until those that come are in sync."""
    former = [one for one in partition.replicas if one not in partition.adding]
    replicas = tuple(dict.fromkeys((*target, *former)))
    adding = tuple(one for one in target if one not in former)
    removing = tuple(one for one in former if one not in target)
    isr = tuple(one for one in partition.isr if one in replicas)
    return replace(partition, replicas=replicas, isr=isr or partition.isr, adding=adding, removing=removing)


def reassignment_cancelled(partition: PartitionRegistration) -> PartitionRegistration:
    """Back where it was. ApiError if nothing is under way."""
    if not partition.adding and not partition.removing:
        raise ApiError(Errors.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    replicas = tuple(one for one in partition.replicas if one not in partition.adding)
    isr = tuple(one for one in partition.isr if one in replicas)
    if not isr:
        raise ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, "None of the former replicas is in sync.")
    return replace(partition, replicas=replicas, isr=isr, adding=(), removing=())


def reassignment_completed(partition: PartitionRegistration) -> PartitionRegistration:
    """At its new replicas, if something is under way and all of them are in sync; else unchanged."""
    target = tuple(one for one in partition.replicas if one not in partition.removing)
    if not (partition.adding or partition.removing) or not set(target) <= set(partition.isr):
        return partition
    return replace(partition, replicas=target, isr=target, adding=(), removing=())


def _led_by(partition: PartitionRegistration, leader: int) -> PartitionRegistration:
    return replace(partition, leader=leader, leader_epoch=partition.leader_epoch + 1)
