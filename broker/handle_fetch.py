"""Fetch: from which offset of which partitions, answered when there is enough or when the wait is over."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from broker.broker import Broker
from broker.log_file import FileRegion
from broker.request import Request
from purgatory.admission import FETCH_WITH_TOPIC_IDS, FetchFacts, refuse_fetch
from purgatory.delayed_fetch import ClientMetadata, FetchParams, FetchPartition
from purgatory.errors import Errors
from purgatory.fetch_reading import LogReadResult, ReadResults
from purgatory.log_offsets import Isolation, TopicPartition

CLIENT_METADATA_SINCE: Final = 11
READ_COMMITTED: Final = 1
NO_EPOCH: Final = -1

Wanted = tuple[str | None, str | None, int]
"""Topic name, topic id, partition, as asked."""


async def fetch(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Read what is wanted; what is not known is answered with the rest and neither ends the wait nor shortens it."""
    refused: dict[Wanted, Errors] = {}
    wanted: dict[TopicPartition, FetchPartition] = {}
    for topic in request.body.topics:
        topic_id = getattr(topic, "topic_id", None)
        topic_id = None if topic_id is None else str(topic_id)
        name = getattr(topic, "topic", None) or broker.metadata.topic_name(topic_id)
        for one in topic.partitions:
            key = TopicPartition(name or "", one.partition)
            is_known = broker.metadata.knows(key)
            error = refuse_fetch(FetchFacts(request.version, has_topic_id=name is not None, is_known=is_known))
            if error is not Errors.NONE:
                refused[(name, topic_id, one.partition)] = error
            else:
                wanted.pop(key, None)  # listed twice, the last one counts, in its place
                wanted[key] = _partition_of(one, topic_id)
    results: ReadResults = []
    if wanted:
        start = partial(broker.replicas.fetch_messages, _params(broker, request), list(wanted.items()))
        results = await broker.answer_of(start)
    return _response(broker, request, results, refused)


def _params(broker: Broker, request: Request) -> FetchParams:
    body = request.body
    metadata = None
    if request.version >= CLIENT_METADATA_SINCE:
        metadata = ClientMetadata(body.rack_id, request.header.client_id)
    is_committed = body.isolation_level == READ_COMMITTED
    return FetchParams(
        max_wait_ms=int(body.max_wait.total_seconds() * 1000),
        min_bytes=body.min_bytes,
        max_bytes=min(body.max_bytes, broker.settings.fetch_max_bytes),
        isolation=Isolation.TXN_COMMITTED if is_committed else Isolation.HIGH_WATERMARK,
        client_metadata=metadata,
    )


def _partition_of(one: Any, topic_id: str | None) -> FetchPartition:
    return FetchPartition(
        one.fetch_offset,
        one.partition_max_bytes,
        getattr(one, "log_start_offset", -1),
        _epoch(getattr(one, "current_leader_epoch", NO_EPOCH)),
        _epoch(getattr(one, "last_fetched_epoch", NO_EPOCH)),
        topic_id,
    )


def _epoch(number: int) -> int | None:
    return None if number == NO_EPOCH else number


def _response(
    broker: Broker, request: Request, results: ReadResults, refused: Mapping[Wanted, Errors]
) -> Mapping[str, Any]:
    has_ids = request.version >= FETCH_WITH_TOPIC_IDS
    topics: dict[str, dict[str, Any]] = {}

    def partitions_of(name: str | None, topic_id: str | None) -> list[Mapping[str, Any]]:
        said = {"topic_id": topic_id} if has_ids else {"topic": name}
        found: list[Mapping[str, Any]] = topics.setdefault(
            str(topic_id if has_ids else name), {**said, "partitions": []}
        )["partitions"]
        return found

    for key, result in results:
        topic = broker.metadata.topics.get(key.topic)
        partitions_of(key.topic, None if topic is None else topic.topic_id).append(_partition(broker, key, result))
    for (name, topic_id, number), error in refused.items():
        partitions_of(name, topic_id).append(_failed(number, error))
    return {"responses": list(topics.values())}


def _partition(broker: Broker, key: TopicPartition, result: LogReadResult) -> Mapping[str, Any]:
    if result.error is not Errors.NONE:
        return {**_failed(key.partition, result.error), **_leader_hint(broker, key, result.error)}
    answer: dict[str, Any] = {
        "partition_index": key.partition,
        "error_code": result.error,
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.last_stable_offset,
        "log_start_offset": result.log_start_offset,
        "aborted_transactions": [
            {"producer_id": one.producer_id, "first_offset": one.first_offset} for one in result.aborted_transactions
        ],
        "records": _bytes(result.data.records),
    }
    if result.diverging_epoch is not None:
        found = result.diverging_epoch
        answer["diverging_epoch"] = {"epoch": found.epoch, "end_offset": found.end_offset}
    if result.preferred_read_replica is not None:
        answer["preferred_read_replica"] = result.preferred_read_replica
    return answer


def _failed(number: int, error: Errors) -> Mapping[str, Any]:
    return {
        "partition_index": number,
        "error_code": error,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": (),
        "records": b"",
    }


def _leader_hint(broker: Broker, key: TopicPartition, error: Errors) -> Mapping[str, Any]:
    partition = broker.metadata.partition(key)
    if partition is None or error not in (Errors.NOT_LEADER_OR_FOLLOWER, Errors.FENCED_LEADER_EPOCH):
        return {}
    return {"current_leader": {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}}


def _bytes(records: Any) -> bytes:
    return records.read() if isinstance(records, FileRegion) else bytes(records)
