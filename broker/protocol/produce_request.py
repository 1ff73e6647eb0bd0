"""Produce requests, read without copying their records: what a log appends is the memory that the socket wrote.

transactional id | acks 2 | timeout 4 | topics [ name, from version 13 its id | partitions [ index 4 | records ] ]
"""

import struct
from struct import Struct
from typing import Final, NamedTuple

from broker.protocol.wire import Reader

COMPACT_SINCE: Final = 9
TOPIC_IDS_SINCE: Final = 13

_ACKS_TIMEOUT = Struct(">hi")


class ProducedPartition(NamedTuple):
    """Records to be appended to one partition; None: nothing was sent."""

    partition: int
    records: memoryview | None


class ProducedTopic(NamedTuple):
    """A topic by its name or (version 13 on) its id."""

    name: str | None
    topic_id: str | None
    partitions: list[ProducedPartition]


class ProduceRequest(NamedTuple):
    """One produce request. Times in ms."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProducedTopic]


def read_produce_request(version: int, body: memoryview) -> ProduceRequest:
    """ValueError: malformed. What follows is passed over, as in Kafka."""
    reader = Reader(body, is_compact=version >= COMPACT_SINCE)
    try:
        transactional_id = reader.nullable_string()
        acks, timeout_ms = reader.numbers(_ACKS_TIMEOUT)
        topics = [_read_topic(reader, version) for _ in range(reader.count())]
        reader.tags()
    except (struct.error, IndexError) as error:
        raise ValueError(str(error)) from error
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_topic(reader: Reader, version: int) -> ProducedTopic:
    name = topic_id = None
    if version >= TOPIC_IDS_SINCE:
        topic_id = reader.uuid()
    else:
        name = reader.string()
    partitions = []
    for _ in range(reader.count()):
        partitions.append(ProducedPartition(reader.int32(), reader.nullable_bytes()))
        reader.tags()
    reader.tags()
    return ProducedTopic(name, topic_id, partitions)
