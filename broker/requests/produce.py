"""Produce: what a client sends is checked, appended by the leader, and answered by what acks asks for."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.protocol.connection import CloseConnection
from broker.protocol.produce_request import ProducedTopic, ProduceRequest
from broker.protocol.request import Request
from broker.records.batch_validation import check_produced
from broker.requests.transaction_verification import verify_transaction
from purgatory.delayed.delayed_produce import ProduceResult
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager.admission import ProduceFacts, refuse_internal_topic, refuse_produce

NO_ACKS: Final = 0
LEADER_HINT_SINCE: Final = 10


async def produce(broker: Broker, request: Request) -> Mapping[str, Any] | None:
    """Append to all partitions that can be; None with acks=0. With acks=0 an error closes the connection."""
    body: ProduceRequest = request.body
    results: dict[TopicPartition, ProduceResult] = {}
    entries: dict[TopicPartition, memoryview] = {}
    keys: list[tuple[ProducedTopic, list[TopicPartition]]] = []
    for topic in body.topics:
        name = topic.name if topic.topic_id is None else broker.metadata.topic_name(topic.topic_id)
        of_topic = []
        for index, records in topic.partitions:
            key = TopicPartition(name or str(topic.topic_id), index)
            of_topic.append(key)
            try:
                refused = refuse_produce(
                    ProduceFacts(has_topic_id=name is not None, is_known=broker.metadata.knows(key))
                )
                if refused is not Errors.NONE:
                    raise ApiError(refused)
                _check(broker, request, key.topic, records)
                assert records is not None
                entries[key] = records
            except ApiError as error:
                results[key] = ProduceResult(error.error, message=str(error))
        keys.append((topic, of_topic))
    for key, why in (await verify_transaction(broker, request.version, body.transactional_id, entries)).items():
        results[key] = ProduceResult(why)
        del entries[key]
    if entries:
        append = partial(broker.replicas.append_records, body.timeout_ms, body.acks, entries)
        results |= await broker.answer_of(append)
    if body.acks == NO_ACKS:
        failed = [result.error.name for result in results.values() if result.error is not Errors.NONE]
        if failed:
            raise CloseConnection(f"acks=0, and {failed[0]}")
        return None
    return _response(broker, request.version, keys, results)


def _check(broker: Broker, request: Request, name: str, records: memoryview | None) -> None:
    if records is None:
        raise ApiError(Errors.INVALID_RECORD, "there is no record batch")
    check_produced(records, request.version)
    internal = refuse_internal_topic(request.header.client_id, is_internal=broker.metadata.topics[name].is_internal)
    if internal is not Errors.NONE:
        raise ApiError(internal)


def _response(
    broker: Broker,
    version: int,
    keys: list[tuple[ProducedTopic, list[TopicPartition]]],
    results: Mapping[TopicPartition, ProduceResult],
) -> Mapping[str, Any]:
    response: dict[str, Any] = {
        "responses": [
            {
                "name" if topic.topic_id is None else "topic_id": topic.name or topic.topic_id,
                "partition_responses": [_partition(broker, key, results[key]) for key in of_topic],
            }
            for topic, of_topic in keys
        ]
    }
    moved = any(result.error is Errors.NOT_LEADER_OR_FOLLOWER for result in results.values())
    if moved and version >= LEADER_HINT_SINCE:
        response["node_endpoints"] = [
            {"node_id": one.broker_id, "host": one.host, "port": one.port, "rack": one.rack}
            for one in broker.metadata.alive
        ]
    return response


def _partition(broker: Broker, key: TopicPartition, result: ProduceResult) -> Mapping[str, Any]:
    answer: dict[str, Any] = {
        "index": key.partition,
        "error_code": result.error,
        "base_offset": result.base_offset,
        "log_append_time": result.log_append_time,
        "log_start_offset": result.log_start_offset,
        "record_errors": [
            {"batch_index": index, "batch_index_error_message": why} for index, why in result.record_errors
        ],
    }
    if result.error is not Errors.NONE:
        answer["error_message"] = result.message or None
    partition = broker.metadata.partition(key)
    if result.error is Errors.NOT_LEADER_OR_FOLLOWER and partition is not None:
        answer["current_leader"] = {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
    return answer
