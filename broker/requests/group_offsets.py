"""OffsetCommit, OffsetFetch, OffsetDelete."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.groups.types import CommittedOffset, FetchedOffset, MemberClaim, OffsetCommitRequest
from broker.protocol.request import Request
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

GROUPS_SINCE: Final = 8
NULL_MEANS_ALL_SINCE: Final = 2

PartitionErrors = Mapping[TopicPartition, Errors]


async def offset_commit(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answered when the offsets are in the log. Of topics that are not there nothing is kept."""
    body = request.body
    claim = MemberClaim(
        body.group_id,
        getattr(body, "generation_id_or_member_epoch", -1),
        getattr(body, "member_id", ""),
        getattr(body, "group_instance_id", None),
    )
    known, unknown = offsets_of(broker, body.topics)
    errors: PartitionErrors = {}
    if known or not unknown:
        commit = OffsetCommitRequest(claim, known)
        errors = await broker.answer_of(partial(broker.coordinators.offsets.commit, commit))
    return {"topics": errors_by_topic(body.topics, {**unknown, **errors})}


def offsets_of(
    broker: Broker, topics: Iterable[Any]
) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, Errors]]:
    """Offsets that a request commits, and errors of partitions that are not there."""
    known: dict[TopicPartition, CommittedOffset] = {}
    unknown: dict[TopicPartition, Errors] = {}
    for topic in topics:
        for one in topic.partitions:
            key = TopicPartition(topic.name, one.partition_index)
            if broker.metadata.knows(key):
                epoch = getattr(one, "committed_leader_epoch", -1)
                known[key] = CommittedOffset(one.committed_offset, epoch, one.committed_metadata or "")
            else:
                unknown[key] = Errors.UNKNOWN_TOPIC_OR_PARTITION
    return known, unknown


def errors_by_topic(topics: Iterable[Any], errors: PartitionErrors) -> list[Mapping[str, Any]]:
    """In the order of the request."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": one.partition_index,
                    "error_code": errors[TopicPartition(topic.name, one.partition_index)],
                }
                for one in topic.partitions
            ],
        }
        for topic in topics
    ]


async def offset_fetch(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Of one group, or since version 8 of many."""
    body = request.body
    require_stable = getattr(body, "require_stable", False)
    if request.version >= GROUPS_SINCE:
        groups = []
        for group in body.groups:
            error, topics = _fetch(broker, group.group_id, group.topics, require_stable=require_stable)
            groups.append({"group_id": group.group_id, "topics": topics, "error_code": error})
        return {"groups": groups}
    error, topics = _fetch(broker, body.group_id, body.topics, require_stable=require_stable)
    if error is not Errors.NONE and request.version < NULL_MEANS_ALL_SINCE:
        failed = FetchedOffset(error)
        topics = _fetched_by_topic(dict.fromkeys(_keys(body.topics) or (), failed))
    return {"error_code": error, "topics": topics}


def _fetch(
    broker: Broker, group_id: str, topics: Iterable[Any] | None, *, require_stable: bool
) -> tuple[Errors, list[Mapping[str, Any]]]:
    try:
        found = broker.coordinators.offsets.fetch(group_id, _keys(topics), require_stable=require_stable)
    except ApiError as error:
        return error.error, []
    return Errors.NONE, _fetched_by_topic(found)


def _keys(topics: Iterable[Any] | None) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes]


def _fetched_by_topic(found: Mapping[TopicPartition, FetchedOffset]) -> list[Mapping[str, Any]]:
    return [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": key.partition,
                    "committed_offset": found[key].offset,
                    "committed_leader_epoch": found[key].leader_epoch,
                    "metadata": found[key].metadata,
                    "error_code": found[key].error,
                }
                for key in keys
            ],
        }
        for name, keys in groupby(sorted(found), key=lambda key: key.topic)
    ]


async def offset_delete(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answered when it is in the log."""
    body = request.body
    keys = [TopicPartition(topic.name, one.partition_index) for topic in body.topics for one in topic.partitions]
    unknown = {key: Errors.UNKNOWN_TOPIC_OR_PARTITION for key in keys if not broker.metadata.knows(key)}
    known = [key for key in keys if key not in unknown]
    try:
        delete = partial(broker.coordinators.offsets.delete, body.group_id, known)
        errors: PartitionErrors = await broker.answer_of(delete)
    except ApiError as error:
        return {"error_code": error.error, "topics": []}
    return {"error_code": Errors.NONE, "topics": errors_by_topic(body.topics, {**unknown, **errors})}
