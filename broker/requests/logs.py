"""Requests about a broker's logs: deleting records, where epochs end, producers, sizes."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.cluster.topic_config import policies_of, value_of
from broker.protocol.request import Request
from purgatory.delayed.delayed_delete_records import DeleteRecordsResult
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.partition.partition_reading import last_offset_for_leader_epoch
from purgatory.replica_manager.admission import DeleteRecordsFacts, refuse_delete_records

NO_EPOCH: Final = -1
NOT_TOLD: Final = -1


async def delete_records(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Delete below the offsets given; answered when all living replicas have done so."""
    results: dict[TopicPartition, DeleteRecordsResult] = {}
    offsets: dict[TopicPartition, int] = {}
    for topic in request.body.topics:
        for one in topic.partitions:
            key = TopicPartition(topic.name, one.partition_index)
            error = _refuse_delete(broker, key)
            if error is Errors.NONE:
                offsets[key] = one.offset
            else:
                results[key] = DeleteRecordsResult(error)
    if offsets:
        timeout_ms = int(request.body.timeout.total_seconds() * 1000)
        results |= await broker.answer_of(partial(broker.replicas.delete_records_before, timeout_ms, offsets))
    for key in offsets:
        hosted = broker.logs.logs.get(key)
        if hosted is not None:
            hosted.log.advance_start(hosted.replica.log_start_offset)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _deleted(one.partition_index, results[TopicPartition(topic.name, one.partition_index)])
                    for one in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def _refuse_delete(broker: Broker, key: TopicPartition) -> Errors:
    topic = broker.metadata.topics.get(key.topic)
    if topic is None or not broker.metadata.knows(key):
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    facts = DeleteRecordsFacts(
        is_internal=topic.is_internal,
        hosting=_hosting(broker, key),
        is_delete_policy="delete" in policies_of(value_of(topic.config, "cleanup.policy")),
    )
    return refuse_delete_records(facts)


def _hosting(broker: Broker, key: TopicPartition) -> Errors:
    try:
        broker.replicas.partition(key).check_leader()
    except ApiError as error:
        return error.error
    return Errors.NONE


def _deleted(partition: int, result: DeleteRecordsResult) -> Mapping[str, Any]:
    return {"partition_index": partition, "error_code": result.error, "low_watermark": result.low_watermark}


async def offset_for_leader_epoch(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Where an epoch ends on this leader: how a reader finds out what was truncated."""
    topics = []
    for topic in request.body.topics:
        partitions = []
        for one in topic.partitions:
            answer: dict[str, Any] = {"partition": one.partition}
            try:
                partition = broker.replicas.partition(TopicPartition(topic.topic, one.partition))
                current = None if one.current_leader_epoch == NO_EPOCH else one.current_leader_epoch
                found = last_offset_for_leader_epoch(partition, current, one.leader_epoch, leader_only=True)
                answer |= {"leader_epoch": found.epoch, "end_offset": found.end_offset}
            except ApiError as error:
                answer |= {"error_code": error.error, "leader_epoch": -1, "end_offset": -1}
            partitions.append(answer)
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


async def describe_producers(broker: Broker, request: Request) -> Mapping[str, Any]:
    """The idempotent producers that a partition knows, and their open transactions."""
    topics = []
    for topic in request.body.topics:
        partitions = []
        for number in topic.partition_indexes:
            key = TopicPartition(topic.name, number)
            answer: dict[str, Any] = {"partition_index": number}
            try:
                broker.replicas.partition(key).check_leader()
                answer["active_producers"] = _producers(broker, key)
            except ApiError as error:
                answer |= {"error_code": error.error, "error_message": str(error)}
            partitions.append(answer)
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _producers(broker: Broker, key: TopicPartition) -> list[Mapping[str, Any]]:
    return [
        {
            "producer_id": producer_id,
            "producer_epoch": entry.producer_epoch,
            "last_sequence": entry.last_sequence,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_start_offset": -1
            if entry.transaction_first_offset is None
            else entry.transaction_first_offset,
        }
        for producer_id, entry in broker.log_of(key).state.producers.producers.items()
    ]


async def describe_log_dirs(broker: Broker, request: Request) -> Mapping[str, Any]:
    """The one directory of this broker, and how large its logs are."""
    wanted = None
    if request.body.topics is not None:
        wanted = {TopicPartition(one.topic, number) for one in request.body.topics for number in one.partitions}
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for key, hosted in broker.logs.logs.items():
        if wanted is None or key in wanted:
            lag = max(0, hosted.replica.high_watermark.offset - hosted.replica.log_end_offset)
            described = {"partition_index": key.partition, "partition_size": hosted.log.size, "offset_lag": lag}
            topics.setdefault(key.topic, []).append(described)
    return {
        "results": [
            {
                "log_dir": str(broker.logs.directory),
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
                "total_bytes": NOT_TOLD,
                "usable_bytes": NOT_TOLD,
            }
        ]
    }
