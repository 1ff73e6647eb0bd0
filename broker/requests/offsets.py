"""ListOffsets: the offset of a time, or of an end of the log."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from broker.cluster.broker import Broker
from broker.log.times import find_max_timestamp
from broker.protocol.request import Request
from purgatory.delayed.delayed_fetch import isolation_of
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import Isolation, TopicPartition
from purgatory.partition.partition_reading import can_list, check_epoch, latest_offset

NO_EPOCH: Final = -1


class SpecialTimestamp(IntEnum):
    """Timestamps that ask for a place in the log. Nothing is in tiered storage here, and all of the log is local."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


class FoundOffset(NamedTuple):
    """An offset; -1s where there is none."""

    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


async def list_offsets(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Each partition by itself; one that is listed twice is an INVALID_REQUEST."""
    isolation = isolation_of(request.body.replica_id, getattr(request.body, "isolation_level", 0))
    seen: set[TopicPartition] = set()
    topics = []
    for topic in request.body.topics:
        partitions = []
        for one in topic.partitions:
            key = TopicPartition(topic.name, one.partition_index)
            answer: dict[str, Any] = {"partition_index": key.partition}
            try:
                if key in seen:
                    raise ApiError(Errors.INVALID_REQUEST)
                found = _find(broker, key, one, isolation)
                answer |= {"timestamp": found.timestamp, "offset": found.offset, "leader_epoch": found.leader_epoch}
            except ApiError as error:
                answer |= {"error_code": error.error}
            seen.add(key)
            partitions.append(answer)
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _find(broker: Broker, key: TopicPartition, wanted: Any, isolation: Isolation) -> FoundOffset:
    partition = broker.replicas.partition(key)
    epoch = getattr(wanted, "current_leader_epoch", NO_EPOCH)
    leader_epoch = None if epoch == NO_EPOCH else epoch
    check_epoch(partition, leader_epoch, leader_only=True)
    replica, log = partition.log, broker.log_of(key)
    end = latest_offset(partition, isolation, leader_epoch)
    match wanted.timestamp:
        case SpecialTimestamp.LATEST:
            return FoundOffset(-1, end, partition.leader_epoch)
        case SpecialTimestamp.EARLIEST | SpecialTimestamp.EARLIEST_LOCAL:
            start = replica.log_start_offset
            return FoundOffset(-1, start, replica.epochs.epoch_of(start))
        case SpecialTimestamp.MAX_TIMESTAMP:
            found = find_max_timestamp(log, replica.log_start_offset)
        case SpecialTimestamp.LATEST_TIERED:
            return FoundOffset()
        case timestamp if timestamp < 0:
            raise ApiError(Errors.UNSUPPORTED_VERSION)
        case timestamp:
            found = log.find_time(timestamp, replica.log_start_offset)
    if found is None or found.offset >= end or not can_list(partition, found.offset):
        return FoundOffset()
    return FoundOffset(*found)
