"""What is refused before a log is touched, or by the log: stages A and B of Kafka's produce and fetch, as decisions.

The order of the checks is the order of the answers: a request that is wrong in two ways gets Kafka's error of the two.
"""

from dataclasses import dataclass

from purgatory.errors import Errors

ADMIN_CLIENT_ID = "__admin_client"
REQUIRED_ACKS = frozenset({-1, 0, 1})
# Failures of the transaction's verification that clients of all versions know how to try again.
VERIFICATION_RETRIABLE = frozenset(
    {
        Errors.CONCURRENT_TRANSACTIONS,
        Errors.NETWORK_EXCEPTION,
        Errors.COORDINATOR_LOAD_IN_PROGRESS,
        Errors.COORDINATOR_NOT_AVAILABLE,
        Errors.NOT_COORDINATOR,
    }
)
PRODUCE_WITH_ABORTABLE = 11
PRODUCE_WITH_ZSTD = 7
PRODUCE_WITH_ONE_BATCH = 3
PRODUCE_ADDS_PARTITION = 12


@dataclass(frozen=True, slots=True)
class ProduceFacts:
    """What is known of one partition's part of a produce request before the append."""

    api_version: int = 12
    is_transactional: bool = False
    is_transactional_id_authorized: bool = True
    is_topic_authorized: bool = True
    is_known: bool = True  # in the metadata cache
    is_one_whole_batch: bool = True  # exactly one batch of magic 2, complete
    is_zstd: bool = False


def refuse_produce(facts: ProduceFacts) -> Errors:
    """Stage A. The first error (of the transactional id) is the whole request's."""
    if facts.is_transactional and not facts.is_transactional_id_authorized:
        return Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not facts.is_topic_authorized:
        return Errors.TOPIC_AUTHORIZATION_FAILED
    if not facts.is_known:
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    if facts.api_version >= PRODUCE_WITH_ONE_BATCH and not facts.is_one_whole_batch:
        return Errors.INVALID_RECORD
    if facts.api_version < PRODUCE_WITH_ZSTD and facts.is_zstd:
        return Errors.UNSUPPORTED_COMPRESSION_TYPE
    return Errors.NONE


def refuse_acks(required_acks: int) -> Errors:
    """Stage A, last: for all partitions that are left; nothing is appended."""
    return Errors.NONE if required_acks in REQUIRED_ACKS else Errors.INVALID_REQUIRED_ACKS


@dataclass(frozen=True, slots=True)
class HostedFacts:
    """Where a partition is, as one broker knows it."""

    is_known: bool = True
    is_hosted: bool = True
    is_offline: bool = False


def refuse_partition(facts: HostedFacts) -> Errors:
    """Whether this broker has the partition at all."""
    if facts.is_hosted:
        return Errors.KAFKA_STORAGE_ERROR if facts.is_offline else Errors.NONE
    return Errors.NOT_LEADER_OR_FOLLOWER if facts.is_known else Errors.UNKNOWN_TOPIC_OR_PARTITION


def refuse_internal_topic(client_id: str, *, is_internal: bool) -> Errors:
    """Only the admin client writes to internal topics."""
    return Errors.INVALID_TOPIC_EXCEPTION if is_internal and client_id != ADMIN_CLIENT_ID else Errors.NONE


def refuse_unverified_transaction(api_version: int, verification: Errors, *, is_verified: bool) -> Errors:
    """A transaction that the coordinator does not know of, by the words that clients of this version understand.

    From version 12 on the broker adds the partition to the transaction itself, so there is nothing to verify.
    """
    if verification in VERIFICATION_RETRIABLE:
        return Errors.NOT_ENOUGH_REPLICAS
    if is_verified or api_version >= PRODUCE_ADDS_PARTITION:
        return Errors.NONE
    return Errors.TRANSACTION_ABORTABLE if api_version >= PRODUCE_WITH_ABORTABLE else Errors.INVALID_TXN_STATE


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """One batch against the topic's limits. Sizes in bytes; `validation` is what checking its records found."""

    size: int = 100
    message_max_bytes: int = 1024 * 1024
    segment_bytes: int = 1024 * 1024 * 1024
    has_valid_crc: bool = True
    validation: Errors = Errors.NONE


def refuse_batch(facts: BatchFacts) -> Errors:
    """What the log refuses."""
    if facts.size > facts.message_max_bytes:
        return Errors.MESSAGE_TOO_LARGE
    if not facts.has_valid_crc:
        return Errors.CORRUPT_MESSAGE
    if facts.validation is not Errors.NONE:
        return facts.validation
    return Errors.RECORD_LIST_TOO_LARGE if facts.size > facts.segment_bytes else Errors.NONE


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """A batch that an idempotent producer sent before."""

    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int


def check_sequence(
    batch: tuple[int, int, int], recent: tuple[ProducedBatch, ...]
) -> tuple[Errors, ProducedBatch | None]:
    """Whether (epoch, first sequence, last sequence) follows; `recent` are the last five of this producer, in order.

    A repetition of one of them gives that one: it is answered with its offset and not appended again.
    """
    epoch, first, last = batch
    if not recent:
        return Errors.NONE, None
    latest = recent[-1]
    if epoch < latest.epoch:
        return Errors.INVALID_PRODUCER_EPOCH, None
    if epoch > latest.epoch:
        return (Errors.NONE if first == 0 else Errors.OUT_OF_ORDER_SEQUENCE_NUMBER), None
    for known in recent:
        if (known.epoch, known.first_sequence, known.last_sequence) == (epoch, first, last):
            return Errors.NONE, known
    expected = 0 if latest.last_sequence == 2**31 - 1 else latest.last_sequence + 1
    return (Errors.NONE if first == expected else Errors.OUT_OF_ORDER_SEQUENCE_NUMBER), None


@dataclass(frozen=True, slots=True)
class FetchFacts:
    """What is known of one partition's part of a fetch before the read."""

    api_version: int = 17
    is_from_follower: bool = False
    has_cluster_action: bool = True
    has_topic_id: bool = True  # the id (version 13 on) is a known topic's
    is_authorized: bool = True
    is_known: bool = True


FETCH_WITH_TOPIC_IDS = 13


def refuse_fetch(facts: FetchFacts) -> Errors:
    """Stage A. What is refused here is answered with the rest: it neither ends the wait nor counts bytes."""
    if facts.api_version >= FETCH_WITH_TOPIC_IDS and not facts.has_topic_id:
        return Errors.UNKNOWN_TOPIC_ID
    if facts.is_from_follower and not facts.has_cluster_action:
        return Errors.TOPIC_AUTHORIZATION_FAILED
    if not facts.is_from_follower and not facts.is_authorized:
        return Errors.TOPIC_AUTHORIZATION_FAILED
    return Errors.NONE if facts.is_known else Errors.UNKNOWN_TOPIC_OR_PARTITION


@dataclass(frozen=True, slots=True)
class DeleteRecordsFacts:
    """What is known of one partition's part of a DeleteRecords request."""

    is_known: bool = True
    is_authorized: bool = True
    is_internal: bool = False
    is_delete_policy: bool = True  # cleanup.policy has delete


def refuse_delete_records(facts: DeleteRecordsFacts) -> Errors:
    """In the order of Kafka: what is not authorised is not even said to be unknown."""
    if not facts.is_authorized:
        return Errors.TOPIC_AUTHORIZATION_FAILED
    if not facts.is_known:
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    if facts.is_internal:
        return Errors.INVALID_TOPIC_EXCEPTION
    return Errors.NONE if facts.is_delete_policy else Errors.POLICY_VIOLATION
