"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn, WriteTxnMarkers; ListTransactions,
DescribeTransactions.

Older versions know a fenced producer as INVALID_PRODUCER_EPOCH.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.groups.types import MemberClaim, OffsetCommitRequest
from broker.protocol.request import Request
from broker.requests.group_offsets import errors_by_topic, offsets_of
from broker.transactions.admin import (
    ANY_DURATION,
    ListedTransaction,
    TransactionFilter,
    describe_transaction,
    list_transactions,
)
from broker.transactions.coordinator import Begun, ProducerClaim
from broker.transactions.markers import Marker
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

FENCED_SINCE: Final = 2
INIT_FENCED_SINCE: Final = 4
NO_PRODUCER_ID: Final = -1


async def init_producer_id(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answered when it is in the log who has the id."""
    body = request.body
    expected = (getattr(body, "producer_id", NO_PRODUCER_ID), getattr(body, "producer_epoch", -1))
    if (expected[0] == NO_PRODUCER_ID) != (expected[1] == -1):
        return {"error_code": Errors.INVALID_REQUEST, "producer_id": NO_PRODUCER_ID, "producer_epoch": -1}
    timeout_ms = round(body.transaction_timeout.total_seconds() * 1000)
    begin = partial(
        broker.coordinators.transactions.init_producer_id,
        body.transactional_id,
        timeout_ms,
        None if expected[0] == NO_PRODUCER_ID else expected,
    )
    begun: Begun = await broker.answer_of(begin)
    return {
        "error_code": _fenced(begun.error, request.version, INIT_FENCED_SINCE),
        "producer_id": begun.producer_id,
        "producer_epoch": begun.producer_epoch,
    }


async def add_partitions_to_txn(broker: Broker, request: Request) -> Mapping[str, Any]:
    """All of them or none: one that isn't there keeps the others out."""
    body = request.body
    topics = body.v3_and_below_topics
    keys = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
    unknown = {key for key in keys if not broker.metadata.knows(key)}
    if unknown:
        errors = {
            key: Errors.UNKNOWN_TOPIC_OR_PARTITION if key in unknown else Errors.OPERATION_NOT_ATTEMPTED for key in keys
        }
    else:
        claim = ProducerClaim(
            body.v3_and_below_transactional_id, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
        )
        add = partial(broker.coordinators.transactions.add_partitions, claim, keys)
        error = _fenced(await broker.answer_of(add), request.version)
        errors = dict.fromkeys(keys, error)
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": errors[TopicPartition(topic.name, index)]}
                    for index in topic.partitions
                ],
            }
            for topic in topics
        ]
    }


async def add_offsets_to_txn(broker: Broker, request: Request) -> Mapping[str, Any]:
    """The partition in which a group's offsets are."""
    body = request.body
    claim = ProducerClaim(body.transactional_id, body.producer_id, body.producer_epoch)
    key = broker.coordinators.group_store.ownership.partition_for(body.group_id)
    add = partial(broker.coordinators.transactions.add_partitions, claim, [key])
    return {"error_code": _fenced(await broker.answer_of(add), request.version)}


async def txn_offset_commit(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answered when the offsets are in the log; they count when the transaction commits."""
    body = request.body
    claim = MemberClaim(
        body.group_id,
        getattr(body, "generation_id", -1),
        getattr(body, "member_id", ""),
        getattr(body, "group_instance_id", None),
    )
    known, unknown = offsets_of(broker, body.topics)
    errors: Mapping[TopicPartition, Errors] = {}
    if known:
        producer = (body.producer_id, body.producer_epoch, body.transactional_id)
        commit = OffsetCommitRequest(claim, known, *producer)
        errors = await broker.answer_of(partial(broker.coordinators.offsets.commit_transactional, commit))
    return {"topics": errors_by_topic(body.topics, {**unknown, **errors})}


async def end_txn(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answered when it is decided."""
    body = request.body
    claim = ProducerClaim(body.transactional_id, body.producer_id, body.producer_epoch)

    def end(answer: Callable[[Errors], None]) -> None:
        broker.coordinators.transactions.end(claim, answer, is_commit=body.committed)

    return {"error_code": _fenced(await broker.answer_of(end), request.version)}


async def write_txn_markers(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Other coordinators', or an administrator's who ends what hangs."""
    markers = []
    for one in request.body.markers:
        marker = Marker(one.producer_id, one.producer_epoch, one.transaction_result, one.coordinator_epoch)
        topics = []
        for topic in one.topics:
            partitions = []
            for index in topic.partition_indexes:
                write = partial(broker.coordinators.write_marker, TopicPartition(topic.name, index), marker)
                error: Errors = await broker.answer_of(write)
                partitions.append({"partition_index": index, "error_code": error})
            topics.append({"name": topic.name, "partitions": partitions})
        markers.append({"producer_id": one.producer_id, "topics": topics})
    return {"markers": markers}


async def list_all_transactions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Transactions of this broker."""
    body = request.body
    duration_ms = getattr(body, "duration_filter", ANY_DURATION)
    wanted = TransactionFilter(body.state_filters, body.producer_id_filters, duration_ms)
    found = list_transactions(broker.coordinators.transaction_store, wanted)
    return {
        "error_code": found.error,
        "unknown_state_filters": found.unknown_states,
        "transaction_states": [_listed(one) for one in found.transactions],
    }


def _listed(one: ListedTransaction) -> Mapping[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "producer_id": one.producer_id,
        "transaction_state": one.state,
    }


async def describe_transactions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Transactions with their partitions."""
    return {"transaction_states": [_described(broker, one) for one in request.body.transactional_ids]}


def _described(broker: Broker, transactional_id: str) -> Mapping[str, Any]:
    try:
        found = describe_transaction(broker.coordinators.transaction_store, transactional_id)
    except ApiError as error:
        return {"error_code": error.error, "transactional_id": transactional_id, "transaction_start_time": 0}
    return {
        "error_code": Errors.NONE,
        "transactional_id": transactional_id,
        "transaction_state": found.state.title,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": [
            {"topic": name, "partitions": [key.partition for key in keys]}
            for name, keys in groupby(sorted(found.partitions), lambda key: key.topic)
        ],
    }


def _fenced(error: Errors, version: int, since: int = FENCED_SINCE) -> Errors:
    is_unknown = error is Errors.PRODUCER_FENCED and version < since
    return Errors.INVALID_PRODUCER_EPOCH if is_unknown else error
