"""FindCoordinator: which broker answers for a group or a transactional id."""

from collections.abc import Mapping
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.cluster.cluster_metadata import NO_LEADER
from broker.cluster.controller import NewTopic
from broker.groups.coordinator_log import GROUPS_TOPIC, TRANSACTIONS_TOPIC, partition_of
from broker.protocol.request import Request
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

KEYS_SINCE: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
SEGMENT_BYTES: Final = 100 << 20


async def find_coordinator(broker: Broker, request: Request) -> Mapping[str, Any]:
    """For one key, or since version 4 for many. The internal topic is created when it is needed first."""
    body = request.body
    kind = getattr(body, "key_type", GROUP)
    if request.version >= KEYS_SINCE:
        return {"coordinators": [{"key": key, **_find(broker, kind, key)} for key in body.coordinator_keys]}
    return _find(broker, kind, body.key)


def _find(broker: Broker, kind: int, key: str) -> Mapping[str, Any]:
    try:
        topic = _internal_topic(broker, kind)
        count = len(broker.metadata.topics[topic].partitions)
        partition = broker.metadata.partition(TopicPartition(topic, partition_of(key, count)))
        leader = None if partition is None else broker.metadata.brokers.get(partition.leader)
        if leader is None or not broker.metadata.is_alive(leader.broker_id):
            raise ApiError(Errors.COORDINATOR_NOT_AVAILABLE, "no broker leads its partition")
    except ApiError as error:
        return {
            "error_code": error.error,
            "error_message": str(error),
            "node_id": NO_LEADER,
            "host": "",
            "port": -1,
        }
    return {
        "error_code": Errors.NONE,
        "error_message": "NONE",
        "node_id": leader.broker_id,
        "host": leader.host,
        "port": leader.port,
    }


def _internal_topic(broker: Broker, kind: int) -> str:
    """The name of the topic, which is there when this returns."""
    settings = broker.settings
    if kind == GROUP:
        name, count = GROUPS_TOPIC, settings.offsets_topic_num_partitions
        factor = settings.offsets_topic_replication_factor
    elif kind == TRANSACTION:
        name, count = TRANSACTIONS_TOPIC, settings.transaction_state_log_num_partitions
        factor = settings.transaction_state_log_replication_factor
    else:
        raise ApiError(Errors.INVALID_REQUEST, f"there are no coordinators of type {kind}")
    if name not in broker.metadata.topics:
        config = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
        factor = min(factor, len(broker.metadata.alive))
        broker.controller.create_topic(NewTopic(name, count, factor, config))
    return name
