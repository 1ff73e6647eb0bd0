"""Creating topics and partitions, deleting topics."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.cluster.cluster_metadata import Topic
from broker.cluster.controller import NewTopic
from broker.protocol.request import Request
from purgatory.errors import ApiError, Errors

DEFAULT: Final = -1


async def create_topics(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Each topic by itself: one that can't be created says nothing about the others."""
    counts = Counter(wanted.name for wanted in request.body.topics)
    named = {wanted.name: wanted for wanted in request.body.topics}
    answers = []
    began_s = broker.loop.time()
    for name, count in counts.items():
        began_s = await broker.share(began_s)
        if count > 1:
            answers.append(_refused(name, ApiError(Errors.INVALID_REQUEST, "Duplicate topic name.")))
            continue
        try:
            new = _new_topic(broker, named[name])
            topic = broker.controller.create_topic(new, validate_only=request.body.validate_only, is_synced=False)
        except ApiError as error:
            answers.append(_refused(name, error))
        else:
            answers.append(_created(topic))
    broker.controller.sync()
    return {"topics": answers}


def _new_topic(broker: Broker, wanted: Any) -> NewTopic:
    config = {one.name: one.value for one in wanted.configs}
    assignment = None
    if wanted.assignments:
        if (wanted.num_partitions, wanted.replication_factor) not in ((DEFAULT, DEFAULT), (0, 0)):
            raise ApiError(
                Errors.INVALID_REQUEST,
                "A manual partition assignment was specified, but partition count or replication factor too.",
            )
        rows = {one.partition_index: tuple(one.broker_ids) for one in wanted.assignments}
        if sorted(rows) != list(range(len(wanted.assignments))):
            raise ApiError(Errors.INVALID_REPLICA_ASSIGNMENT, "Partitions should be a consecutive 0-based sequence.")
        assignment = [rows[number] for number in range(len(rows))]
    partitions, replication_factor = wanted.num_partitions, wanted.replication_factor
    if partitions == DEFAULT:
        partitions = broker.settings.num_partitions
    if replication_factor == DEFAULT:
        replication_factor = broker.settings.default_replication_factor
    return NewTopic(wanted.name, partitions, replication_factor, config, assignment)


def _created(topic: Topic) -> Mapping[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": [{"name": name, "value": value, "config_source": 1} for name, value in topic.config.items()],
    }


def _refused(name: str, error: ApiError) -> Mapping[str, Any]:
    return {
        "name": name,
        "error_code": error.error,
        "error_message": str(error),
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }


async def create_partitions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Each topic by itself."""
    results = []
    began_s = broker.loop.time()
    for wanted in request.body.topics:
        began_s = await broker.share(began_s)
        rows = None if wanted.assignments is None else [tuple(one.broker_ids) for one in wanted.assignments]
        answer: dict[str, Any] = {"name": wanted.name}
        try:
            broker.controller.create_partitions(
                wanted.name, wanted.count, rows, validate_only=request.body.validate_only, is_synced=False
            )
        except ApiError as error:
            answer |= {"error_code": error.error, "error_message": str(error)}
        results.append(answer)
    broker.controller.sync()
    return {"results": results}


async def delete_topics(broker: Broker, request: Request) -> Mapping[str, Any]:
    """By name, or from version 6 on by id."""
    if hasattr(request.body, "topic_names"):
        named = [(name, None) for name in request.body.topic_names]
    else:
        named = [(one.name, one.topic_id) for one in request.body.topics]
    responses = []
    began_s = broker.loop.time()
    for name, topic_id in named:
        began_s = await broker.share(began_s)
        responses.append(_delete(broker, name, topic_id))
    broker.controller.sync()
    return {"responses": responses}


def _delete(broker: Broker, name: str | None, topic_id: object) -> Mapping[str, Any]:
    known = broker.metadata.topic_name(str(topic_id)) if name is None else name
    topic = broker.metadata.topics.get(known or "")
    answer = {"name": known, "topic_id": topic.topic_id if topic else topic_id and str(topic_id)}
    if known is None:
        return {**answer, "error_code": Errors.UNKNOWN_TOPIC_ID, "error_message": "This server does not host this ID."}
    try:
        broker.controller.delete_topic(known, is_synced=False)
    except ApiError as error:
        return {**answer, "error_code": error.error, "error_message": str(error)}
    return answer
