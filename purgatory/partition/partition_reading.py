"""Whether a partition may be read by this reader, from here: epochs first, then leadership, then the log's history."""

from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import EpochEndOffset, Isolation, LogOffsetSnapshot
from purgatory.partition.partition import Partition


def check_epoch(partition: Partition, current_leader_epoch: int | None, *, leader_only: bool) -> None:
    """ApiError: the reader's epoch is older (FENCED) or newer (UNKNOWN) than this replica's, or it must ask the leader.

    In this order: a reader with an old epoch learns that, and not that it asked the wrong replica.
    """
    if current_leader_epoch is not None and current_leader_epoch < partition.leader_epoch:
        raise ApiError(Errors.FENCED_LEADER_EPOCH)
    if current_leader_epoch is not None and current_leader_epoch > partition.leader_epoch:
        raise ApiError(Errors.UNKNOWN_LEADER_EPOCH)
    if leader_only:
        partition.check_leader()


def check_follower(partition: Partition, replica_id: int, current_leader_epoch: int | None) -> None:
    """ApiError unless this broker is a replica. With an epoch it may know of a newer assignment than this leader."""
    if replica_id not in partition.remote:
        has_epoch = current_leader_epoch is not None
        raise ApiError(Errors.UNKNOWN_LEADER_EPOCH if has_epoch else Errors.NOT_LEADER_OR_FOLLOWER)


def fetch_offset_snapshot(
    partition: Partition, current_leader_epoch: int | None, *, leader_only: bool
) -> LogOffsetSnapshot:
    """The ends of the log, for a reader that waits."""
    check_epoch(partition, current_leader_epoch, leader_only=leader_only)
    return partition.log.snapshot()


def last_offset_for_leader_epoch(
    partition: Partition, current_leader_epoch: int | None, epoch: int, *, leader_only: bool
) -> EpochEndOffset:
    """Where this epoch ends here."""
    check_epoch(partition, current_leader_epoch, leader_only=leader_only)
    return partition.log.epochs.end_offset_for(epoch, partition.log.log_end_offset)


def diverging_epoch(
    partition: Partition, current_leader_epoch: int | None, last_fetched_epoch: int | None, fetch_offset: int
) -> EpochEndOffset | None:
    """Where the reader's history and this one part, None if they don't up to `fetch_offset`.

    OFFSET_OUT_OF_RANGE when the epoch is not known here, or the offset is deleted.
    """
    if last_fetched_epoch is None:
        return None
    found = last_offset_for_leader_epoch(partition, current_leader_epoch, last_fetched_epoch, leader_only=False)
    if found.is_undefined:
        raise ApiError(Errors.OFFSET_OUT_OF_RANGE, f"epoch {last_fetched_epoch} is not known here")
    if fetch_offset < partition.log.log_start_offset:
        raise ApiError(Errors.OFFSET_OUT_OF_RANGE, f"{fetch_offset} is deleted")
    return found if found.diverges_from(last_fetched_epoch, fetch_offset) else None


def latest_offset(partition: Partition, isolation: Isolation, current_leader_epoch: int | None) -> int:
    """The end of the log for this reader, as ListOffsets answers LATEST.

    A new leader whose high watermark is still below its epoch's start can't answer a client (OFFSET_NOT_AVAILABLE):
    the former leader's was perhaps higher, and offsets must not go back.
    """
    check_epoch(partition, current_leader_epoch, leader_only=True)
    end = partition.log.snapshot().end_for(isolation).offset
    if isolation is not Isolation.LOG_END and not can_list(partition, end):
        raise ApiError(Errors.OFFSET_NOT_AVAILABLE)
    return end


def can_list(partition: Partition, offset: int) -> bool:
    """Whether a client may be told this offset: below the high watermark, or as the end, once it has caught up."""
    start = partition.leader_epoch_start_offset
    high_watermark = partition.log.high_watermark.offset
    return offset < high_watermark or start is None or high_watermark >= start
