"""Fetch: from which offset of which partitions, answered when there is enough or when the wait is over."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.log.file import FileRegion, Part
from broker.protocol.fetch_session import FINAL_EPOCH, NO_SESSION, FetchContext, FetchedPartition
from broker.protocol.request import Request
from purgatory.delayed.delayed_fetch import ClientMetadata, FetchParams, FetchPartition, isolation_of
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager.admission import FETCH_WITH_TOPIC_IDS, FetchFacts, refuse_fetch
from purgatory.replica_manager.fetch_reading import LogReadResult, ReadResults

CLIENT_METADATA_SINCE: Final = 11
NO_EPOCH: Final = -1
SENDFILE_BYTES_MIN: Final = 32_768


async def fetch(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Read what is wanted; what is not known is answered with the rest and neither ends the wait nor shortens it."""
    try:
        context = _context(broker, request)
    except ApiError as error:
        return {"error_code": error.error}
    refused: dict[FetchedPartition, Errors] = {}
    keys: dict[TopicPartition, FetchedPartition] = {}
    for one in context.wanted:
        key = TopicPartition(one.name or "", one.partition)
        is_known = broker.metadata.knows(key)
        refusal = refuse_fetch(FetchFacts(request.version, has_topic_id=one.name is not None, is_known=is_known))
        if refusal is not Errors.NONE:
            refused[one] = refusal
        else:
            keys[key] = one
    results: ReadResults = []
    if keys:
        wanted = [(key, context.wanted[one]) for key, one in keys.items()]
        start = partial(broker.replicas.fetch_messages, _params(broker, request), wanted)
        results = await broker.answer_of(start)
    rows = [(keys[key], _partition(broker, key, result)) for key, result in results]
    rows += [(one, _failed(one.partition, refusal)) for one, refusal in refused.items()]
    return {
        "session_id": NO_SESSION if context.session is None else context.session.session_id,
        "responses": _by_topic(request.version, context.answered(rows)),
    }


def _context(broker: Broker, request: Request) -> FetchContext:
    body = request.body
    named: dict[FetchedPartition, FetchPartition] = {}
    for topic in body.topics:
        name, topic_id = _names(broker, topic)
        for one in topic.partitions:
            key = FetchedPartition(name, topic_id, one.partition)
            named.pop(key, None)  # listed twice, the last one counts, in its place
            named[key] = _partition_of(one, topic_id)
    forgotten = [
        FetchedPartition(*_names(broker, topic), number)
        for topic in getattr(body, "forgotten_topics_data", ())
        for number in topic.partitions
    ]
    session = (getattr(body, "session_id", NO_SESSION), getattr(body, "session_epoch", FINAL_EPOCH))
    uses_topic_ids = request.version >= FETCH_WITH_TOPIC_IDS
    return broker.fetch_sessions.context(session, named, forgotten, broker.clock(), uses_topic_ids=uses_topic_ids)


def _names(broker: Broker, topic: Any) -> tuple[str | None, str | None]:
    topic_id = getattr(topic, "topic_id", None)
    topic_id = None if topic_id is None else str(topic_id)
    return getattr(topic, "topic", None) or broker.metadata.topic_name(topic_id), topic_id


def _params(broker: Broker, request: Request) -> FetchParams:
    body = request.body
    replica = getattr(body, "replica_state", body)  # from version 15 on with the epoch of its registration
    metadata = None
    if request.version >= CLIENT_METADATA_SINCE:
        metadata = ClientMetadata(body.rack_id, request.header.client_id)
    return FetchParams(
        replica_id=replica.replica_id,
        max_wait_ms=int(body.max_wait.total_seconds() * 1000),
        min_bytes=body.min_bytes,
        max_bytes=min(body.max_bytes, broker.settings.fetch_max_bytes),
        isolation=isolation_of(replica.replica_id, body.isolation_level),
        client_metadata=metadata,
        replica_epoch=getattr(replica, "replica_epoch", NO_EPOCH),
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


def _by_topic(version: int, rows: Iterable[tuple[FetchedPartition, Any]]) -> list[Mapping[str, Any]]:
    topics: dict[str | None, dict[str, Any]] = {}
    for key, row in rows:
        if version >= FETCH_WITH_TOPIC_IDS:
            topic = topics.setdefault(key.topic_id, {"topic_id": key.topic_id, "partitions": []})
        else:
            topic = topics.setdefault(key.name, {"topic": key.name, "partitions": []})
        topic["partitions"].append(row)
    return list(topics.values())


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
        "records": _records(result.data.records),
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


def _records(records: Any) -> Part:
    """As they are sent: few bytes are read, which costs one call of the system where sending a file costs several."""
    return records.read() if isinstance(records, FileRegion) and len(records) < SENDFILE_BYTES_MIN else records
