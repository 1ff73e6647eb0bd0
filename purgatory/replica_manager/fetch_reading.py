"""Reading what a fetch asks for: limits over all partitions, and whether the answer goes out at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from purgatory.delayed.delayed_fetch import FetchParams, FetchPartition
from purgatory.errors import Errors
from purgatory.log_offsets import UNKNOWN, UNKNOWN_OFFSET, EpochEndOffset, TopicPartition
from purgatory.partition.replica_log import FetchDataInfo
from purgatory.partition.transaction_offsets import EndedTransaction

NOTHING = FetchDataInfo(UNKNOWN_OFFSET)


@dataclass(frozen=True, slots=True)
class LogReadResult:
    """The answer for one partition. With an error all offsets are -1."""

    error: Errors = Errors.NONE
    data: FetchDataInfo = NOTHING
    high_watermark: int = UNKNOWN
    last_stable_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    diverging_epoch: EpochEndOffset | None = None
    preferred_read_replica: int | None = None
    aborted_transactions: tuple[EndedTransaction, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of records."""
        return self.data.size


ReadResults = list[tuple[TopicPartition, LogReadResult]]
ReadOne = Callable[[TopicPartition, FetchPartition, int, bool], LogReadResult]
"""Reads one partition: at most so many bytes, but (True) the whole first batch whatever its size."""


def read_from_log(
    params: FetchParams, partitions: Sequence[tuple[TopicPartition, FetchPartition]], read_one: ReadOne
) -> ReadResults:
    """Read partitions in the order of the request, until its bytes are used up.

    The first partition that has anything may exceed all limits by its first batch: otherwise a consumer could never
    pass a batch that is larger than what it asks for.
    """
    results: ReadResults = []
    left = params.max_bytes
    min_one_message = not params.hard_max_bytes_limit
    for key, partition in partitions:
        result = read_one(key, partition, min(partition.max_bytes, left), min_one_message)
        if result.size:
            min_one_message = False
        left = max(left - result.size, 0)
        results.append((key, result))
    return results


def must_answer_fetch(params: FetchParams, results: ReadResults) -> bool:
    """Whether the first read is the answer: no time to wait, enough bytes, an error, or news for the reader."""
    if params.max_wait_ms <= 0 or not results:
        return True
    if sum(result.size for _, result in results) >= params.min_bytes:
        return True
    return any(
        result.error is not Errors.NONE
        or result.diverging_epoch is not None
        or result.preferred_read_replica is not None
        for _, result in results
    )
