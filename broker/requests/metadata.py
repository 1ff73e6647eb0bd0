"""Metadata: who is there, and who leads what."""

from collections.abc import Mapping
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.cluster.cluster_metadata import NO_LEADER, PartitionRegistration, Topic
from broker.cluster.controller import NewTopic
from broker.log.manager import TOPIC_NAME
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_element
from broker.protocol.request import Request
from purgatory.errors import ApiError, Errors

NULL_MEANS_ALL_SINCE: Final = 1


async def metadata(broker: Broker, request: Request) -> Mapping[str, Any]:
    """The brokers, and the topics asked for, or all. Unknown ones are created if the broker is set so."""
    known = broker.metadata
    wanted = request.body.topics
    if wanted is None or (request.version < NULL_MEANS_ALL_SINCE and not wanted):
        described = (_describe(broker, topic) for topic in list(known.topics.values()))
    else:
        creates = broker.settings.auto_create_topics_enable and getattr(request.body, "allow_auto_topic_creation", True)
        described = (_find(broker, one, creates=creates) for one in wanted)
    topics = []
    began_s = broker.loop.time()
    for topic in described:
        topics.append(encode_element(ApiKey.METADATA, request.version, "topics", topic))
        began_s = await broker.share(began_s)
    return {
        "brokers": [
            {"node_id": one.broker_id, "host": one.host, "port": one.port, "rack": one.rack} for one in known.alive
        ],
        "cluster_id": known.cluster_id,
        "controller_id": known.controller_id,
        "topics": topics,
    }


def _find(broker: Broker, wanted: Any, *, creates: bool) -> Mapping[str, Any]:
    name = wanted.name
    topic_id = getattr(wanted, "topic_id", None)
    if name is None:
        name = broker.metadata.topic_name(str(topic_id))
        if name is None:
            return {"error_code": Errors.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id and str(topic_id)}
    topic = broker.metadata.topics.get(name)
    if topic is None and creates:
        try:
            topic = broker.controller.create_topic(
                NewTopic(name, broker.settings.num_partitions, broker.settings.default_replication_factor)
            )
        except ApiError as error:
            return {"error_code": error.error, "name": name}
    if topic is None:
        is_name = TOPIC_NAME.fullmatch(name)
        unknown = Errors.UNKNOWN_TOPIC_OR_PARTITION if is_name else Errors.INVALID_TOPIC_EXCEPTION
        return {"error_code": unknown, "name": name}
    return _describe(broker, topic)


def _describe(broker: Broker, topic: Topic) -> Mapping[str, Any]:
    return {
        "error_code": Errors.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            _describe_partition(broker, number, partition) for number, partition in enumerate(topic.partitions)
        ],
    }


def _describe_partition(broker: Broker, number: int, partition: PartitionRegistration) -> Mapping[str, Any]:
    has_leader = partition.leader != NO_LEADER
    return {
        "error_code": Errors.NONE if has_leader else Errors.LEADER_NOT_AVAILABLE,
        "partition_index": number,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        # The last of an ISR may lead again, but isn't in sync while it is gone (KIP-966).
        "isr_nodes": [one for one in partition.isr if broker.metadata.is_alive(one)],
        "offline_replicas": [one for one in partition.replicas if not broker.metadata.is_alive(one)],
    }
