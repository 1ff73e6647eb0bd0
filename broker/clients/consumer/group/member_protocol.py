"""Messages of consumers to each other through their group, in version 3: subscriptions to the leader, assignments back.

    subscription    version int16 | topics | user data | owned partitions | generation int32 | rack
    assignment      version int16 | partitions | user data

Fields are kio's. A member of an older version says less; one of a newer says more behind it, which is passed over.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from struct import Struct
from typing import Any, Final

from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription as Subscription0
from kio.schema.consumer_protocol_subscription.v1.data import ConsumerProtocolSubscription as Subscription1
from kio.schema.consumer_protocol_subscription.v2.data import ConsumerProtocolSubscription as Subscription2
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription as Subscription3

from broker.clients.assignors.assignor import NO_GENERATION, Subscription
from broker.protocol.message_reader import ReadValue, struct_reader
from broker.protocol.messages import collect_names, struct_writer
from broker.protocol.wire import Reader
from purgatory.log_offsets import TopicPartition

VERSION: Final = 3
_SHORT: Final = Struct(">h")
_SUBSCRIPTIONS: Final = (Subscription0, Subscription1, Subscription2, Subscription3)


def encode_subscription(subscription: Subscription) -> bytes:
    """Sorted, as Java's."""
    return _encode(
        Subscription3,
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=_by_topic(sorted(subscription.owned_partitions)),
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )


def decode_subscription(data: bytes, group_instance_id: str | None) -> Subscription:
    """ValueError, IndexError, struct.error: these are not the bytes of one."""
    version = max(0, min(_SHORT.unpack_from(data)[0], VERSION))
    told = _reader(_SUBSCRIPTIONS[version])(_behind_version(data))
    return Subscription(
        told.topics,
        told.user_data,
        _partitions(getattr(told, "owned_partitions", ())),
        getattr(told, "generation_id", NO_GENERATION),
        getattr(told, "rack_id", None),
        group_instance_id,
    )


def encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    """In the assignor's order."""
    return _encode(ConsumerProtocolAssignment, assigned_partitions=_by_topic(partitions), user_data=None)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Nothing, if there are no bytes: the leader doesn't know the member. Errors as of a subscription."""
    return _partitions(_reader(ConsumerProtocolAssignment)(_behind_version(data)).assigned_partitions) if data else []


def _encode(kind: Any, **fields: Any) -> bytes:
    names: dict[str, frozenset[str]] = {}
    collect_names(kind, names)
    parts = [_SHORT.pack(VERSION)]
    struct_writer(kind, names)(parts.append, fields)
    return b"".join(parts)


@cache
def _reader(kind: Any) -> ReadValue:
    return struct_reader(kind)


def _behind_version(data: bytes) -> Reader:
    return Reader(memoryview(data)[_SHORT.size :], is_compact=False)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for one in partitions:
        numbers[one.topic].append(one.partition)
    return [{"topic": topic, "partitions": of} for topic, of in numbers.items()]


def _partitions(rows: Any) -> list[TopicPartition]:
    return [TopicPartition(row.topic, number) for row in rows for number in row.partitions]
