"""Refusals before a log is touched: stage A of Kafka's produce, fetch and deletion of records, as decisions.

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


@dataclass(frozen=True, slots=True)
class ProduceFacts:
    """Facts about one partition's part of a produce request before its records are looked at."""

    is_transactional: bool = False
    is_transactional_id_authorized: bool = True
    has_topic_id: bool = True  # the id (version 13 on) is a known topic's
    is_topic_authorized: bool = True
    is_known: bool = True  # in the metadata cache


def refuse_produce(facts: ProduceFacts) -> Errors:
    """Stage A. The first error (of the transactional id) is the whole request's."""
    if facts.is_transactional and not facts.is_transactional_id_authorized:
        return Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not facts.has_topic_id:
        return Errors.UNKNOWN_TOPIC_ID
    if not facts.is_topic_authorized:
        return Errors.TOPIC_AUTHORIZATION_FAILED
    return Errors.NONE if facts.is_known else Errors.UNKNOWN_TOPIC_OR_PARTITION


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


def refuse_unverified_transaction(verification: Errors, api_version: int) -> Errors:
    """Translate what the coordinator says of a batch's transaction into words that clients of this version understand.

    What has nothing to do with the producer it tries again, by an error of which it knows that it passes.
    """
    if verification in VERIFICATION_RETRIABLE:
        return Errors.NOT_ENOUGH_REPLICAS
    if verification is Errors.PRODUCER_FENCED:
        return Errors.INVALID_PRODUCER_EPOCH
    if verification is Errors.INVALID_TXN_STATE and api_version >= PRODUCE_WITH_ABORTABLE:
        return Errors.TRANSACTION_ABORTABLE
    return verification


@dataclass(frozen=True, slots=True)
class FetchFacts:
    """Facts about one partition's part of a fetch before the read."""

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
    """Facts about one partition's part of a DeleteRecords request. `hosting` is NONE on its leader."""

    is_known: bool = True
    is_authorized: bool = True
    is_internal: bool = False
    hosting: Errors = Errors.NONE
    is_delete_policy: bool = True  # cleanup.policy has delete


def refuse_delete_records(facts: DeleteRecordsFacts) -> Errors:
    """In the order of Kafka: what is not authorised is not even said to be unknown, and only the leader looks at the
    policy."""
    if not facts.is_authorized:
        return Errors.TOPIC_AUTHORIZATION_FAILED
    if not facts.is_known:
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    if facts.is_internal:
        return Errors.INVALID_TOPIC_EXCEPTION
    if facts.hosting is not Errors.NONE:
        return facts.hosting
    return Errors.NONE if facts.is_delete_policy else Errors.POLICY_VIOLATION
