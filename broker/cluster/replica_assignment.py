"""Choice of brokers for the replicas of new partitions, by the rules of Kafka's `assignReplicasToBrokers`.

First replicas go round the brokers. The others follow at a shift that grows by one with every round, else the same
brokers would always follow the same leader. With racks the brokers are gone through in an order that alternates
between racks, and a rack gets a second replica only when every rack has one.
"""

from collections.abc import Container, Iterable, Sequence
from itertools import zip_longest
from typing import Final

from broker.cluster.cluster_metadata import BrokerRegistration
from purgatory.errors import ApiError, Errors

PARTITIONS_MAX: Final = 10_000  # of one request: each is a directory with open files


def assign_replicas_to_brokers(
    brokers: Iterable[BrokerRegistration], partitions: range, replication_factor: int, start: int, shift: int
) -> list[tuple[int, ...]]:
    """The replicas of each of these partitions. `start` and `shift` say where the first one begins: any numbers.

    INVALID_REPLICATION_FACTOR if there are too few brokers.
    """
    usable = sorted((broker for broker in brokers if not broker.is_fenced), key=lambda broker: broker.broker_id)
    if replication_factor < 1:
        raise ApiError(Errors.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0.")
    if replication_factor > len(usable):
        raise ApiError(
            Errors.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): {len(usable)} broker(s) are usable.",
        )
    has_racks = all(broker.rack is not None for broker in usable)
    order = _alternating(usable) if has_racks else usable
    racks = len({broker.rack for broker in order}) if has_racks else 1
    assigned = []
    for partition in partitions:
        if partition > 0 and partition % len(order) == 0:
            shift += 1
        first = (partition + start) % len(order)
        assigned.append(_replicas(order, first, shift * racks, replication_factor, racks))
    return assigned


def _replicas(
    order: Sequence[BrokerRegistration], first: int, shift: int, replication_factor: int, racks: int
) -> tuple[int, ...]:
    chosen = [order[first]]
    step = 0
    while len(chosen) < replication_factor:
        # Every broker but the first comes up once in so many steps, so this ends.
        candidate = order[(first + 1 + (shift + step) % (len(order) - 1)) % len(order)]
        step += 1
        used = {broker.rack for broker in chosen}
        if candidate not in chosen and (racks == 1 or candidate.rack not in used or len(used) == racks):
            chosen.append(candidate)
    return tuple(broker.broker_id for broker in chosen)


def _alternating(brokers: Sequence[BrokerRegistration]) -> list[BrokerRegistration]:
    racks: dict[str, list[BrokerRegistration]] = {}
    for broker in brokers:
        racks.setdefault(broker.rack or "", []).append(broker)
    rows = [racks[rack] for rack in sorted(racks)]
    return [broker for row in zip_longest(*rows) for broker in row if broker is not None]


def check_assignment(assignment: Sequence[tuple[int, ...]], brokers: Container[int], replication_factor: int) -> None:
    """INVALID_REPLICA_ASSIGNMENT: nobody, somebody twice or unknown, or another number of replicas than this."""
    for row in assignment:
        is_known = all(broker_id in brokers for broker_id in row)
        if not row or len(set(row)) != len(row) or not is_known or len(row) != replication_factor:
            raise ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {row} is no good.")


def checked_count(partitions: int) -> int:
    """INVALID_PARTITIONS: none, or more than one request may ask for."""
    if partitions < 1:
        raise ApiError(Errors.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if partitions > PARTITIONS_MAX:
        raise ApiError(Errors.INVALID_PARTITIONS, f"At most {PARTITIONS_MAX} partitions.")
    return partitions
