"""Appending what a produce request has for each partition, to the logs of this broker."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from purgatory.delayed.delayed_produce import ProduceResult
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import UNKNOWN, TopicPartition
from purgatory.partition.partition import Moved, Partition

# Refused before, or as a whole: their answers say nothing about the log, where others give its start.
WITHOUT_LOG_START = frozenset(
    {
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.NOT_LEADER_OR_FOLLOWER,
        Errors.MESSAGE_TOO_LARGE,
        Errors.RECORD_LIST_TOO_LARGE,
        Errors.CORRUPT_MESSAGE,
        Errors.KAFKA_STORAGE_ERROR,
    }
)

_log = logging.getLogger(__name__)


def append_to_local_logs(
    find: Callable[[TopicPartition], Partition],
    entries: Mapping[TopicPartition, Any],
    required_acks: int,
    now_ms: float,
) -> tuple[dict[TopicPartition, ProduceResult], dict[TopicPartition, Moved]]:
    """The answer so far for every partition, and what has moved where something was appended.

    One partition's failure does not concern the others, whatever it is.
    """
    results: dict[TopicPartition, ProduceResult] = {}
    moved: dict[TopicPartition, Moved] = {}
    for key, records in entries.items():
        log_start = UNKNOWN
        try:
            partition = find(key)
            log_start = partition.log.log_start_offset
            info, moved[key] = partition.append_records_to_leader(records, required_acks, now_ms)
            results[key] = ProduceResult(
                Errors.NONE,
                info.first_offset,
                info.last_offset + 1,
                log_start,
                log_append_time=info.log_append_time,
            )
        except ApiError as error:
            start = UNKNOWN if error.error in WITHOUT_LOG_START else log_start
            results[key] = ProduceResult(
                error.error, log_start_offset=start, message=str(error), record_errors=error.record_errors
            )
        except Exception:  # noqa: BLE001 - answered, and the other partitions are not to blame
            _log.exception("an append failed")
            results[key] = ProduceResult(Errors.UNKNOWN_SERVER_ERROR, log_start_offset=log_start)
    return results, moved
