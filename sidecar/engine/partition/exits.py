"""Leaving another way than by being emitted: dead letters, quarantine, and which refusals mean what."""

from typing import Final

from policies.decision import TARGET_NOT_ALLOWED, TOO_LARGE, UNKNOWN_TARGET
from policies.headers import DETAIL, REASON, SOURCE
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.header_codec import asked_headers, dead_letter_headers, header_bytes, quarantine_headers
from sidecar.model.record import Diverted, Held, Outcome, held_id
from sidecar.model.reserved_topics import RESERVED

DETAIL_LENGTH_MAX: Final = 500
REFERENCE_PART_MAX: Final = 64 * 1024  # a larger key, or larger headers, are left out of a quarantine by reference

CLOSED: Final = -1  # partitions of a topic that nothing may be emitted to: whichever is asked for is beyond them

# Kafka's names of refusals, by what becomes of the record.
SIZE_ERRORS: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
NO_TARGET: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
REFUSED_TOPIC: Final = "TOPIC_AUTHORIZATION_FAILED"  # to us, all of it, or to every client: Kafka's own topics
# The topic is there, but not for this record: a compacted one takes none without a key, an ACL none from us.
UNFIT: Final = frozenset({"INVALID_RECORD", "INVALID_TIMESTAMP", "POLICY_VIOLATION", REFUSED_TOPIC, "TOPIC_EXCEPTION"})
# Perhaps only a neighbour in the batch is at fault: sent once more in a batch of its own.
TRIED_ISOLATED: Final = SIZE_ERRORS | {"INVALID_RECORD", "INVALID_TIMESTAMP", "_INVALID_DIFFERENT_RECORD"}
OF_RECORDS: Final = TRIED_ISOLATED | UNFIT | NO_TARGET  # a record is at fault, or the topic that it is for
# The transaction was aborted while these were under way: their target was too slow, or is away.
GIVEN_UP: Final = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})
# Nothing more goes into this transaction. The client marks the second as fatal in its events, and not where it raises.
TRANSACTION_FAILED: Final = frozenset({"_STATE", "_FATAL"})
PASSING: Final = frozenset(
    {"_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT", "REQUEST_TIMED_OUT"}
    | {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"}
    | {
        "NO_OFFSET",
        "KAFKA_STORAGE_ERROR",
        "THROTTLING_QUOTA_EXCEEDED",
        "NETWORK_EXCEPTION",
        "_INVALID_DIFFERENT_RECORD",
    }
)


class EmissionError(Exception):
    """The producer can't go on: the process ends loudly and starts over."""


def dead(lane: SourcePartition, held: Held, topic: str, reason: str) -> Diverted:
    """The departure of a decided record to its dead-letter topic."""
    return Diverted(
        held.due_ms, held.offset, Outcome.DEAD, reason, topic, held.key, held.value,
        dead_letter_headers(held, lane.here, reason), held.policy, held.attempt, held_id(held), held.source,
        held_bytes=held.size,
    )  # fmt: skip


def given_up(lane: SourcePartition, held: Held, reason: str) -> Diverted:
    """The departure of a held record to its dead letters. Its delivery is not made: the letter tells of the attempt
    before, which failed, and the ledger of the one that was decided.
    """
    failed = held._replace(attempt=held.attempt - 1) if held.attempt else held
    return dead(lane, failed, held.dead_letter, reason)._replace(attempt=held.attempt)


def quarantined(topic: str, lane: SourcePartition, parcel: Held | Diverted, reason: str, detail: str) -> Diverted:
    """The departure of a decided record to the quarantine topic."""
    source = lane.here + b"%d" % parcel.came_at
    headers = parcel.headers if isinstance(parcel, Diverted) else asked_headers(parcel, lane.here)
    return Diverted(
        parcel.due_ms, parcel.offset, Outcome.QUARANTINED, reason, topic, parcel.key, parcel.value,
        quarantine_headers(headers, source, reason, detail[:DETAIL_LENGTH_MAX]), parcel.policy, parcel.attempt,
        parcel.id if isinstance(parcel, Diverted) else held_id(parcel),
        parcel.related if isinstance(parcel, Diverted) else parcel.source,
        held_bytes=parcel.held_bytes if isinstance(parcel, Diverted) else parcel.size,
    )  # fmt: skip


def by_reference(topic: str, lane: SourcePartition, parcel: Held | Diverted, detail: str) -> Diverted:
    """The departure of a record too large to be produced: without its value, and without what else is large.

    What the quarantine refuses even so goes without key and headers.
    """
    again = isinstance(parcel, Diverted) and parcel.topic == topic and parcel.value is None
    part_max = -1 if again else REFERENCE_PART_MAX
    reason = TOO_LARGE
    if isinstance(parcel, Diverted) and parcel.outcome is Outcome.QUARANTINED and parcel.reason:
        reason = parcel.reason  # it was on its way here already
    departure = quarantined(topic, lane, parcel, reason, detail)
    small_key = departure.key is not None and len(departure.key) <= part_max
    headers = departure.headers
    if header_bytes(headers) > part_max:
        headers = [header for header in headers if header[0] in (SOURCE, REASON, DETAIL)]
    return departure._replace(value=None, key=departure.key if small_key else None, headers=headers)


def no_target(held: Held, partitions: int | None) -> tuple[str, str]:
    """Why a record's target can't be emitted to: reason and detail."""
    if partitions == CLOSED:
        return TARGET_NOT_ALLOWED, f"{held.target} {RESERVED}"
    if partitions is None:
        return UNKNOWN_TARGET, f"no topic {held.target}, or no permission to see it or write to it"
    detail = f"topic {held.target} has {partitions} partitions, {held.target_partition} was asked for"
    return UNKNOWN_TARGET, detail
