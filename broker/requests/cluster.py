"""The cluster: who is there, who shall lead, where replicas shall be."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.protocol.request import Request
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

BROKERS: Final = 1  # type of endpoint
UNCLEAN: Final = 1  # type of election
METADATA_LOG: Final = TopicPartition("__cluster_metadata", 0)
CONTROLLER_LISTENER: Final = "CONTROLLER"
NOT_HOSTED: Final = "This server does not host this topic-partition."


async def describe_cluster(broker: Broker, request: Request) -> Mapping[str, Any]:
    """The brokers that are there, and which one is called controller."""
    known = broker.metadata
    if getattr(request.body, "endpoint_type", BROKERS) != BROKERS:
        return {
            "error_code": Errors.MISMATCHED_ENDPOINT_TYPE,
            "error_message": "The request was sent to an endpoint of the wrong type.",
            "cluster_id": known.cluster_id,
        }
    return {
        "endpoint_type": BROKERS,
        "cluster_id": known.cluster_id,
        "controller_id": known.controller_id,
        "brokers": [
            {"broker_id": one.broker_id, "host": one.host, "port": one.port, "rack": one.rack} for one in known.alive
        ],
    }


async def describe_quorum(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Describe the one log that a quorum has: voters, leader, and how far each is."""
    wanted = [(topic.topic_name, [one.partition_index for one in topic.partitions]) for topic in request.body.topics]
    if wanted != [(METADATA_LOG.topic, [METADATA_LOG.partition])]:
        unknown = {"error_code": Errors.UNKNOWN_TOPIC_OR_PARTITION, "error_message": NOT_HOSTED}
        rows = [(name, [{"partition_index": number, **unknown} for number in numbers]) for name, numbers in wanted]
        topics = [{"topic_name": name, "partitions": partitions} for name, partitions in rows]
        return {"error_message": "", "topics": topics}
    quorum, known = broker.metadata.quorum, sorted(broker.metadata.brokers.values(), key=lambda one: one.broker_id)
    described = {
        "partition_index": METADATA_LOG.partition,
        "error_message": "",
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.epoch,
        "high_watermark": quorum.end_offset,
        "current_voters": [_voter(broker, one.broker_id) for one in known],
    }
    listeners = [[{"name": CONTROLLER_LISTENER, "host": one.host, "port": one.port}] for one in known]
    return {
        "error_message": "",
        "topics": [{"topic_name": METADATA_LOG.topic, "partitions": [described]}],
        "nodes": [{"node_id": one.broker_id, "listeners": its} for one, its in zip(known, listeners, strict=True)],
    }


def _voter(broker: Broker, broker_id: int) -> Mapping[str, Any]:
    state = broker.metadata.quorum.voter(broker_id, int(broker.clock()))
    return {
        "replica_id": broker_id,
        "log_end_offset": state.log_end_offset,
        "last_fetch_timestamp": state.last_fetch_ms,
        "last_caught_up_timestamp": state.last_caught_up_ms,
    }


async def elect_leaders(broker: Broker, request: Request) -> Mapping[str, Any]:
    """For all partitions, only those that had to be elected are told."""
    is_unclean = getattr(request.body, "election_type", 0) == UNCLEAN
    topics: dict[str, list[Mapping[str, Any]]] = {}
    is_about_all = request.body.topic_partitions is None
    for key in _all(broker) if is_about_all else _given(request.body.topic_partitions):
        answer: dict[str, Any] = {"partition_id": key.partition}
        try:
            broker.controller.elect_leader(key, is_unclean=is_unclean)
        except ApiError as error:
            if is_about_all and error.error is Errors.ELECTION_NOT_NEEDED:
                continue
            answer |= {"error_code": error.error, "error_message": str(error)}
        topics.setdefault(key.topic, []).append(answer)
    return {"replica_election_results": [{"topic": name, "partition_result": rows} for name, rows in topics.items()]}


async def alter_partition_reassignments(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Moves begin here and end when the new replicas are in sync; without replicas they are called back."""
    responses = []
    for topic in request.body.topics:
        partitions = []
        for one in topic.partitions:
            answer: dict[str, Any] = {"partition_index": one.partition_index}
            try:
                broker.controller.reassign(TopicPartition(topic.name, one.partition_index), one.replicas)
            except ApiError as error:
                answer |= {"error_code": error.error, "error_message": str(error)}
            partitions.append(answer)
        responses.append({"name": topic.name, "partitions": partitions})
    return {"responses": responses}


async def list_partition_reassignments(broker: Broker, request: Request) -> Mapping[str, Any]:
    """The moves that are under way."""
    wanted = request.body.topics
    keys = _all(broker) if wanted is None else [TopicPartition(t.name, n) for t in wanted for n in t.partition_indexes]
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for key in keys:
        partition = broker.metadata.partition(key)
        if partition is not None and (partition.adding or partition.removing):
            described = {
                "partition_index": key.partition,
                "replicas": partition.replicas,
                "adding_replicas": partition.adding,
                "removing_replicas": partition.removing,
            }
            topics.setdefault(key.topic, []).append(described)
    return {"topics": [{"name": name, "partitions": rows} for name, rows in topics.items()]}


def _all(broker: Broker) -> list[TopicPartition]:
    topics = broker.metadata.topics.values()
    return [TopicPartition(topic.name, number) for topic in topics for number in range(len(topic.partitions))]


def _given(topics: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, number) for one in topics for number in one.partitions]
